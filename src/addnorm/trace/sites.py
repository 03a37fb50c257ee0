"""The sites: the named steps of a forward pass, listed once, with shape and meaning.

A site is the output of a module of the same name, so an encoder has exactly the sites whose module it has.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby

from torch import nn

from addnorm.config import BlockConfig
from addnorm.errors import AddnormError
from addnorm.nn.encoder import Encoder, named_parts


@dataclass(frozen=True)
class Site:
    """A named step. `name` holds {i} for the number of a block; `shape` is that of one text."""

    name: str
    shape: str
    meaning: str

    @property
    def grouped(self) -> bool:
        """Whether its module runs once a group of equally long texts: inside attention."""
        return self.shape == "(H, T, T)"

    @property
    def pooled(self) -> bool:
        """Whether it has one row a text."""
        return "T" not in self.shape


_SLOTS_IN = (("norm_in", "(T, D)", "N_in(x), what F sees"),)
_SLOTS_OUT = (
    ("norm_branch", "(T, D)", "N_branch(F)"),
    ("branch", "(T, D)", "β·N_branch(F), what is added"),
    ("add", "(T, D)", "α·x + branch, the residual sum"),
    ("norm_out", "(T, D)", "N_out of the sum"),
)
_ATTENTION = (
    ("query", "(T, H·K)", "what a token looks for"),
    ("query_norm", "(T, H, K)", "queries, normalised"),
    ("query_rotary", "(T, H, K)", "queries, turned by position"),
    ("key", "(T, H·K)", "what a token is found by"),
    ("key_norm", "(T, H, K)", "keys, normalised"),
    ("key_rotary", "(T, H, K)", "keys, turned by position"),
    ("value", "(T, H·K)", "what a token gives when found"),
    ("value_norm", "(T, H, K)", "values, normalised"),
    ("value_rotary", "(T, H, K)", "values, turned by position"),
    ("value_residual", "(T, H, K)", "values, with the first block's"),
    ("disentangled", "(H, T, T)", "contents with distances"),
    ("scores", "(H, T, T)", "query · key / √K, per head"),
    ("weights", "(H, T, T)", "softmax, each row sums to 1"),
    ("mix", "(T, H·K)", "values averaged by weights"),
    ("head_scale", "(T, H·K)", "the mix, a factor a head"),
    ("mix_norm", "(T, H·K)", "the mix, normalised"),
    ("output", "(T, D)", "the mix, projected"),
)
_FEEDFORWARD = (
    ("up", "(T, F)", "the stream, widened"),
    ("gate", "(T, F)", "gate, before its activation"),
    ("activation", "(T, F)", "φ, the non-linearity"),
    ("product", "(T, F)", "activation ⊙ up"),
    ("inner_norm", "(T, F)", "normalised before down"),
    ("down", "(T, D)", "back to the stream's width"),
)

_CONVOLUTION = (
    ("conv", "(T, D)", "neighbouring tokens, mixed"),
    ("branch", "(T, D)", "φ of it, what is added"),
    ("add", "(T, D)", "the block's result + branch"),
    ("norm_out", "(T, D)", "N_out of the sum"),
)

_ENTRY = (
    ("norm_in", "(T, D)", "N_in(x), what F sees"),
    ("entry", "(T, D)", "into the narrow stream"),
    ("entry_norm", "(T, D)", "the way in, normalised"),
    ("queries", "(T, D)", "another way in, for queries and keys"),
    ("queries_norm", "(T, D)", "that way in, normalised"),
)
_EXIT = (("exit", "(T, D)", "back to the wide stream"), *_SLOTS_OUT)
_UNITS = (("attention", _ATTENTION), ("feedforward", _FEEDFORWARD), ("further.{k}", _FEEDFORWARD))

SITES: tuple[Site, ...] = (
    Site("embeddings.tokens", "(T, D)", "row of the vocabulary table"),
    Site("embeddings.dropped", "(T, D)", "masks as 0, the others scaled up"),
    Site("embeddings.trigrams", "(T, 3·D)", "a token between its neighbours"),
    Site("embeddings.shapes", "(T, E)", "row of how tokens are written"),
    Site("embeddings.pronunciations", "(T, E)", "row of how tokens are said"),
    Site("embeddings.merge", "(T, D)", "tokens and what lies beside them, projected"),
    Site("embeddings.types", "(T, D)", "first or second text"),
    Site("embeddings.positions", "(T, D)", "row or waves of the position"),
    Site("embeddings.tasks", "(T, D)", "row of the task"),
    Site("embeddings.sum", "(T, D)", "tokens + types + positions"),
    Site("embeddings.norm", "(T, D)", "the sum, normalised"),
    Site("embeddings.projection", "(T, D)", "to the stream's width"),
    Site("embeddings", "(T, D)", "stream before the first block"),
    *(Site(f"blocks.{{i}}.bottleneck.{name}", shape, meaning) for name, shape, meaning in _ENTRY),
    *(
        Site(f"blocks.{{i}}.{unit}.{name}", shape, meaning)
        for unit, inner in _UNITS
        for name, shape, meaning in (*_SLOTS_IN, *inner, *_SLOTS_OUT)
    ),
    *(Site(f"blocks.{{i}}.bottleneck.{name}", shape, meaning) for name, shape, meaning in _EXIT),
    *(Site(f"blocks.{{i}}.convolution.{name}", shape, meaning) for name, shape, meaning in _CONVOLUTION),
    Site("blocks.{i}", "(T, D)", "stream after the block"),
    Site("norm", "(T, D)", "the final norm"),
    Site("pooler", "(D)", "tanh(W · first token + b)"),
    Site("head.dense", "(T, D)", "the stream, mapped for the task"),
    Site("head.activation", "(T, D)", "φ, the non-linearity"),
    Site("head.norm", "(T, D)", "normalised"),
    Site("head.logits", "(T, C)", "a score for each output"),
    Site("pooling", "(D)", "the sentence vector"),
)


def sites_of(encoder: Encoder, extra: Mapping[str, nn.Module]) -> dict[str, tuple[Site, nn.Module]]:
    """The sites an encoder has, in forward order; `extra`: modules outside it, by site name."""
    modules = {**named_parts(encoder), **extra}
    ordered: dict[str, tuple[Site, nn.Module]] = {}
    in_block = [site for site in SITES if "{i}" in site.name]
    first = SITES.index(in_block[0])
    named = (
        *((site.name, site) for site in SITES[:first]),
        *(
            (name.replace("{i}", str(i)), site)
            for i, block in enumerate(encoder.config.blocks)
            for name, site in _spelled(in_block, block)
        ),
        *((site.name, site) for site in SITES[first + len(in_block) :]),
    )
    for name, site in named:
        if name in modules:
            ordered[name] = (_pooled(site, encoder) if name.startswith("head.") else site, modules[name])
    return ordered


def _pooled(site: Site, encoder: Encoder) -> Site:
    """A head's site, which has one row a text where the head pools, and before it."""
    head = encoder.config.head
    pooled = head is not None and head.pool is not None and (head.pool != "late" or site.name == "head.logits")
    return replace(site, shape=site.shape.replace("T, ", "")) if pooled else site


def _spelled(sites: Iterable[Site], block: BlockConfig) -> Iterator[tuple[str, Site]]:
    """The sites of a block by name, those of its further units one unit after the other."""
    for further, group in groupby(sites, key=lambda site: "{k}" in site.name):
        listed = list(group)
        for k in range(len(block.further)) if further else range(1):
            yield from ((site.name.replace("{k}", str(k)), site) for site in listed)


def meaning_of(name: str) -> Site:
    """The entry of a site by its full name."""
    pattern = re.sub(r"^(blocks\.{i}\.further)\.\d+", r"\1.{k}", re.sub(r"^blocks\.\d+", "blocks.{i}", name))
    return next(site for site in SITES if site.name == pattern)


def select(names: Sequence[str], wanted: str | Sequence[str] | None) -> list[str]:
    """Those of `names` that match any wanted name or glob; None wants all. Errors: one that matches none."""
    if wanted is None:
        return list(names)
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = get_close_matches(pattern, names, n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(close)}" if close else f"; the model's sites begin with {names[0]}"
            raise AddnormError(f"no site '{pattern}' in this model{hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
