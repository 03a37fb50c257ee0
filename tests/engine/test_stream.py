"""Streams of texts: order, windows, bounded reading."""

from collections.abc import Iterator

import numpy as np
import pytest

import addnorm
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


def test_texts_of_any_size(minilm: addnorm.Model) -> None:
    vectors = minilm.encode(["", "a" * 1_000_000, "word " * 200_000])
    assert vectors.shape == (3, 384)
    assert np.isfinite(vectors).all()
