"""Linear maps with weights packed once, by our own kernels or oneDNN's.

This is the only place that touches PyTorch's private operators. Our kernels come first, where the processor has their
instructions. oneDNN's operators are what PyTorch's own compiler calls; each is tried at first use, and where one is
absent or gives other numbers the public `F.linear` takes its place, with one remark.

Why they are worth it apart from speed: a row of the result has the same bits whatever other rows there are, for
any number of rows and with one thread or two. MKL behind `F.linear` does not do that below about 12 rows.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.config import Activation
from addnorm.engine import compiled
from addnorm.engine.compiled.linear import ADD, MULTIPLY, Product, fits, in_pairs, words
from addnorm.errors import remark
from addnorm.nn.activations import ACTIVATIONS

# What oneDNN calls an activation that it computes with the product.
FUSED: dict[Activation, tuple[str, str]] = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}

# The most bytes that our kernels multiply at once.
WORD = 4


class Map(nn.Module):
    """What an engine has in the place of a linear map; `dtype`: what it reads without a copy.

    Shapes: (N, in) → (N, out).
    """

    dtype: torch.dtype

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + W x + b, (N, in), (N, out) → (N, out)."""
        raise NotImplementedError

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        """gate·(W x + b), (N, in), (N, out) → (N, out)."""
        return self(x) * gate


class Linear(Map):
    """φ(W x + b), without gradients, in the weight's dtype; where that is bfloat16 and `widens()`, in float32.

    Shapes: (N, in) → (N, out). Float32 and bfloat16 on a CPU are packed; anything else goes through `F.linear`. The
    bits of a row do not depend on the others where there is a `product`, or `packed` is true.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> None:
        super().__init__()
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        self.activation = None if activation is None else ACTIVATIONS[activation]()
        on_cpu = weight.device.type == "cpu" and weight.numel() > 0
        own = on_cpu and fits(weight.dtype, weight.shape[1], activation)
        self.dtype = words()[weight.dtype][2] if own else weight.dtype
        self.product = Product(weight, bias, activation, self.dtype) if own else None
        packs = not own and on_cpu and self.dtype in (torch.float32, torch.bfloat16)
        self.packed = packs and _works(activation, self.dtype)
        self.rows = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self.packed else weight
        self.offset = bias
        self.name, self.variant = _fused(activation)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        x = x.to(self.dtype)
        if self.product is not None:
            return self.product(x)
        if self.packed:
            return _pointwise(x, self.rows, self.offset, self.name, self.variant)
        x = F.linear(x, self.rows, self.offset)
        return x if self.activation is None else self.activation(x)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + W x + b, for a map without activation; (N, in), (N, out) → (N, out)."""
        if self.product is not None and residual.dtype in compiled.KINDS:
            return self.product.writing(residual.dtype)(x.to(self.dtype), residual, ADD)
        if self.packed and residual.dtype == self.dtype and _adds(self.dtype):
            return _pointwise_add(x.to(self.dtype), residual, self.rows, self.offset)
        return residual + self(x)

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        """gate·(W x + b), (N, in), (N, out) → (N, out)."""
        return super().times(x, gate) if self.product is None else self.product(x.to(self.dtype), gate, MULTIPLY)


