"""The list of sites: names, order, shapes, selection."""

import re
from typing import Any

import pytest

from addnorm import AddnormError
from addnorm.config import HeadConfig, Learned, NormConfig, RotaryConfig
from addnorm.nn.encoder import named_parts
from addnorm.nn.heads import SentencePooling
from addnorm.trace.sites import SITES, meaning_of, select, sites_of
from tests.nn.drawn import build, model_of, small

LAYER = NormConfig()
# An encoder with every slot filled; the tables are as wide as the stream.
PLAIN = small(
    pooler=True,
    norm_in=LAYER,
    norm_branch=LAYER,
    norm_out=LAYER,
    alpha=Learned(init=1.0),
    attention={"query_norm": LAYER, "key_norm": LAYER, "mix_norm": LAYER, "rotary": RotaryConfig(value=True)},
    feedforward={"gated": True, "inner_norm": LAYER},
)
FULL = PLAIN.replace(
    norm=LAYER,
    embeddings=PLAIN.embeddings.replace(tasks=2),
    head=HeadConfig(task="tag", outputs=5, dense=10, activation="gelu", norm=LAYER),
)
PROJECTED = FULL.replace(embeddings=FULL.embeddings.replace(width=6))
NAMES = [
    "embeddings.tokens",
    "embeddings",
    "blocks.0.attention.add",
    "blocks.0.feedforward.add",
    "blocks.0",
    "blocks.10.attention.add",
]


def test_every_listed_site_is_a_module() -> None:
    encoder = build(PROJECTED)
    available = sites_of(encoder, {"pooling": SentencePooling()})
    expected = [site.name for site in SITES if "{i}" not in site.name]
    inner = [site.name for site in SITES if "{i}" in site.name]
    assert [name for name in available if not name.startswith("blocks.")] == expected
    for i in range(2):
        assert [name for name in available if re.match(rf"blocks\.{i}\b", name)] == [
            name.replace("{i}", str(i)) for name in inner
        ]
    modules = named_parts(encoder)
    for name, (site, module) in available.items():
        assert meaning_of(name) is site
        assert name == "pooling" or module is modules[name]
        assert site.meaning


def test_names_are_listed_once() -> None:
    assert len({site.name for site in SITES}) == len(SITES)


@pytest.mark.parametrize("pool", [None, "first"])
def test_shapes_are_as_listed(pool: Any) -> None:
    assert FULL.head is not None
    model = model_of(FULL.replace(head=FULL.head.replace(pool=pool)))
    trace = model.trace([[1, 2, 3, 4, 5, 6, 7], [8, 9]])[0]
    sizes = {"T": 7, "D": 10, "H": 3, "K": 4, "H·K": 12, "F": 17, "C": 5}
    for name in trace.sites:
        letters = meaning_of(name).shape.strip("()").split(", ")
        if pool and name.startswith("head."):  # a row for the text
            letters.remove("T")
        assert trace[name].shape == tuple(sizes[letter] for letter in letters), name


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, NAMES),
        ("embeddings", ["embeddings"]),
        ("*.add", [NAMES[2], NAMES[3], NAMES[5]]),
        ("blocks.?.*.add", [NAMES[2], NAMES[3]]),
        (["blocks.0", "embeddings"], ["embeddings", "blocks.0"]),
        (["blocks.0", "blocks.0", "*"], NAMES),
        ([], []),
    ],
)
def test_selection_keeps_forward_order(wanted: str | list[str] | None, chosen: list[str]) -> None:
    assert select(NAMES, wanted) == chosen


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("blocks.0.atention.add", r"no site 'blocks.0.atention.add'.*did you mean blocks.0.attention.add"),
        (["embeddings", "blocks.1.feedforward.add"], r"no site 'blocks.1.feedforward.add'.*blocks.0.feedforward.add"),
        ("zzz", r"no site 'zzz' in this model; the model's sites begin with embeddings.tokens"),
        ("BLOCKS.0", r"no site 'BLOCKS.0'"),
        ("lens.*", r"no site 'lens.\*'"),
    ],
)
def test_a_site_that_is_not_there_is_named(wanted: str | list[str], says: str) -> None:
    with pytest.raises(AddnormError, match=says):
        select(NAMES, wanted)
