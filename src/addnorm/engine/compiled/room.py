"""Memory for placed matrices, in pages of 2 MB where the system has them.

A few tokens need every matrix once, from memory; of pages of 4 kB the processor would have to look up thousands.
"""

import mmap
from contextlib import suppress
from threading import Lock
from weakref import ReferenceType, ref

import torch
from torch import Tensor

# Bytes taken from the system at a time, and in a line of the cache, on which pieces begin.
SIZE, LINE = 32 << 20, 64


class Room:
    """Bytes of which pieces are handed out."""

    def __init__(self, size: int) -> None:
        self.used = 0
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            self.bytes = torch.empty(size, dtype=torch.uint8)
            return
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # from a system that was built without
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    @property
    def left(self) -> int:
        """Bytes that nobody has."""
        return len(self.bytes) - self.used


_last: list[ReferenceType[Room]] = []
_one_at_a_time = Lock()


def take(count: int) -> tuple[Tensor, Room]:
    """So many bytes, (count,) uint8, and what they are part of, to be kept as long as they are."""
    size = -(-count // LINE) * LINE
    with _one_at_a_time:
        room = _last[0]() if _last else None
        if room is None or room.left < size:
            room = Room(max(size, SIZE))
            _last[:] = [ref(room)]
        room.used += size
        return room.bytes[room.used - size : room.used][:count], room
