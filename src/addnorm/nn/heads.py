"""What reads the stream after the last block: BERT's pooler, task heads, sentence pooling."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import HeadConfig
from addnorm.nn.activations import ACTIVATIONS
from addnorm.nn.norms import build_norm


class Pooler(nn.Module):
    """tanh(W·x_first + b): the state of the first token, projected (Devlin 2019). Shapes: (N, D) → (B, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = nn.Tanh()

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(N, D) → (B, D)."""
        return self.activation(self.dense(x[batch.offsets[:-1]]))


class Logits(nn.Module):
    """x·Wᵀ + b, with a matrix of its own or, tied, the token table's."""

    def __init__(self, features: int, outputs: int, bias: bool, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(outputs, features))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """(M, D), (V, D) → (M, outputs)."""
        return F.linear(x, table if self.weight is None else self.weight, self.bias)


class Head(nn.Module):
    """The stream as logits: dense, activation and norm where there are any, then the outputs.

    Shapes: (N, D) → (N, outputs), or (B, outputs) where the head pools.
    """

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        features = config.dense or width
        self.config = config
        self.dense = nn.Linear(width, features, bias=config.dense_bias) if config.dense else None
        self.activation = ACTIVATIONS[config.activation]() if config.activation else None
        self.norm = build_norm(config.norm, features)
        self.dropout = nn.Dropout(config.dropout)
        self.logits = Logits(features, config.outputs, config.bias, config.tied)

    def forward(self, stream: Tensor, batch: Batch, pooled: Tensor | None, table: Tensor) -> Tensor:
        """`pooled`: what the encoder's pooler gives; `table`: the token embeddings of a tied head."""
        x = stream if self.config.pool is None else _pool(self.config.pool, stream, batch, pooled)
        for step in (self.dense, self.activation, self.norm, self.dropout):
            x = x if step is None else step(x)
        return self.logits(x, table)


def _pool(kind: str, stream: Tensor, batch: Batch, pooled: Tensor | None) -> Tensor:
    if kind != "pooler":
        return POOLINGS[{"first": "cls"}.get(kind, kind)](stream, batch)
    assert pooled is not None, "a head on the pooler needs an encoder with one"
    return pooled


def _sum(x: Tensor, batch: Batch) -> Tensor:
    # One text at a time: the order of the sum, so every bit of it, is the same alone and in company.
    return torch.stack([x[span].sum(0) for span in batch.spans])


def _lengths(x: Tensor, batch: Batch) -> Tensor:
    return batch.offsets.diff()[:, None].to(x.dtype)


def _weighted_mean(x: Tensor, batch: Batch) -> Tensor:
    weights = (batch.positions + 1)[:, None].to(x.dtype)
    return _sum(x * weights, batch) / _sum(weights, batch)


# Stream (N, D) → sentence vectors (B, D); names as in sentence-transformers.
POOLINGS: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "cls": lambda x, batch: x[batch.offsets[:-1]],
    "lasttoken": lambda x, batch: x[batch.offsets[1:] - 1],
    "mean": lambda x, batch: _sum(x, batch) / _lengths(x, batch),
    "mean_sqrt_len_tokens": lambda x, batch: _sum(x, batch) / _lengths(x, batch).sqrt(),
    "weightedmean": _weighted_mean,
    "max": lambda x, batch: torch.stack([x[span].amax(0) for span in batch.spans]),
}


class SentencePooling(nn.Module):
    """The stream of each text as one vector; several modes are laid side by side.

    `normalize`: to Euclidean length 1. Shapes: (N, D) → (B, D · number of modes).
    """

    def __init__(self, modes: tuple[str, ...] = ("mean",), normalize: bool = False) -> None:
        super().__init__()
        self.modes = modes
        self.normalize = normalize

    def forward(self, x: Tensor, batch: Batch, normalize: bool | None = None) -> Tensor:
        """`normalize`: None follows the checkpoint."""
        pooled = torch.cat([POOLINGS[mode](x, batch) for mode in self.modes], dim=-1)
        follow = self.normalize if normalize is None else normalize
        return F.normalize(pooled, dim=-1) if follow else pooled

    def extra_repr(self) -> str:
        """What is pooled how."""
        settings: dict[str, Any] = {"modes": self.modes, "normalize": self.normalize}
        return ", ".join(f"{key}={value!r}" for key, value in settings.items())
