"""A system in its own process: built, in its best way for a workload, asked for a round or for its memory."""

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.bench.padded import Encode, Setting, Vectors
from addnorm.bench.systems import System
from addnorm.bench.texts import Workload
from addnorm.errors import AddnormError

# Texts of a workload whose vectors are compared.
COMPARED = 64


@dataclass(frozen=True)
class Prepared:
    """The way and batch that were fastest, and the vectors of some texts."""

    choice: str
    vectors: Vectors


@dataclass(frozen=True)
class Memory:
    """Seconds for all texts, and resident bytes before and at most during them."""

    seconds: float
    before: int
    peak: int


class Ready:
    """A built system; called with a message: a `Workload` to prepare, `memory` with one, or None for a round."""

    def __init__(self, system: System, setting: Setting) -> None:
        self.system = system
        self.ways = system.build(setting)
        self.held: tuple[str, Encode] | None = None
        self.round: Callable[[], Vectors] | None = None

    def __call__(self, message: Any) -> Any:
        """The answer to a message."""
        if isinstance(message, Workload):
            return self.prepare(message)
        if message is None:
            assert self.round is not None, "a round needs a prepared workload"
            start = time.perf_counter()
            self.round()
            return time.perf_counter() - start
        return self.memory(message[1])

    def prepare(self, workload: Workload) -> Prepared:
        """Try each way at the middle batch size, then the other sizes in the fastest way.

        Errors: no way gives finite vectors; the reason of the last.
        """
        sizes = workload.sizes[:1] if workload.single else self.system.sizes or workload.sizes
        middle, tried, failed = sizes[len(sizes) // 2], [], None
        for name in self.ways:
            try:
                tried.append((self._timed(workload, name, middle), name, middle))
            except Exception as error:  # another way may do
                failed = error
        if not tried:
            raise failed or AddnormError("there is no way to run it")
        best = min(tried)
        best = min(
            [best, *((self._timed(workload, best[1], size), best[1], size) for size in sizes if size != middle)]
        )
        _, name, size = best
        encode = self._encode(name)
        self.round = lambda: _run(encode, workload, size)
        vectors = self.round()
        batch = "" if len(sizes) == 1 else f"{size} {'tokens' if self.system.sizes else 'texts'}"
        choice = ", ".join(part for part in (name, batch) if part)
        return Prepared(choice, vectors[:: max(1, len(vectors) // COMPARED)][:COMPARED].astype(np.float32))

    def memory(self, workload: Workload) -> Memory:
        """Encode all texts once, watching what is resident."""
        sizes = self.system.sizes or workload.sizes
        encode, size = self._encode(next(iter(self.ways))), sizes[len(sizes) // 2]
        encode(workload.texts[:2], size, workload.max_tokens)
        _forget_peak()
        before, start = resident(), time.perf_counter()
        encode(workload.texts, size, workload.max_tokens)
        return Memory(time.perf_counter() - start, before, max(before, peak()))

    def _encode(self, name: str) -> Encode:
        # One at a time: each holds weights of its own.
        if self.held is None or self.held[0] != name:
            self.held = None
            self.held = name, self.ways[name]()
        return self.held[1]

    def _timed(self, workload: Workload, name: str, size: int) -> float:
        encode = self._encode(name)
        encode(workload.texts[: 1 if workload.single else 2 * size], size, workload.max_tokens)
        start = time.perf_counter()
        vectors = _run(encode, workload, size)
        if not np.isfinite(vectors).all():
            raise AddnormError("gives vectors that are not finite")
        return time.perf_counter() - start


def _run(encode: Encode, workload: Workload, size: int) -> Vectors:
    if not workload.single:
        return encode(workload.texts, size, workload.max_tokens)
    return np.concatenate([encode([text], size, workload.max_tokens) for text in workload.texts])


def resident() -> int:
    """Bytes of this process in memory now, where Linux says so; else at most so far."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return peak()


def peak() -> int:
    """Bytes of this process in memory at most."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _forget_peak() -> None:
    with suppress(OSError):  # Linux alone can
        Path("/proc/self/clear_refs").write_text("5")
