"""A list of kernel calls that runs without a return to Python between them."""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from addnorm.engine import compiled
from addnorm.engine.compiled.linear import ALONE, KINDS, Product

LINEAR, ATTENTION, NORM, TO_BYTES, ROTATE, CONVERT = range(6)


class _Buffer(ctypes.Structure):
    """`struct buffer` of program.c."""

    _fields_ = (("width", c_int64), ("kind", c_int64), ("brief", c_int64))


class _Step(ctypes.Structure):
    """`struct step` of program.c."""

    _fields_ = (
        *((name, c_int64) for name in ("what", "from_", "to", "other", "how")),
        ("with_", c_void_p),
        *((name, c_int64) for name in ("heads", "key_heads", "width", "window")),
        *((name, c_int64) for name in ("column", "half", "interleaved", "table")),
        ("scale", c_float),
    )


class _Pass(ctypes.Structure):
    """`struct pass` of program.c."""

    _fields_ = (
        ("buffers", c_void_p),
        ("count", c_int64),
        ("stream", c_void_p),
        ("rows", c_int64),
        ("offsets", c_void_p),
        ("texts", c_int64),
        ("pairs", c_int64),
        ("bias", c_void_p),
        ("bias_head", c_int64),
        ("bias_step", c_int64),
        ("tables", c_void_p),
        ("start", c_void_p),
        ("threads", c_int64),
        ("worth", c_int64),
        ("places", c_void_p),
    )


class Program:
    """Steps over buffers of N rows, of which the first, number 0, is the stream: (N, width) of a dtype.

    A buffer has a name, so that blocks share it. Each method adds a step and returns the buffer that it writes.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        kernels = compiled.best()
        assert kernels is not None, "ask for kernels first"
        self.kernels = kernels
        self.buffers = {("stream", width, dtype): 0}
        self.steps: list[_Step] = []
        self.kept: list[Any] = []  # what the steps point to
        self.ready: Any = None

    def buffer(self, name: str, width: int, dtype: torch.dtype) -> int:
        """The number of a buffer, known or new."""
        return self.buffers.setdefault((name, width, dtype), len(self.buffers))

    def width(self, buffer: int) -> int:
        """Of a buffer's rows."""
        return list(self.buffers)[buffer][1]

    def dtype(self, buffer: int) -> torch.dtype:
        """Of a buffer's numbers."""
        return list(self.buffers)[buffer][2]

    def linear(self, product: Product, x: int, name: str, other: int = -1, how: int = ALONE) -> int:
        """φ(W x + b), with the other added or multiplied."""
        to = self.buffer(name, product.outs, product.writes)
        return self._step(product, LINEAR, x, to, other=other, how=how, with_=product.at)

    def attention(
        self, x: int, heads: int, key_heads: int, width: int, window: int | None, scale: float, to: int
    ) -> int:
        """Of queries, keys and values beside each other in x."""
        sizes = {"heads": heads, "key_heads": key_heads, "width": width}
        return self._step(None, ATTENTION, x, to, **sizes, window=-1 if window is None else window, scale=scale)

    def norm(self, norm: compiled.Norm, x: int, to: int) -> int:
        """Of each row."""
        return self._step(norm, NORM, x, to, with_=ctypes.addressof(norm))

    def to_bytes(self, factor: Tensor | None, x: int, to: int) -> int:
        """Floats as bytes, each row with a step and a zero of its own."""
        return self._step(factor, TO_BYTES, x, to, with_=None if factor is None else factor.data_ptr())

    def convert(self, x: int, to: int) -> int:
        """The same numbers in another dtype."""
        return self._step(None, CONVERT, x, to)

    def rotate(self, x: int, column: int, heads: int, width: int, half: int, interleaved: bool, table: int) -> int:
        """Heads that begin at a column, in place; `table`: whose angles, of those given to a pass."""
        sizes = {"column": column, "heads": heads, "width": width, "half": half}
        return self._step(None, ROTATE, x, x, **sizes, interleaved=interleaved, table=table)

    def _step(self, kept: Any, what: int, x: int, to: int, **fields: Any) -> int:
        self.kept.append(kept)
        self.steps.append(_Step(what=what, from_=x, to=to, **{"other": -1, **fields}))
        self.ready = None
        return to

    def __call__(
        self, stream: Tensor, offsets: Tensor, pairs: int, bias: Tensor | None, tables: list[tuple[Tensor, Tensor]]
    ) -> None:
        """Run all steps on a stream, in place; `tables`: cos and sin of rotations; the rest as in `attend`."""
        steps, buffers = self.ready = self.ready or self._made()
        angles = (c_void_p * (2 * len(tables)))(*(part.data_ptr() for pair in tables for part in pair))
        terms: tuple[int | None, int, int] = (None, 0, 0)
        if bias is not None:
            terms = bias.data_ptr(), bias.stride(0) if len(bias) > 1 else 0, bias.stride(1)
        start, worth = compiled.starter()
        given = _Pass(
            ctypes.addressof(buffers), len(buffers), stream.data_ptr(), stream.shape[0],
            offsets.data_ptr(), offsets.shape[0] - 1, pairs, *terms,
            ctypes.addressof(angles), start, torch.get_num_threads(), worth,
        )  # fmt: skip
        if self.kernels.addnorm_program(steps, len(steps), ctypes.byref(given)):
            raise MemoryError(f"no memory for what flows between the maps of {stream.shape[0]} tokens")

    def _made(self) -> tuple[Any, Any]:
        """Steps and buffers as the kernels read them."""
        kept = {0, *(buffer for step in self.steps if step.what == ATTENTION for buffer in (step.from_, step.to))}
        shapes = [_Buffer(width, KINDS[dtype], i not in kept) for i, (_, width, dtype) in enumerate(self.buffers)]
        return (_Step * len(self.steps))(*self.steps), (_Buffer * len(shapes))(*shapes)
