"""What reads the stream after the last block: BERT's pooler, and sentence pooling."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch


class Pooler(nn.Module):
    """tanh(W·x_first + b): the state of the first token, projected (Devlin 2019). Shapes: (N, D) → (B, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = nn.Tanh()

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(N, D) → (B, D)."""
        return self.activation(self.dense(x[batch.offsets[:-1]]))


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
