"""What reads the stream: the pooler and sentence pooling, against a loop over texts."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.nn.heads import POOLINGS, Pooler, SentencePooling
from tests.nn.drawn import batch_of, largest, perturb

WIDTH = 5
NAIVE: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "cls": lambda rows: rows[0],
    "lasttoken": lambda rows: rows[-1],
    "mean": lambda rows: sum(rows, torch.zeros(WIDTH)) / len(rows),
    "mean_sqrt_len_tokens": lambda rows: sum(rows, torch.zeros(WIDTH)) / len(rows) ** 0.5,
    "weightedmean": lambda rows: (
        sum(((i + 1) * row for i, row in enumerate(rows)), torch.zeros(WIDTH)) / sum(range(1, len(rows) + 1))
    ),
    "max": lambda rows: torch.tensor([max(float(row[d]) for row in rows) for d in range(WIDTH)], dtype=torch.float64),
}
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def stream(lengths: list[int]) -> tuple[Tensor, list[list[Tensor]]]:
    """Random rows, and the same rows text by text."""
    generator = torch.Generator().manual_seed(sum(lengths))
    x = torch.randn(sum(lengths), WIDTH, generator=generator, dtype=torch.float64)
    rows = iter(x)
    return x, [[next(rows) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("mode", POOLINGS)
@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS)
def test_poolings_equal_a_loop_over_texts(mode: str, lengths: list[int]) -> None:
    x, texts = stream(lengths)
    expected = torch.stack([NAIVE[mode](rows) for rows in texts])
    assert largest(SentencePooling((mode,))(x, batch_of(*lengths)), expected) <= 1e-12


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS)
def test_several_modes_lie_side_by_side(lengths: list[int]) -> None:
    x, texts = stream(lengths)
    expected = torch.stack([torch.cat([NAIVE[mode](rows) for mode in ("max", "cls")]) for rows in texts])
    assert largest(SentencePooling(("max", "cls"))(x, batch_of(*lengths)), expected) <= 1e-12


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS)
def test_normalised_vectors_have_length_1(lengths: list[int]) -> None:
    x, texts = stream(lengths)
    raw = torch.stack([NAIVE["mean"](rows) for rows in texts])
    unit, batch = raw / (raw**2).sum(-1, keepdim=True).sqrt(), batch_of(*lengths)
    assert largest(SentencePooling(normalize=True)(x, batch), unit) <= 1e-12
    assert largest(SentencePooling(normalize=True)(x, batch, normalize=False), raw) <= 1e-12
    assert largest(SentencePooling(normalize=False)(x, batch, normalize=True), unit) <= 1e-12


def test_the_pooler_reads_the_first_token() -> None:
    pooler = Pooler(WIDTH).double()
    perturb(pooler)
    x, texts = stream([3, 1, 4])
    expected = torch.stack([torch.tanh(pooler.dense.weight @ rows[0] + pooler.dense.bias) for rows in texts])
    assert largest(pooler(x, batch_of(3, 1, 4)), expected) <= 1e-12
