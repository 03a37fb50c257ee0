"""Multi-head self-attention (Vaswani 2017, section 3.2)."""

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import AttentionConfig
from addnorm.nn.kernels import Kernel


class Scores(nn.Module):
    """Q Kᵀ · scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(G, H, T, K), (G, H, T, K) → (G, H, T, T)."""
        return query @ key.transpose(-2, -1) * self.scale


class Mix(nn.Module):
    """The groups' results, heads side by side, back in the order of the batch."""

    def forward(self, groups: list[Tensor], batch: Batch) -> Tensor:
        """Tensors of (G, H, T, K) → (N, H·K)."""
        rows = [mix.transpose(1, 2).flatten(0, 1).flatten(1) for mix in groups]  # (G·T, H·K)
        return rows[0] if len(rows) == len(batch) == 1 else torch.cat(rows)[batch.ungroup]


class Attention(nn.Module):
    """The sub-layer F: projections, attention within each text, output projection.

    Shapes: x (N, D) → (N, D).
    """

    def __init__(self, config: AttentionConfig, width: int) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.scale = config.head_width**-0.5
        self.query = nn.Linear(width, inner, bias=config.bias)
        self.key = nn.Linear(width, inner, bias=config.bias)
        self.value = nn.Linear(width, inner, bias=config.bias)
        self.scores = Scores(self.scale)
        self.weights = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(config.weights_dropout)
        self.mix = Mix()
        self.output = nn.Linear(inner, width, bias=config.output_bias)
        self.output_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, batch: Batch, kernel: Kernel) -> Tensor:
        """(N, D) → (N, D)."""
        query, key, value = self.query(x), self.key(x), self.value(x)  # (N, H·K)
        groups = [
            kernel.run(self._heads(query[rows]), self._heads(key[rows]), self._heads(value[rows]), self)
            for rows in (group.rows for group in batch.groups)
        ]
        return self.output_dropout(self.output(self.mix(groups, batch)))

    def _heads(self, x: Tensor) -> Tensor:
        """(G, T, H·K) → (G, H, T, K)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)
