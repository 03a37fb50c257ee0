"""One Add & Norm unit:  x ← N_out(α·x + β·N_branch(F(N_in(x))))."""

from typing import Any

import torch
from torch import Tensor, nn

from addnorm.config import Learned, UnitConfig
from addnorm.nn.norms import build_norm


class Scale(nn.Module):
    """x ↦ a·x, with a constant a, a learned scalar, or a learned vector (D,); a = 1 multiplies nothing."""

    def __init__(self, value: float | Learned, width: int) -> None:
        super().__init__()
        self.value = value
        if isinstance(value, Learned):
            self.weight = nn.Parameter(torch.full((width,) if value.shape == "vector" else (), float(value.init)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) → (N, D)."""
        if isinstance(self.value, Learned):
            return self.weight * x
        return x if self.value == 1 else self.value * x


class Add(nn.Module):
    """The residual connection: α·x + branch."""

    def __init__(self, alpha: float | Learned, width: int) -> None:
        super().__init__()
        self.alpha = Scale(alpha, width)

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        """(N, D), (N, D) → (N, D)."""
        return self.alpha(x) + branch


class AddNorm(nn.Module):
    """A sub-layer F in its residual connection and normalisations.

    The slots are modules; an absent norm is None. What else F needs (the batch, a kernel) passes through.
    Shapes: x (N, D) → (N, D).
    """

    def __init__(self, sublayer: nn.Module, config: UnitConfig, width: int) -> None:
        super().__init__()
        self.norm_in = build_norm(config.norm_in, width)
        self.sublayer = sublayer
        self.norm_branch = build_norm(config.norm_branch, width)
        self.branch = Scale(config.beta, width)
        self.add = Add(config.alpha, width)
        self.norm_out = build_norm(config.norm_out, width)

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        """(N, D) → (N, D)."""
        return self.join(x, self.compute(x, *inputs))

    def compute(self, x: Tensor, *inputs: Any) -> Tensor:
        """What the unit adds, β·N_branch(F(N_in(x))), (N, D) → (N, D)."""
        h = x if self.norm_in is None else self.norm_in(x)
        h = self.sublayer(h, *inputs)
        return self.branch(h if self.norm_branch is None else self.norm_branch(h))

    def join(self, x: Tensor, branch: Tensor) -> Tensor:
        """N_out(α·x + branch), (N, D), (N, D) → (N, D)."""
        x = self.add(x, branch)
        return x if self.norm_out is None else self.norm_out(x)
