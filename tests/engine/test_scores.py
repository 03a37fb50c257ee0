"""The engine's attention against the formula, where scores leave the range of exp, and in bands."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.engine import scores
from addnorm.engine.operators import has_bfloat16
from addnorm.engine.scores import Terms, attend

ERRORS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}


def drawn(count: int, heads: int, length: int, width: int, size: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (count, heads, length, width)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * size for _ in range(3)]


def formula(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    s = query @ key.transpose(-2, -1) * scale
    return (s if bias is None else s + bias).softmax(-1) @ value


def band(length: int, window: int) -> Tensor:
    place = torch.arange(length)
    bias = torch.zeros(1, length, length, dtype=torch.float64)
    return bias.masked_fill((place - place[:, None]).abs() > window, float("-inf"))


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(list(ERRORS)),
    count=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 70),
    width=st.sampled_from((1, 5, 16, 32)),
    biased=st.booleans(),
    held=st.sampled_from((1, 10_000, 2**20)),
)
def test_attention(
    dtype: torch.dtype, count: int, heads: int, length: int, width: int, biased: bool, held: int
) -> None:
    parts = [part.to(dtype) for part in drawn(count, heads, length, width)]
    bias = torch.linspace(-2, 2, heads * length * length, dtype=dtype).view(heads, length, length) if biased else None
    out = torch.full_like(parts[0], float("nan"))
    whole, scores.HELD = scores.HELD, held
    try:
        attend(*parts, Terms(0.3, (length,) * count, bias), out)
    finally:
        scores.HELD = whole
    exact = formula(*(part.double() for part in parts), 0.3, None if bias is None else bias.double())
    assert (out - exact).abs().max() <= ERRORS[dtype] * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_texts_have_the_same_bits_in_company(dtype: torch.dtype) -> None:
    parts = [part.to(dtype) for part in drawn(3, 2, 300, 16)]
    together = torch.empty_like(parts[0])
    attend(*parts, Terms(0.3, (300,) * 3), together)
    assert (together - formula(*(part.double() for part in parts), 0.3)).abs().max() <= ERRORS[dtype]
    for i in range(3 if dtype == torch.float32 or has_bfloat16() else 0):
        own = [part[i : i + 1] for part in parts]
        alone = torch.empty_like(own[0])
        attend(*own, Terms(0.3, (300,)), alone)
        assert torch.equal(alone[0], together[i])


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(list(ERRORS)),
    length=st.integers(1, 300),
    window=st.sampled_from((0, 1, 7, 64)),
    width=st.sampled_from((5, 32)),
)
def test_attention_of_a_band(dtype: torch.dtype, length: int, window: int, width: int) -> None:
    parts = [part.to(dtype) for part in drawn(2, 2, length, width)]
    out = torch.full_like(parts[0], float("nan"))
    scores._near(*parts, Terms(0.3, (length,) * 2, window=window), out)
    exact = formula(*(part.double() for part in parts), 0.3, band(length, window))
    assert (out - exact).abs().max() <= ERRORS[dtype]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", list(ERRORS))
def test_scores_out_of_range(dtype: torch.dtype, sign: float) -> None:
    """exp of ±400 is beyond float32's range: one text of three is computed in the other way, the others as ever."""
    query, key, value = drawn(3, 2, 20, 5)
    before = torch.empty_like(query, dtype=dtype)
    attend(*(part.to(dtype) for part in (query, key, value)), Terms(0.3, (20,) * 3), before)
    query[1], key[1] = 40 + query[1], sign * (7 + key[1])
    query, key, value = (part.to(dtype) for part in (query, key, value))
    for run in (
        lambda out: attend(query, key, value, Terms(0.3, (20,) * 3), out),
        lambda out: scores._near(query, key, value, Terms(0.3, (20,) * 3, window=30), out),
    ):
        out = torch.empty_like(query)
        run(out)
        assert (out - formula(query.double(), key.double(), value.double(), 0.3)).abs().max() <= 10 * ERRORS[dtype]
    together = torch.empty_like(query)
    attend(query, key, value, Terms(0.3, (20,) * 3), together)
    assert torch.equal(together[[0, 2]], before[[0, 2]])
