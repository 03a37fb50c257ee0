"""The feed-forward sub-layer, plain and gated."""

from torch import Tensor, nn

from addnorm.config import FeedForwardConfig
from addnorm.nn.activations import ACTIVATIONS
from addnorm.nn.norms import build_norm


class Product(nn.Module):
    """activation ⊙ up."""

    def forward(self, activation: Tensor, up: Tensor) -> Tensor:
        """(N, F), (N, F) → (N, F)."""
        return activation * up


class FeedForward(nn.Module):
    """F(x) = down(φ(up(x))); gated: down(φ(gate(x)) ⊙ up(x)) (Shazeer 2020).

    Shapes: x (N, D) → (N, D), through (N, F).
    """

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, config.width, bias=config.bias)
        self.gate = nn.Linear(width, config.width, bias=config.bias) if config.gated else None
        self.product = Product() if config.gated else None
        self.activation = ACTIVATIONS[config.activation]()
        self.inner_norm = build_norm(config.inner_norm, config.width)
        self.inner_dropout = nn.Dropout(config.inner_dropout)
        self.down = nn.Linear(config.width, width, bias=config.output_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) → (N, D)."""
        up = self.up(x)  # (N, F)
        h = self.activation(up if self.gate is None else self.gate(x))
        h = h if self.product is None else self.product(h, up)
        h = h if self.inner_norm is None else self.inner_norm(h)
        return self.dropout(self.down(self.inner_dropout(h)))
