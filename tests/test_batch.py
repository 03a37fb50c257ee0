"""The packed batch."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import AddnormError, Batch

TEXTS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.data())
def test_texts_lie_end_to_end(texts: list[list[int]], data: st.DataObject) -> None:
    types = [data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))) for ids in texts]
    batch = Batch.pack(texts, types)
    assert len(batch) == len(texts)
    assert batch.lengths == tuple(map(len, texts))
    assert batch.offsets.tolist() == [sum(batch.lengths[:i]) for i in range(len(texts) + 1)]
    for tensor in (batch.ids, batch.types, batch.positions):
        assert (tensor.shape, tensor.dtype) == ((sum(batch.lengths),), torch.long)
    for ids, row, span in zip(texts, types, batch.spans, strict=True):
        assert batch.ids[span].tolist() == ids
        assert batch.types[span].tolist() == row
        assert batch.positions[span].tolist() == list(range(len(ids)))


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_groups_hold_every_row_once_and_ungroup_undoes_them(texts: list[list[int]]) -> None:
    batch = Batch.pack(texts)
    assert sorted(text for group in batch.groups for text in group.texts) == list(range(len(texts)))
    lengths = [group.rows.shape[1] for group in batch.groups]
    assert lengths == sorted(set(batch.lengths))
    for group in batch.groups:
        assert group.rows.shape[0] == len(group.texts)
        for text, rows in zip(group.texts, group.rows, strict=True):
            span = batch.spans[text]
            assert rows.tolist() == list(range(span.start, span.stop))
    x = torch.arange(3 * sum(batch.lengths)).view(-1, 3)
    grouped = torch.cat([x[group.rows].flatten(0, 1) for group in batch.groups])
    assert torch.equal(grouped[batch.ungroup], x)


def test_types_are_zero_unless_given() -> None:
    assert Batch.pack([[5, 6], [7]]).types.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("texts", "types", "says"),
    [
        ([], None, "no texts"),
        ([[1], []], None, "text 1 has no tokens"),
        ([[]], [[]], "text 0 has no tokens"),
        ([[1, 2]], [[0]], "types and ids differ in length"),
        ([[1, 2]], [[0, 0], [0]], "types and ids differ in length"),
        ([[1, 2], [3]], [[0], [0, 0]], "types and ids differ in length"),
    ],
)
def test_refused(texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, says: str) -> None:
    with pytest.raises(AddnormError, match=says):
        Batch.pack(texts, types)
