"""Linear maps through oneDNN with weights packed once: the only place that touches PyTorch's private operators.

They are what PyTorch's own compiler calls. Each is tried at first use; where one is absent or gives other numbers
the public `F.linear` takes its place, with one remark.

Why they are worth it apart from speed: a row of the result has the same bits whatever other rows there are, for
any number of rows and with one thread or two. MKL behind `F.linear` does not do that below about 12 rows.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.config import Activation
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


class Linear(nn.Module):
    """φ(W x + b), without gradients. Shapes: (N, in) → (N, out).

    Float32 on a CPU is packed; anything else goes through `F.linear`. The bits of a row do not depend on the
    others where `packed` is true.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> None:
        super().__init__()
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        fits = weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.numel() > 0
        self.packed = fits and _works(activation)
        self.rows = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self.packed else weight
        self.offset = bias
        self.name, self.variant = ("none", "") if activation is None else FUSED[activation]
        self.activation = None if activation is None else ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        if self.packed:
            return _pointwise(x, self.rows, self.offset, self.name, self.variant)
        x = F.linear(x, self.rows, self.offset)
        return x if self.activation is None else self.activation(x)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + W x + b, for a map without activation; (N, in), (N, out) → (N, out)."""
        if self.packed and _adds():
            return _pointwise_add(x, residual, self.rows, self.offset)
        return residual + self(x)


def _pointwise(x: Tensor, rows: Tensor, bias: Tensor | None, name: str, variant: str) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, rows, bias, name, [], variant)


def _pointwise_add(x: Tensor, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.binary(x, residual, rows, bias, "add")


@cache
def _works(activation: Activation | None) -> bool:
    """Whether packed maps with this activation run here and give the numbers they should."""
    name, variant = ("none", "") if activation is None else FUSED[activation]

    def run(x: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        return _pointwise(x, rows, bias, name, variant)

    def plain(x: Tensor) -> Tensor:
        return x if activation is None else ACTIVATIONS[activation]()(x)

    return _tried(f"with activation {activation}" if activation else "", run, plain)


@cache
def _adds() -> bool:
    """Whether packed maps that add a residual run here and give the numbers they should."""

    def run(x: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        return _pointwise_add(x, torch.ones(x.shape[0], bias.shape[0]), rows, bias)

    return _tried("with a residual", run, lambda x: x + 1)


_remarked: list[str] = []


def _tried(what: str, run: Callable[[Tensor, Tensor, Tensor], Tensor], plain: Callable[[Tensor], Tensor]) -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes: tuple[Any, ...] = ((5, 24), (17, 24), (17,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    try:
        rows = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        result = run(x, rows, bias)
        good = bool((result - plain(F.linear(x, weight, bias))).abs().max() < 1e-4)
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
