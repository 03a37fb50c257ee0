"""Memory for placed matrices."""

import gc
import mmap
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.engine.compiled import room
from addnorm.engine.compiled.room import LINE, Room, take


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=20))
def test_pieces_begin_on_lines_and_do_not_meet(counts: list[int]) -> None:
    pieces = [take(count)[0] for count in counts]
    for i, piece in enumerate(pieces):
        assert piece.data_ptr() % LINE == 0
        piece.fill_(i)
    assert [piece.tolist() for piece in pieces] == [[i] * count for i, count in enumerate(counts)]


def test_more_than_a_room_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SIZE", 4 * LINE)
    monkeypatch.setattr(room, "_last", [])
    (first, one), (second, other) = take(3 * LINE), take(9 * LINE)
    assert one is not other
    assert (len(first), len(second)) == (3 * LINE, 9 * LINE)


def test_a_room_goes_with_its_last_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SIZE", 1 << 20)
    monkeypatch.setattr(room, "_last", [])
    first, second = take(100), take(100)
    assert first[1] is second[1]
    alive = ref(first[1])
    del first
    gc.collect()
    assert alive() is not None
    del second
    gc.collect()
    assert alive() is None
    assert take(100)[1].left == (1 << 20) - 2 * LINE


def test_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SIZE", 64 * LINE)
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda _: take(LINE), range(200)))
    assert len({piece.data_ptr() for piece, _ in pieces}) == 200


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without large pages")
def test_a_system_that_refuses_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1)
    assert torch.equal(Room(100).bytes, torch.zeros(100, dtype=torch.uint8))


def test_a_system_without_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert Room(100).left == 100
