"""A program of kernel calls against its modules one by one: the same bits."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from addnorm.batch import Batch
from addnorm.config import EncoderConfig, NormConfig, PositionBiasConfig, RotaryConfig
from addnorm.engine import compiled, lower
from addnorm.engine.operators import has_bfloat16, has_bytes, widens
from addnorm.errors import AddnormError
from tests.nn.drawn import build, ids_of, small

pytestmark = [
    pytest.mark.skipif(compiled.best() is None, reason="no kernels here"),
    pytest.mark.filterwarnings("ignore::addnorm.errors.Remark"),
]
PRECISIONS = ["float32", *["bfloat16"] * (has_bfloat16() or widens()), *["int8"] * has_bytes()]
RMS = NormConfig(kind="rms")
LENGTHS = (1, 5, 40, 1, 700, 13)
FEEDFORWARD = {"width": 24}

# What blocks hold, and in which precisions every part of them is a kernel.
MAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "post-norm": ({"norm_out": NormConfig()}, ("float32", "bfloat16", "int8")),
    "pre-norm": ({"norm_in": NormConfig()}, ("float32", "bfloat16", "int8")),
    "no norm": ({}, ("float32", "bfloat16", "int8")),
    "rms, rotary": (
        {"norm_in": RMS, "attention": {"rotary": RotaryConfig()}}, ("float32", "bfloat16", "int8")
    ),
    "window, gate": (
        {"norm_in": RMS, "attention": {"window": 3}, "feedforward": {**FEEDFORWARD, "gated": True}},
        ("float32", "bfloat16", "int8"),
    ),
    "fewer heads of keys": (
        {"norm_out": NormConfig(), "attention": {"heads": 4, "kv_heads": 2}}, ("float32", "bfloat16", "int8")
    ),
    "norm of queries": ({"norm_out": NormConfig(), "attention": {"query_norm": RMS, "key_norm": RMS}}, ()),
    "norm of the branch": ({"norm_branch": NormConfig()}, ()),
    "α": ({"alpha": 1.5, "norm_out": NormConfig()}, ()),
}  # fmt: skip


def wide(**slots: Any) -> EncoderConfig:
    """A small config whose widths pairs and quads of numbers fill, for texts of any length."""
    config = small(**{"feedforward": FEEDFORWARD, **slots})
    return replace(config, width=12, embeddings=replace(config.embeddings, positions=None))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("make", list(MAKES))
def test_the_same_bits_as_module_by_module(make: str, precision: str) -> None:
    slots, programmed = MAKES[make]
    encoder, batch = build(wide(**slots)).float(), Batch.pack(ids_of(*LENGTHS))
    engine = lower(encoder, precision)
    blocks = engine.program
    assert (blocks is not None) == (precision in programmed)
    found = engine(batch)
    engine.program = None
    assert torch.equal(engine(batch), found)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_with_a_bias_of_positions(precision: str) -> None:
    bias = PositionBiasConfig(kind="buckets", buckets=8, max_distance=16)
    config = replace(wide(norm_out=NormConfig()), position_bias=bias)
    engine, batch = lower(build(config).float(), precision), Batch.pack(ids_of(*LENGTHS))
    found = engine(batch)
    engine.program = None
    assert torch.equal(engine(batch), found)


def test_a_text_beyond_the_limit_of_the_rotation() -> None:
    config = wide(norm_out=NormConfig(), attention={"rotary": RotaryConfig(limit=20)})
    engine = lower(build(config).float())
    assert engine.program is not None
    with pytest.raises(AddnormError, match="position 39 is beyond the 20"):
        engine(Batch.pack(ids_of(5, 40)))


@pytest.mark.parametrize("openmp", [True, False])
def test_several_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, openmp: bool) -> None:
    if not openmp:
        monkeypatch.setattr(compiled, "starter", lambda: (None, compiled.PARALLEL))
    config = wide(norm_out=NormConfig(), feedforward={"width": 512}, attention={"head_width": 64})
    engine, batch = lower(build(config).float()), Batch.pack(ids_of(700, 3, 500))
    one = engine(batch)
    torch.set_num_threads(2)
    try:
        assert torch.equal(engine(batch), one)
    finally:
        torch.set_num_threads(1)
