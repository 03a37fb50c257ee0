"""Normalisations by name."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from addnorm.config import NormConfig, NormKind


class Affine(nn.Module):
    """g·x + b: what is left of a norm without its statistics. Shapes: (…, D) → (…, D)."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return self.weight * x if self.bias is None else self.weight * x + self.bias


class DyT(Affine):
    """g·tanh(a·x) + b (Zhu 2025)."""

    def __init__(self, width: int, bias: bool, slope: float) -> None:
        super().__init__(width, bias)
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return super().forward(torch.tanh(self.slope * x))


class Derf(Affine):
    """g·erf(a·x + s) + b (Chen 2025)."""

    def __init__(self, width: int, bias: bool, slope: float) -> None:
        super().__init__(width, bias)
        self.slope = nn.Parameter(torch.tensor(slope))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return super().forward(torch.erf(self.slope * x + self.shift))


class Times(nn.Module):
    """c·norm(x), c constant (LayerNorm scaling, Sun 2025). Shapes: (…, D) → (…, D)."""

    def __init__(self, norm: nn.Module, factor: float) -> None:
        super().__init__()
        self.norm = norm
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return self.factor * self.norm(x)


NORMS: dict[NormKind, Callable[[int, NormConfig], nn.Module]] = {
    "layer": lambda width, norm: nn.LayerNorm(width, eps=norm.eps, bias=norm.bias),
    "rms": lambda width, norm: nn.RMSNorm(width, eps=norm.eps),
    # Over the N real tokens of a packed batch: for study, a text's numbers then depend on its company.
    "batch": lambda width, norm: nn.BatchNorm1d(width, eps=norm.eps),
    "dyt": lambda width, norm: DyT(width, norm.bias, norm.slope),
    "derf": lambda width, norm: Derf(width, norm.bias, norm.slope),
    "affine": lambda width, norm: Affine(width, norm.bias),
}


def build_norm(config: NormConfig | None, width: int) -> nn.Module | None:
    """The norm a slot asks for, over `width` features; None for an empty slot."""
    if config is None:
        return None
    norm = NORMS[config.kind](width, config)
    return norm if config.factor == 1 else Times(norm, config.factor)
