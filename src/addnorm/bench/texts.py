"""The workloads: English texts of the lengths that are asked for, the same in every run.

The texts are the docstrings of the standard library, always at hand; where more are needed than there are, and
where a length is asked for, they are runs of words from all docstrings in a row. No two texts of a workload are
alike.
"""

import ast
import math
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING

from addnorm.bench.flops import flops
from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from addnorm.model import Model
    from addnorm.tokenizer import Tokenizer

MODULES = (
    *("argparse", "ast", "asyncio", "collections", "csv", "datetime", "decimal", "difflib", "email", "fractions"),
    *("functools", "heapq", "http", "inspect", "json", "logging", "os", "pathlib", "random", "re"),
)
SINGLE = (8, 32, 128, 512)
SHORT, LONG, LONGEST = 16, 256, 512


@dataclass(frozen=True)
class Workload:
    """Texts to encode. `lengths`: their tokens after the cut at `max_tokens`; `sizes`: batches worth trying.

    `single`: one text at a time, each alone.
    """

    name: str
    texts: tuple[str, ...]
    lengths: tuple[int, ...]
    max_tokens: int
    sizes: tuple[int, ...]
    single: bool = False


def many(model: "Model", count: int) -> Workload:
    """So many texts, each of 4 to 20 words."""
    tokenizer, own = model.reader()
    limit = own or LONGEST
    texts = _runs(count, 4, 20)
    lengths = tuple(len(t.ids) for t in tokenizer.encode(texts, limit))
    return Workload(f"{count} texts", tuple(texts), lengths, limit, (32,))


@cache
def docstrings() -> tuple[str, ...]:
    """The docstrings in the modules' source files, well mixed.

    Not those of imported modules: what has been imported and patched before would change them.
    """
    library = Path(sysconfig.get_path("stdlib"))
    found: dict[str, None] = {}
    for name in MODULES:
        module = library / f"{name}.py"
        for file in [module] if module.is_file() else sorted((library / name).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                    text := ast.get_docstring(node)
                ):
                    found.setdefault(text)
    texts = list(found)
    random.Random(0).shuffle(texts)
    return tuple(texts)


@cache
def _words() -> tuple[str, ...]:
    return tuple(word for text in docstrings() for word in text.split())


def _runs(count: int, fewest: int, most: int, seed: int = 0) -> list[str]:
    """Different runs of so many words; lengths even on a logarithmic scale."""
    words, draw = _words(), random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        length = round(math.exp(draw.uniform(math.log(fewest), math.log(most))))
        start = draw.randrange(len(words) - length)
        found.setdefault(" ".join(words[start : start + length]))
    return list(found)


def _mixed(tokenizer: "Tokenizer", count: int) -> list[str]:
    return list(dict.fromkeys([*docstrings()[:count], *_runs(count, 4, 120)]))[:count]


def _short(tokenizer: "Tokenizer", count: int) -> list[str]:
    sentences = dict.fromkeys(
        sentence for text in docstrings() for sentence in re.split(r"(?<=[.!?])\s+|\n\n", text) if " " in sentence
    )
    candidates = [*sentences, *_runs(count, 3, 8)]
    fits = [t.full_length <= SHORT for t in tokenizer.encode(candidates)]
    short = list(dict.fromkeys(text for text, fit in zip(candidates, fits, strict=True) if fit))
    if len(short) < count:
        raise AddnormError(f"there are {len(short)} texts of at most {SHORT} tokens, not {count}; ask for fewer")
    return short[:count]


def _long(tokenizer: "Tokenizer", count: int) -> list[str]:
    """Docstrings, one after the other until a text is long enough."""
    more = _endless()
    texts: list[str] = []
    while len(texts) < count:
        text = next(more)
        while tokenizer.encode([text])[0].full_length < LONG:
            text = f"{text}\n\n{next(more)}"
        texts.append(text)
    return texts


def _endless() -> Iterator[str]:
    """All docstrings again and again, each time in another order."""
    for seed in count_from(1):
        yield from random.Random(seed).sample(docstrings(), len(docstrings()))


def _exact(tokenizer: "Tokenizer", count: int, tokens: int) -> list[str]:
    """Runs of words that are exactly so many tokens, special tokens included."""
    words, draw = _words(), random.Random(tokens)
    texts: dict[str, None] = {}
    for _ in range(200 * count):
        start = draw.randrange(len(words) - tokens)
        run = " ".join(words[start : start + tokens])
        placed = tokenizer.place([run], tokens)[0]
        text = run[
            : max((span[1] for span, of in zip(placed.spans, placed.texts, strict=True) if of == 0), default=0)
        ]
        if tokenizer.encode([text])[0].full_length == tokens:
            texts.setdefault(text)
        if len(texts) == count:
            return list(texts)
    raise AddnormError(f"no {count} different texts of exactly {tokens} tokens with this tokenizer; ask for fewer")


@dataclass(frozen=True)
class Kind:
    """How a workload is made.

    `usual`: tokens of a usual text, `least`: that the model must be able to read; `fewest`, `most`: texts, between
    which `work`, the operations of one round, decides; `sizes`: batches worth trying; `limit`: the tokens that
    texts may have, where that is more than the model's own cut.
    """

    make: Callable[["Tokenizer", int], list[str]]
    usual: int
    fewest: int
    most: int
    sizes: tuple[int, ...] = (8, 16, 32)
    least: int = 0
    limit: int = 0
    work: float = 0.4e12
    single: bool = False


def _single(tokens: int) -> Kind:
    make = partial(_exact, tokens=tokens)
    return Kind(make, tokens, 4, 64, sizes=(1,), least=tokens, limit=tokens, work=0.03e12, single=True)


KINDS = {
    "mixed": Kind(_mixed, 53, 96, 512),
    "short": Kind(_short, 12, 128, 512, sizes=(16, 32, 64)),
    "long": Kind(_long, 330, 12, 48, sizes=(2, 4, 8), least=LONG, limit=LONGEST),
    **{f"single {tokens}": _single(tokens) for tokens in SINGLE},
}


def workload(name: str, model: "Model", count: int | None = None) -> Workload:
    """One of `KINDS` for a model; `count`: of texts, else as many as are a round's work.

    Errors: the model cannot read texts that long, or has no tokenizer.
    """
    kind = KINDS[name]
    tokenizer, own = model.reader()
    limit = min(model.max_positions or LONGEST, max(own or LONGEST, kind.limit))
    if kind.least > limit:
        raise AddnormError(f"{name} needs texts of {kind.least} tokens; the model reads {limit}")
    usual = round(kind.work / max(1, flops(model.config, [kind.usual])))
    texts = kind.make(tokenizer, count or max(kind.fewest, min(kind.most, usual)))
    lengths = tuple(len(t.ids) for t in tokenizer.encode(texts, limit))
    return Workload(name, tuple(texts), lengths, limit, kind.sizes, kind.single)
