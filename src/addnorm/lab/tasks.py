"""What the lab trains on: a copy task that cannot be solved without attention, and real English."""

import importlib.util
import inspect
import math
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from addnorm.batch import Batch

MASK = 0


@dataclass(frozen=True)
class Examples:
    """A batch with masked tokens: `where` they are (M,), and what they were (M,)."""

    batch: Batch
    where: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Task:
    """`draw` gives the next examples; `vocabulary`: ids it uses; `chance`: the loss of guessing without context."""

    name: str
    vocabulary: int
    chance: float
    draw: Callable[[torch.Generator], Examples]


def masked_copy(letters: int = 63, period: int = 4, length: int = 16, texts: int = 32) -> Task:
    """A random word of `period` letters, written again and again; in each text one of the copies is hidden.

    A hidden letter stands `period` places on or back: only attention by position finds it. Chance is ln(letters).
    """

    def draw(generator: torch.Generator) -> Examples:
        words = torch.randint(1, letters + 1, (texts, period), generator=generator)
        ids = words.repeat(1, length // period + 1)[:, :length]
        copies = torch.randint(0, length // period, (texts, 1), generator=generator)
        where = (torch.arange(texts)[:, None] * length + copies * period + torch.arange(period)).flatten()
        flat = ids.flatten()
        targets = flat[where]
        hidden = flat.clone()
        hidden[where] = MASK
        return Examples(Batch.pack(hidden.view(texts, length).tolist()), where, targets)

    return Task("masked copy", letters + 1, math.log(letters), draw)


@cache
def docstrings() -> str:
    """The docstrings of the standard library, in the order of the names: English that every Python has."""
    texts: list[str] = []
    for module in sorted(pkgutil.iter_modules(), key=lambda module: module.name):
        if module.name in sys.stdlib_module_names and not module.name.startswith("_"):
            texts += _documented(module.name)
    return "\n".join(texts)


def _documented(name: str) -> Iterator[str]:
    """Docstrings of a module's file, read without running it."""
    import ast

    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return
    with open(spec.origin, encoding="utf-8", errors="replace") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield inspect.cleandoc(text)


def masked_language(
    ids: tuple[int, ...], kept: int = 2000, length: int = 32, texts: int = 16, share: float = 0.15
) -> Task:
    """Masked-language modelling of a text given as token ids: the `kept` most frequent ones, the rest one token.

    Chance is the entropy of single tokens, what a model that ignores the context can reach.
    """
    counts = Counter(ids)
    frequent = [token for token, _ in counts.most_common(kept)]
    numbers = {token: i + 2 for i, token in enumerate(frequent)}  # 0 masked, 1 the rest
    stream = torch.tensor([numbers.get(token, 1) for token in ids])
    shares = torch.bincount(stream).double() / len(stream)
    masked = max(1, round(share * length))

    def draw(generator: torch.Generator) -> Examples:
        starts = torch.randint(0, len(stream) - length, (texts,), generator=generator)
        rows = stream[starts[:, None] + torch.arange(length)]
        places = torch.rand(texts, length, generator=generator).argsort(1)[:, :masked]
        where = (torch.arange(texts)[:, None] * length + places).flatten()
        flat = rows.flatten()
        hidden = flat.clone()
        hidden[where] = MASK
        return Examples(Batch.pack(hidden.view(texts, length).tolist()), where, flat[where])

    return Task("masked language", len(frequent) + 2, float(torch.special.entr(shares).sum()), draw)
