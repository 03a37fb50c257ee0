"""The list of sites: names, order, shapes, selection."""

from typing import Any

import pytest

from addnorm import AddnormError
from addnorm.config import (
    BottleneckConfig,
    ConvolutionConfig,
    DisentangledConfig,
    EncoderConfig,
    HeadConfig,
    Learned,
    NormConfig,
    RelativeConfig,
    RotaryConfig,
    TableConfig,
)
from addnorm.nn.encoder import named_parts
from addnorm.nn.heads import SentencePooling
from addnorm.trace.sites import SITES, meaning_of, select, sites_of
from tests.nn.drawn import build, model_of, small

LAYER = NormConfig()
SLOTS: dict[str, Any] = {"norm_in": LAYER, "norm_branch": LAYER, "norm_out": LAYER}
INSIDE = ("query_norm", "key_norm", "value_norm", "mix_norm")


def full() -> EncoderConfig:
    """An encoder with every slot filled; tables and streams are all 10 wide."""
    plain = small(
        pooler=True,
        **SLOTS,
        alpha=Learned(init=1.0),
        attention=dict.fromkeys(INSIDE, LAYER)
        | {"rotary": RotaryConfig(value=True), "value_residual": 0.5, "head_scale": True},
        feedforward={"gated": True, "inner_norm": LAYER},
    )
    block = plain.blocks[0]
    block = block.replace(
        attention=block.attention.replace(disentangled=DisentangledConfig(), value_width=10),
        further=(block.feedforward,) * 2,
        bottleneck=BottleneckConfig(width=10, norm=LAYER, queries=True, **SLOTS),
        convolution=ConvolutionConfig(kernel=3, norm_out=LAYER),
    )
    table = TableConfig(rows=3, width=2)
    beside = {"shapes": table, "pronunciations": table, "merge": True, "trigrams": True}
    return plain.replace(
        blocks=(block, block),
        relative=RelativeConfig(span=6),
        norm=LAYER,
        embeddings=plain.embeddings.replace(tasks=2, dropped=4, **beside),
        head=HeadConfig(task="tag", outputs=5, dense=10, activation="gelu", norm=LAYER),
    )


FULL = full()
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
    assert {site.name for site in SITES} == {site.name for site, _ in available.values()}
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
    sizes = {"T": 7, "D": 10, "3·D": 30, "E": 2, "H": 3, "K": 4, "H·K": 12, "F": 17, "C": 5}
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
