"""The same bits for a text alone, in any company, in any order, with one thread or two."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import addnorm
from addnorm.batch import Batch
from addnorm.config import PositionBiasConfig, RotaryConfig
from addnorm.engine import Engine, lower
from addnorm.engine.operators import has_bfloat16, has_bytes, widens
from addnorm.nn.encoder import Encoder
from tests.nn.drawn import LONGEST, build, ids_of, small
from tests.texts import docstrings

pytestmark = pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
TEXTS = docstrings(60)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Where the processor has no products of its own for a precision, its bits are not promised.
PROMISED = ["float32", *["bfloat16"] * (has_bfloat16() or widens()), *["int8"] * has_bytes()]


@pytest.fixture(scope="module")
def alone(minilm: addnorm.Model) -> dict[str, np.ndarray]:
    with threads(1):
        return {p: np.stack([minilm.encode(text, precision=p) for text in TEXTS]) for p in PROMISED}


@settings(max_examples=24, deadline=None)
@given(
    precision=st.sampled_from(PROMISED),
    chosen=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=24),
    tokens=st.sampled_from((64, 512, 2048)),
    count=st.sampled_from((1, 2)),
)
def test_minilm(
    minilm: addnorm.Model, alone: dict[str, np.ndarray], precision: str, chosen: list[int], tokens: int, count: int
) -> None:
    with threads(count):
        vectors = minilm.encode([TEXTS[i] for i in chosen], precision, batch_tokens=tokens)
    assert np.array_equal(vectors, alone[precision][chosen])


MAKES = {
    "plain": {},
    "gated": {"feedforward": {"gated": True, "activation": "silu"}},
    "windowed": {"attention": {"window": 3}},
    "on lines": {"attention": {"heads": 2, "head_width": 16}},
    "biased": {"attention": {"position_bias": PositionBiasConfig()}},
    "rotary": {"attention": {"rotary": RotaryConfig(), "kv_heads": 1}},
    "one head": {"attention": {"heads": 1, "head_width": 7}},
}


@cache
def engine_of(make: str, precision: str) -> Engine:
    encoder: Encoder = build(small(**MAKES[make])).float()
    return lower(encoder, precision)


@settings(max_examples=100, deadline=None)
@given(
    make=st.sampled_from(list(MAKES)),
    precision=st.sampled_from(PROMISED),
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=12),
    count=st.sampled_from((1, 2)),
    data=st.data(),
)
def test_small_random_encoders(
    make: str, precision: str, lengths: list[int], count: int, data: st.DataObject
) -> None:
    texts, engine = ids_of(*lengths), engine_of(make, precision)
    order = data.draw(st.permutations(range(len(texts))))
    batch = Batch.pack([texts[i] for i in order])
    with threads(count):
        rows = engine(batch)
    with threads(1):
        for i, span in zip(order, batch.spans, strict=True):
            assert torch.equal(engine(Batch.pack([texts[i]])), rows[span])