def widens() -> bool:
    """Whether our kernels multiply matrices of bfloat16 with float32, as the processor has no products of pairs."""
    known = words().get(torch.bfloat16)
    return known is not None and known[2] == torch.float32


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself."""
    return bool(_ask("_is_mkldnn_bf16_supported"))


def _ask(name: str) -> Any:
    try:
        return getattr(torch.ops.mkldnn, name)()
    except (AttributeError, RuntimeError):
        return False


def _pointwise(x: Tensor, rows: Tensor, bias: Tensor | None, name: str, variant: str) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, rows, bias, name, [], variant)


def _pointwise_add(x: Tensor, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.binary(x, residual, rows, bias, "add")


def _fused(activation: Activation | None) -> tuple[str, str]:
    return ("none", "") if activation is None else FUSED[activation]


@cache
def _works(activation: Activation | None, dtype: torch.dtype) -> bool:
    """Whether packed maps with this activation run here and give the numbers they should."""
    name, variant = _fused(activation)

    def run(x: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        return _pointwise(x, rows, bias, name, variant)

    def plain(x: Tensor) -> Tensor:
        return x if activation is None else ACTIVATIONS[activation]()(x)

    return _tried(f"with activation {activation}" if activation else "", dtype, run, plain)


@cache
def _adds(dtype: torch.dtype) -> bool:
    """Whether packed maps that add a residual run here and give the numbers they should."""

    def run(x: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        return _pointwise_add(x, torch.ones(x.shape[0], bias.shape[0], dtype=dtype), rows, bias)

    return _tried("with a residual", dtype, run, lambda x: x + 1)


_remarked: list[str] = []


def _tried(
    what: str,
    dtype: torch.dtype,
    run: Callable[[Tensor, Tensor, Tensor], Tensor],
    plain: Callable[[Tensor], Tensor],
) -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes: tuple[Any, ...] = ((5, 24), (17, 24), (17,))
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    try:
        result = run(x, torch.ops.mkldnn._reorder_linear_weight(weight, None), bias)
        expected = plain(F.linear(x.float(), weight.float(), bias.float()))
        good = bool((result - expected).abs().max() < 100 * torch.finfo(dtype).eps)
        reason = "gives other numbers"
    except (AttributeError, RuntimeError) as error:
        good, reason = False, str(error).splitlines()[0]
    if not good and not _remarked:
        _remarked.append(what)
        remark(
            f"oneDNN's packed linear map {what} cannot be used here ({reason}); the plain one is slower, "
            "and a text's vector may differ in its last bits from batch to batch"
        )
    return good


class Bytes:
    """What one byte stands for throughout: x is nearly step·(byte - zero), for x from `low` to `high`."""

    def __init__(self, low: float, high: float) -> None:
        low, high = min(low, 0.0), max(high, 0.0)
        self.step = max(high - low, 1e-8) / 255
        self.zero = round(-low / self.step)


class RowBytes(nn.Module):
    """Rows as bytes, each with a step and a zero of its own: factor·x is nearly step·(byte - zero).

    `factor` (D,) evens out features of different size, or None. Shapes: (N, D) → (N, D + more), bytes and
    at a row's end its step and zero, 8 bytes as two float32.
    """

    def __init__(self, factor: Tensor | None = None) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) → (N, D + more)."""
        if compiled.takes(x):
            return compiled.to_bytes(x, self.factor)
        x = x.float() if self.factor is None else x.float() * self.factor
        low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
        step = ((high - low) / 255).clamp(min=1e-30)
        zero = (-low / step).round()
        measured = torch.cat([step, zero], 1).view(torch.uint8)
        return torch.cat([((x / step).round() + zero).clamp(0, 255).to(torch.uint8), measured], 1)


