"""Streams of texts: order, windows, bounded reading."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import addnorm
from addnorm.engine import stream
from tests.texts import docstrings

pytestmark = pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")


def test_a_stream_gives_the_vectors_of_encode_in_order(minilm: addnorm.Model) -> None:
    texts = docstrings(50)
    vectors = list(minilm.iter_encode(iter(texts), window=7, batch_tokens=300))
    assert np.array_equal(np.stack(vectors), minilm.encode(texts))
    assert list(minilm.iter_encode([])) == []


def test_no_more_is_read_than_a_window(minilm: addnorm.Model) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"text {read}"

    vectors = minilm.iter_encode(endless(), window=8)
    for _ in range(20):
        assert next(vectors).shape == (384,)
    assert read == 24


def test_one_remark_for_a_stream_and_errors_by_number(minilm: addnorm.Model) -> None:
    with pytest.warns(addnorm.Remark, match="3 texts are longer than 4 tokens") as remarks:
        list(minilm.iter_encode(["one two three four"] * 3 + ["one"], window=2, max_tokens=4))
    assert len(remarks) == 1
    with pytest.raises(addnorm.AddnormError, match="text 5 is a int; expected str"):
        list(minilm.iter_encode([*"abcde", 3], window=2))  # type: ignore[list-item]
    with pytest.raises(addnorm.AddnormError, match="text 1 is not valid Unicode"):
        minilm.encode(["a", "\ud800"])
    for wrong in ({"window": 0}, {"batch_tokens": 0}):
        with pytest.raises(addnorm.AddnormError, match="give at least 1"):
            list(minilm.iter_encode(["a"], **wrong))


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=300),
    batch_tokens=st.none() | st.integers(1, 3000),
    workers=st.integers(1, 8),
)
def test_batches_hold_each_text_once_and_keep_to_the_budget(
    lengths: list[int], batch_tokens: int | None, workers: int
) -> None:
    batches = stream._batches(lengths, batch_tokens, workers)
    assert sorted(text for batch in batches for text in batch) == list(range(len(lengths)))
    most = batch_tokens or stream.BATCH_TOKENS
    assert all(sum(lengths[text] for text in batch) <= most for batch in batches if len(batch) > 1)
    in_order = [lengths[text] for batch in batches for text in batch[::-1]]
    assert in_order == sorted(lengths, reverse=True)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("texts", [40, 300, 1024])
def test_workers_end_together(texts: int, workers: int) -> None:
    ends = [0] * workers  # each takes the next batch when it is done; 10 tokens take their time
    for batch in stream._batches([10] * texts, None, workers):
        ends[ends.index(min(ends))] += 10 * len(batch)
    assert max(ends) - min(ends) <= stream.FEW_TOKENS


def test_texts_of_any_size(minilm: addnorm.Model) -> None:
    vectors = minilm.encode(["", "a" * 1_000_000, "word " * 200_000])
    assert vectors.shape == (3, 384)
    assert np.isfinite(vectors).all()


def test_batches_side_by_side_leave_torch_as_it_was(minilm: addnorm.Model) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        texts = docstrings(60)
        together = minilm.encode(texts, batch_tokens=200)
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch.get_num_threads).result() == 3
        with pytest.raises(addnorm.AddnormError, match="text 1 is a int"):
            minilm.encode(["a", 1])  # type: ignore[list-item]
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
        assert np.array_equal(together, minilm.encode(texts))
    finally:
        torch.set_num_threads(before)


def test_several_threads_may_encode(minilm: addnorm.Model) -> None:
    texts = docstrings(40)
    expected = minilm.encode(texts)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(minilm.encode, [texts] * 8):
            assert np.array_equal(vectors, expected)


def test_an_error_in_a_batch_is_raised_and_ends_the_others(
    minilm: addnorm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise addnorm.AddnormError("no such batch")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(stream, "_vectors", broken)
    try:
        with pytest.raises(addnorm.AddnormError, match="no such batch"):
            minilm.encode(docstrings(40), batch_tokens=100)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
