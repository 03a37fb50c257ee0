"""The blocks of a lowered encoder as one program of kernel calls, where every part of them is a kernel.

The same kernels in the same order as module by module, so the same bits; but for few tokens Python between the
kernels takes longer than they do.
"""

import torch
from torch import Tensor, nn

from addnorm.engine import compiled
from addnorm.engine.attention import FastAttention
from addnorm.engine.compiled.linear import ADD, MULTIPLY, Product
from addnorm.engine.compiled.program import Program
from addnorm.engine.int8 import ByteFeedForward, ByteMap, BytesThrough
from addnorm.engine.operators import Map, RowBytes
from addnorm.engine.shared import Pass
from addnorm.engine.walk import FastFeedForward, FastNorm, FastRotary, FastUnit
from addnorm.nn.encoder import Block, Encoder

STREAM = 0


class _NoKernelError(Exception):
    """Some part has to be computed by its module."""


class Blocks:
    """The program of an encoder's blocks. Shapes: (N, D) → (N, D), the very same tensor."""

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        self.program, self.rotaries = Program(encoder.config.width, dtype), list[FastRotary]()
        self.first: FastAttention | None = None
        self.biased = encoder.position_bias is not None
        for block in encoder.blocks:
            assert isinstance(block, Block)
            if block.bottleneck is not None or block.convolution is not None:
                raise _NoKernelError
            for unit in (block.attention, block.feedforward, *block.further):
                self._unit(unit)

    def __call__(self, x: Tensor, shared: Pass) -> Tensor:
        """(N, D) → (N, D)."""
        x, first, longest = x.contiguous(), self.first, shared.batch.lengths[-1]
        bias = None
        if first is not None and not shared.is_plain(first.inner):
            bias = shared.bias(first.inner, longest, x.new_empty(0, dtype=torch.float32))
        for rotary in self.rotaries:
            rotary.check(shared)
        tables = [shared.rotation(rotary.rotary, torch.float32) for rotary in self.rotaries]
        self.program(x, shared.batch.offsets, shared.pairs, bias, tables)
        return x

    def _unit(self, unit: nn.Module) -> None:
        if type(unit) is not FastUnit:
            raise _NoKernelError
        part = unit.sublayer
        if type(part) is FastAttention:
            self._attention(part, self._read(unit, part.parts[0]))
        elif type(part) is FastFeedForward:
            self._feedforward(part, self._read(unit, part.first))
        elif type(part) is ByteFeedForward:
            self._feedforward(part, self._bytes(part.reads, self._read(unit, None)))
        elif type(part) is BytesThrough:
            self._bytes_through(part, self._read(unit, None))
        else:
            raise _NoKernelError
        if unit.norm_out is not None:
            self._norm(unit.norm_out, STREAM, STREAM)

    def _read(self, unit: FastUnit, reader: nn.Module | None) -> int:
        """What the sub-layer reads: the stream or its norm, in the dtype of its first map."""
        own = self.program.dtype(STREAM)
        dtype = reader.dtype if isinstance(reader, Map) else own if unit.norm_in is None else torch.float32
        if unit.norm_in is None and dtype == own:
            return STREAM
        to = self.program.buffer("normed", self.program.width(STREAM), dtype)
        return self.program.convert(STREAM, to) if unit.norm_in is None else self._norm(unit.norm_in, STREAM, to)

    def _norm(self, norm: nn.Module, x: int, to: int) -> int:
        if type(norm) is not FastNorm or not norm.fits:
            raise _NoKernelError
        return self.program.norm(norm.kernel, x, to)

    def _attention(self, part: FastAttention, x: int) -> None:
        inner, config, program = part.inner, part.config, self.program
        if len(part.parts) != 1 or not part.turns_only or inner.position_bias is not None:
            raise _NoKernelError
        if self.first is None:
            self.first = part
        if config.window is not None and self.biased:
            raise _NoKernelError  # each window would make another bias
        qkv = self._map(part.parts[0], x, "qkv")
        counts = (config.heads, config.key_heads, config.key_heads)
        column = 0
        for rotary, heads in zip((inner.query_rotary, inner.key_rotary, inner.value_rotary), counts, strict=True):
            if isinstance(rotary, FastRotary):
                half, turned = rotary.rotary.width // 2, rotary.rotary.config.interleaved
                program.rotate(qkv, column, heads, config.head_width, half, turned, self._table(rotary))
            column += heads * config.head_width
        mix = program.buffer("mix", part.widths[0], part.output.dtype)
        program.attention(qkv, *counts[:2], config.head_width, config.window, inner.scale, mix)
        self._join(part.output, mix)

    def _table(self, rotary: FastRotary) -> int:
        """The number of its angles."""
        same = [(own.rotary.config, own.rotary.width) for own in self.rotaries]
        key = (rotary.rotary.config, rotary.rotary.width)
        if key not in same:
            self.rotaries.append(rotary)
            return len(same)
        return same.index(key)

    def _feedforward(self, part: FastFeedForward, x: int) -> None:
        inner = self._map(part.first, x, "inner")
        if part.up is not None:
            inner = self._map(part.up, x, "gated", inner)
        if part.norm is not None:
            inner = self._norm(part.norm, inner, inner)
        self._join(part.down, inner)

    def _bytes_through(self, part: BytesThrough, x: int) -> None:
        x = self._bytes(part.reads, x)
        self._add(part.kept_down, self._map(part.kept_up, x, "kept"))
        self._add(part.down, self._map(part.up, x, "inner"))

    def _bytes(self, reads: RowBytes, x: int) -> int:
        to = self.program.buffer("bytes", compiled.row_of_bytes(self.program.width(x)), torch.uint8)
        return self.program.to_bytes(reads.factor, x, to)

    def _map(self, module: nn.Module, x: int, name: str, gate: int = -1) -> int:
        if type(module) is ByteMap and gate < 0:
            x, module = self._bytes(module.reads, x), module.product
        product = _own(module)
        self._check(product, x)
        return self.program.linear(product, x, name, gate, MULTIPLY if gate >= 0 else 0)

    def _join(self, module: nn.Module, x: int) -> None:
        """Add what a sub-layer ends with to the stream."""
        if type(module) is ByteMap:
            self._add(module.product, self._bytes(module.reads, x))
        else:
            self._add(module, x)

    def _add(self, module: nn.Module, x: int) -> None:
        product = _own(module)
        self._check(product, x)
        self.program.linear(product.writing(self.program.dtype(STREAM)), x, "stream", STREAM, ADD)

    def _check(self, product: Product, x: int) -> None:
        if (product.reads, product.width) != (self.program.dtype(x), self.program.width(x)):
            raise _NoKernelError


def _own(module: nn.Module) -> Product:
    product = getattr(module, "product", None)
    if not isinstance(product, Product):
        raise _NoKernelError
    return product


def program_of(encoder: Encoder, dtype: torch.dtype) -> Blocks | None:
    """The program of the blocks, for a stream in `dtype`; None where a module has to compute some part."""
    if compiled.best() is None or dtype not in compiled.KINDS or encoder.wiring is not None:
        return None
    try:
        return Blocks(encoder, dtype)
    except _NoKernelError:
        return None