class ByteLinear(Map):
    """φ(W x + b) of bytes, weights as bytes with a step a row. Shapes: (N, in) bytes → (N, out).

    `reads`: what the bytes of x stand for, None where each row says it itself (`RowBytes`); `writes`: the same of
    the result, or its dtype. The sums are of whole numbers, so exact: the bits of a row do not depend on the others.
    """

    dtype = torch.uint8

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        reads: Bytes | None,
        writes: Bytes | torch.dtype,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.steps = _steps(weight.detach().float())
        whole = (weight.detach().float() / self.steps[:, None]).round().to(torch.int8)
        self.inputs, self.totals = whole.shape[1], (whole.double().sum(1) * self.steps).float()
        self.offset = None if bias is None else bias.detach().float()
        # Our kernels read words of bytes, so columns of 0 fill the last one.
        missing = -self.inputs % WORD
        own = fits(torch.int8, self.inputs + missing, activation)
        self.reads, self.rounds = reads, isinstance(writes, Bytes)
        self.writes = (writes.step, writes.zero, torch.uint8) if isinstance(writes, Bytes) else (1.0, 0, writes)
        self.product = self._product(F.pad(whole, (0, missing)), activation) if own else None
        self.rows = None if own else torch.ops.onednn.qlinear_prepack(whole.contiguous(), None)
        self.zeros = torch.zeros(len(whole), dtype=torch.int32)
        # A row that says what it stands for is filled up already.
        self.missing = missing if own and reads is not None else 0
        self.name, self.variant = _fused(activation)
        self.activation = None if activation is None else ACTIVATIONS[activation]()

    def _product(self, whole: Tensor, activation: Activation | None) -> Product:
        step, offset, dtype = self.writes
        reads, bias, steps, totals = self.reads, self.offset, self.steps, None
        if reads is None:
            totals = self.totals
        else:  # what the zero of x adds to every sum comes off with the bias
            taken = self.totals.double() * reads.zero * reads.step
            bias, steps = -taken if bias is None else bias - taken, steps * reads.step
        return Product(whole, bias, activation, dtype, 1 / step, offset, steps, totals)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        x = self._filled(x)
        if self.product is not None:
            return self.product(x)
        if self.reads is not None:
            reads = (self.reads.step, self.reads.zero)
            return self._pointwise(x, reads, self.offset, self.writes, self.name, self.variant)
        measured = x[:, self.inputs :].contiguous().view(torch.float32)
        step, zero = measured[:, :1], measured[:, 1:]
        y = self._pointwise(x[:, : self.inputs].contiguous(), (1.0, 0), None, (1.0, 0, torch.float32), "none", "")
        y = (y - self.totals * zero) * step
        y = y if self.offset is None else y + self.offset
        y = y if self.activation is None else self.activation(y)
        return _quantise(y, *self.writes[:2]) if self.rounds else y.to(self.writes[2])

    def _filled(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, self.missing)) if self.missing else x

    def _pointwise(self, x: Tensor, reads: Any, bias: Tensor | None, writes: Any, name: str, variant: str) -> Tensor:
        weight = (self.rows, self.steps, self.zeros)
        return torch.ops.onednn.qlinear_pointwise(x, *reads, *weight, bias, *writes, name, [], variant)

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        """gate·(W x + b), for floats as result, (N, in), (N, out) → (N, out)."""
        return super().times(x, gate) if self.product is None else self.product(self._filled(x), gate, MULTIPLY)

    def add_to(self, total: Tensor, x: Tensor) -> Tensor:
        """total ← total + W x + b, for a float32 result; (N, out), (N, in) → (N, out), the very same."""
        if self.product is not None:
            return self.product(self._filled(x), total, ADD, total)
        return total.add_(self(x))


def _steps(weight: Tensor) -> Tensor:
    """What 1 stands for in each row of whole numbers up to 127, (out, in) → (out,)."""
    sizes = weight.abs()
    largest = sizes.amax(1)
    if in_pairs():  # rounding adds 1 to two neighbours at most: 128 together
        largest = F.pad(sizes, (0, sizes.shape[1] % 2)).view(len(sizes), -1, 2).sum(2).amax(1)
    return largest.clamp(min=1e-12) / 127


def _quantise(x: Tensor, step: float, zero: int) -> Tensor:
    """Float32 → uint8, rounded half to even and cut."""
    if _quantises():
        return _whole(torch.quantize_per_tensor(x, step, zero, torch.quint8))
    return (x * (1 / step)).round_().add_(zero).clamp_(0, 255).to(torch.uint8)


def _whole(x: Tensor) -> Tensor:
    """The bytes of a quantised tensor, not copied (`int_repr` copies them one by one)."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage(), 0, x.shape, x.stride())


@cache
def _quantises() -> bool:
    """Whether PyTorch's vectorised rounding to bytes is there: it is three times as fast, and due to go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is due to go
        try:
            x = torch.tensor([[-9.0, -0.5, 0.0, 0.26, 9.0]])
            return _whole(torch.quantize_per_tensor(x, 0.5, 4, torch.quint8)).tolist() == [[0, 3, 4, 5, 22]]
        except (AttributeError, RuntimeError, TypeError):
            return False


@cache
def has_bytes() -> bool:
    """Whether maps of bytes run here and give the numbers they should, also the largest."""
    x = torch.tensor([[255] * 64, [0] * 64, list(range(0, 128, 2))], dtype=torch.uint8)
    weight = torch.cat([torch.full((1, 64), 1.0), torch.full((1, 64), -1.0), torch.linspace(-1, 1, 64)[None]])
    try:
        product = ByteLinear(weight, torch.ones(3), Bytes(-7.0, 248.0), torch.float32)
        steps = product.steps[:, None]
        expected = F.linear(x.float() - 7, (weight / steps).round() * steps, torch.ones(3))
        return bool((product(x) - expected).abs().max() < 1e-2)
    except (AttributeError, RuntimeError):
        return False
