"""φ(W x + b) by the kernels, the matrix placed once."""

import copy
import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.config import Activation
from addnorm.engine import compiled
from addnorm.engine.compiled.room import take

# How the kernels call activations.
ACTIVATIONS: dict[Activation | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5}
KINDS = {**compiled.KINDS, torch.uint8: 2}
ALONE, ADD, MULTIPLY = range(3)


class _Map(ctypes.Structure):
    """`struct linear` of linear.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("blocks", "bias", "steps", "totals")),
        *((name, c_int64) for name in ("outs", "depth", "what", "activation", "out_kind")),
        ("scale", c_float),
        ("zero", c_float),
    )


def fits(dtype: torch.dtype, inputs: int, activation: Activation | None) -> bool:
    """Whether the kernels multiply matrices of this dtype and so many columns."""
    known = words()
    return dtype in known and activation in ACTIVATIONS and inputs > 0 and inputs % known[dtype][1] == 0


def words() -> dict[torch.dtype, tuple[int, int, torch.dtype]]:
    """By the dtype of a matrix: how the kernels call its words, numbers in one, the dtype of x."""
    kernels = compiled.best()
    if kernels is None:
        return {}
    pairs = kernels.addnorm_bfloats_in_word() == 2
    return {
        torch.float32: (0, 1, torch.float32),
        torch.bfloat16: (1, 2, torch.bfloat16) if pairs else (1, 1, torch.float32),
        torch.int8: (2, 4, torch.uint8),
    }


def in_pairs() -> bool:
    """Whether two neighbours in a row of int8 may have sizes of 128 together at most, for the sums to be exact."""
    kernels = compiled.best()
    return kernels is not None and bool(kernels.addnorm_in_pairs())


class Product:
    """A linear map of float32, bfloat16 or (a matrix of int8) bytes. Shapes: (N, in) → (N, out).

    `writes`: the dtype of the result; bytes are round(y·scale) + zero. Of bytes, `steps` (out,) is what 1 in a sum
    Σ W x stands for; with `totals` (out,), the sums of W's rows times that, each row of x has a step and a zero of
    its own at its end, as `to_bytes` makes them. A row's bits do not depend on the others.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation | None,
        writes: torch.dtype,
        scale: float = 1.0,
        zero: int = 0,
        steps: Tensor | None = None,
        totals: Tensor | None = None,
    ) -> None:
        kernels = compiled.best()
        assert kernels is not None, "ask `fits` first"
        self.run = kernels.addnorm_linear
        what, together, self.reads = words()[weight.dtype]
        self.outs, self.inputs = weight.shape
        self.writes, self.size, self.work = writes, self.reads.itemsize, self.outs * self.inputs
        panel = kernels.addnorm_panel()
        rounded = -(-self.outs // panel) * panel

        def padded(part: Tensor | None) -> Tensor | None:
            return None if part is None else F.pad(part.float(), (0, rounded - self.outs)).contiguous()

        self.width = self.inputs if totals is None else compiled.row_of_bytes(self.inputs)
        self.parts = padded(bias), padded(steps), padded(totals)
        self.map = _Map(
            None, *(None if part is None else part.data_ptr() for part in self.parts),
            self.outs, self.inputs // together, what, ACTIVATIONS[activation], KINDS[writes], scale, zero,
        )  # fmt: skip
        self.at = ctypes.addressof(self.map)
        weight = weight.contiguous()
        blocks, self.room = take(kernels.addnorm_room(self.at))
        kernels.addnorm_place(self.at, weight.data_ptr(), blocks.data_ptr())
        self.map.blocks = blocks.data_ptr()
        self.others: dict[torch.dtype, Product] = {}

    def writing(self, dtype: torch.dtype) -> "Product":
        """The same map with floats of another dtype as its result."""
        if dtype == self.writes:
            return self
        if dtype not in self.others:
            own = copy.copy(self)
            own.map = _Map.from_buffer_copy(self.map)
            own.map.out_kind, own.writes, own.at = KINDS[dtype], dtype, ctypes.addressof(own.map)
            self.others[dtype] = own
        return self.others[dtype]

    def __call__(self, x: Tensor, other: Tensor | None = None, how: int = ALONE, out: Tensor | None = None) -> Tensor:
        """φ(W x + b), or its sum or product with `other`, (N, out), which `out` may be; (N, in) → (N, out)."""
        shape = x.shape
        if len(shape) != 2:
            flat = None if other is None else other.flatten(0, -2)
            return self(x.flatten(0, -2), flat, how).view(*shape[:-1], self.outs)
        assert shape[1] == self.width, "an input of the map's own width"
        assert x.dtype == self.reads, "an input of the map's own dtype"
        step, beside = x.stride()
        if beside != 1:
            x, step = x.contiguous(), self.width
        rows = shape[0]
        if out is None:
            out = torch.empty(rows, self.outs, dtype=self.writes)
        at, other_step, kind = None, 0, 0
        if other is not None:
            other = other if other.stride(1) == 1 else other.contiguous()
            at, other_step, kind = other.data_ptr(), other.stride(0), KINDS[other.dtype]
        self.run(
            self.at, x.data_ptr(), step * self.size, rows, out.data_ptr(), at, other_step, kind, how,
            *compiled.helpers(rows * self.work),
        )  # fmt: skip
        return out
