"""Embeddings and sentence pooling by one kernel each, against their modules: every level that this processor runs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import EmbeddingsConfig, NormConfig
from addnorm.engine import compiled
from addnorm.engine.around import FastEmbeddings, FastPooling
from addnorm.engine.compiled.around import MODES, pool
from addnorm.engine.walk import Walk
from addnorm.errors import AddnormError
from addnorm.nn.heads import POOLINGS, SentenceDense, SentencePooling
from tests.engine.test_compiled import drawn, level, offsets_of
from tests.nn.drawn import build, ids_of, small

__all__ = ["level"]  # a fixture

LENGTHS = (1, 5, 40, 1, 131, 13)


def lowered(batch: Batch, **embeddings: object) -> tuple[nn.Module, Tensor]:
    """The fast form of the embeddings with these settings, and what the plain ones give."""
    own = EmbeddingsConfig(**{"vocabulary": 40, "max_positions": 200, "types": 2, **embeddings})  # type: ignore[arg-type]
    encoder = build(replace(small(norm_out=NormConfig()), embeddings=own)).float()
    with torch.no_grad():
        return Walk(encoder).lowered(encoder.embeddings), encoder.embeddings(batch)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm": NormConfig()},
        {"norm": NormConfig(kind="rms"), "types": 0, "positions": None},
        {"scale": 3.5, "position_offset": 2},
        {"pad": 1},
        {"width": 21, "norm": NormConfig()},
    ],
    ids=str,
)
def test_embeddings(level: str, settings: dict[str, object]) -> None:
    batch = Batch.pack(ids_of(*LENGTHS), [[i % 2 for i in range(length)] for length in LENGTHS])
    fast, plain = lowered(batch, **settings)
    assert type(fast) is FastEmbeddings
    found = fast(batch)
    assert (found - plain).abs().max() < 2e-6
    for text, ids in enumerate(ids_of(*LENGTHS)):
        alone = fast(Batch.pack([ids], [[i % 2 for i in range(len(ids))]]))
        assert torch.equal(alone, found[batch.spans[text]])


@pytest.mark.parametrize("settings", [{"positions": "sinusoidal"}, {"tasks": 2}, {"dropped": 3}], ids=str)
def test_embeddings_that_are_more_than_tables(level: str, settings: dict[str, object]) -> None:
    batch = Batch.pack(ids_of(*LENGTHS))
    fast, plain = lowered(batch, **settings)
    assert type(fast) is not FastEmbeddings
    assert torch.equal(fast(batch), plain)


@pytest.mark.parametrize(("ids", "types", "message"), [
    ([3, 40], None, "token id 40 is outside the model's 40 vocabulary"),
    ([-1, 4], None, "token id -1 is outside"),
    ([3, 4], [0, 2], "token type 2 is outside the model's 2 token types"),
    ([3] * 201, None, "position 200 is outside the model's 200 positions"),
])  # fmt: skip
def test_what_is_not_in_a_table(level: str, ids: list[int], types: list[int] | None, message: str) -> None:
    fast, _ = lowered(Batch.pack([[3]]))
    with pytest.raises(AddnormError, match=message):
        fast(Batch.pack([ids], None if types is None else [types]))


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    width=st.integers(1, 40),
    modes=st.lists(st.sampled_from(sorted(POOLINGS)), min_size=1, max_size=3, unique=True),
    normalize=st.booleans(),
)
def test_pooling(dtype: torch.dtype, lengths: list[int], width: int, modes: list[str], normalize: bool) -> None:
    x, batch = drawn(sum(lengths), width).to(dtype), Batch.pack([[0] * length for length in lengths])
    expected = SentencePooling(tuple(modes), normalize)(x.double(), batch)
    for name in compiled.LEVELS:
        kernels = compiled.library(name)
        if kernels is None:
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "best", lambda kernels=kernels: kernels)
            found = pool(x, batch.offsets, modes, normalize)
            assert (found - expected).abs().max() < 2e-6
            alone = [pool(x[span], offsets_of([span.stop - span.start]), modes, normalize) for span in batch.spans]
            assert torch.equal(torch.cat(alone), found)


def test_the_kernels_know_every_pooling() -> None:
    assert MODES.keys() == POOLINGS.keys()


@pytest.mark.parametrize("mode", sorted(POOLINGS))
def test_pooling_of_what_is_no_number(level: str, mode: str) -> None:
    x = drawn(6, 5)
    x[:3, 2] = float("nan")
    found = pool(x, offsets_of([3, 3]), [mode], False)
    assert found.isnan().tolist() == [[False, False, True, False, False], [False] * 5]


def test_pooling_of_zeros_has_no_length(level: str) -> None:
    assert torch.equal(pool(torch.zeros(3, 5), offsets_of([1, 2]), ["mean"], True), torch.zeros(2, 5))


@pytest.mark.parametrize("normalize", [True, False, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pooling_with_a_map_behind(level: str, dtype: torch.dtype, normalize: bool | None) -> None:
    dense = SentenceDense(drawn(7, 10), drawn(7), "tanh")
    plain = SentencePooling(("mean", "cls"), True, [dense])
    fast = Walk(build(small(norm_out=NormConfig()))).pooling(plain)
    assert type(fast) is FastPooling
    x, batch = drawn(46, 5).to(dtype), Batch.pack(ids_of(5, 1, 40))
    if dtype == torch.float64:
        plain, fast = plain.double(), fast.double()
    with torch.no_grad():
        expected = plain(x if dtype == torch.float64 else x.float(), batch, normalize)
        assert (fast(x, batch, normalize) - expected).abs().max() < 2e-6
