"""What reads the stream after the last block: BERT's pooler, task heads, sentence pooling."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import Activation, HeadConfig
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
    """x·Wᵀ + b, with a matrix of its own or, tied, the token table's.

    `own`: the last features have a matrix apart, for a table that is narrower than x.
    """

    def __init__(self, features: int, outputs: int, bias: bool, tied: bool, own: int = 0) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(outputs, features - own))
        self.own = nn.Parameter(torch.empty(own, outputs)) if own else None
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """(M, D), (V, D) → (M, outputs)."""
        matrix = table if self.weight is None else self.weight
        if self.own is None:
            return F.linear(x, matrix, self.bias)
        x, last = x[:, : -len(self.own)], x[:, -len(self.own) :]
        return F.linear(x, matrix, self.bias) + last @ self.own


class Head(nn.Module):
    """The stream as logits: dense, activation and norm where there are any, then the outputs.

    Shapes: (N, D) → (N, outputs), or (B, outputs) where the head pools.
    """

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        features = config.dense or width
        self.config = config
        self.dropout_in = nn.Dropout(config.dropout_in)
        self.dense = nn.Linear(width, features, bias=config.dense_bias) if config.dense else None
        self.activation = ACTIVATIONS[config.activation]() if config.activation else None
        self.norm = build_norm(config.norm, features)
        self.dropout = nn.Dropout(config.dropout)
        self.logits = Logits(features, config.outputs, config.bias, config.tied, config.own)

    def forward(self, stream: Tensor, batch: Batch, pooled: Tensor | None, table: Tensor) -> Tensor:
        """`pooled`: what the encoder's pooler gives; `table`: the token embeddings of a tied head."""
        early, late = (None, "mean") if self.config.pool == "late" else (self.config.pool, None)
        x = stream if early is None else _pool(early, stream, batch, pooled)
        for step in (self.dropout_in, self.dense, self.activation, self.norm, self.dropout):
            x = x if step is None else step(x)
        return self.logits(x if late is None else _pool(late, x, batch, None), table)


def _pool(kind: str, stream: Tensor, batch: Batch, pooled: Tensor | None) -> Tensor:
    if kind != "pooler":
        return POOLINGS[{"first": "cls"}.get(kind, kind)](stream, batch)
    assert pooled is not None, "a head on the pooler needs an encoder with one"
    return pooled


def _sum(x: Tensor, batch: Batch) -> Tensor:
    # One text at a time: the order of the sum, so every bit of it, is the same alone and in company.
    return torch.stack([x[span].sum(0) for span in batch.spans])


def _lengths(x: Tensor, batch: Batch) -> Tensor:
    return x.new_tensor(batch.lengths)[:, None]


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


class SentenceDense(nn.Module):
    """A map of sentence vectors, φ(W x + b). Shapes: (B, in) → (B, out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        self.linear.weight = nn.Parameter(weight)
        if bias is not None:
            self.linear.bias = nn.Parameter(bias)
        self.activation = ACTIVATIONS[activation]() if activation else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) → (B, out)."""
        x = self.linear(x)
        return x if self.activation is None else self.activation(x)


class SentencePooling(nn.Module):
    """The stream of each text as one vector; several modes are laid side by side.

    `dense`: maps that follow; `normalize`: to Euclidean length 1 at the end.
    Shapes: (N, D) → (B, D · number of modes), or the outputs of the last map.
    """

    def __init__(
        self, modes: tuple[str, ...] = ("mean",), normalize: bool = False, dense: Sequence[SentenceDense] = ()
    ) -> None:
        super().__init__()
        self.modes = modes
        self.normalize = normalize
        self.dense = nn.Sequential(*dense)
        self.outputs = dense[-1].linear.out_features if dense else None

    def width(self, stream: int) -> int:
        """Features of a sentence vector, from those of the stream."""
        return self.outputs or stream * len(self.modes)

    def forward(self, x: Tensor, batch: Batch, normalize: bool | None = None) -> Tensor:
        """`normalize`: None follows the checkpoint."""
        parts = [POOLINGS[mode](x, batch) for mode in self.modes]
        pooled = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        pooled = self.dense(pooled) if self.dense else pooled
        follow = self.normalize if normalize is None else normalize
        return F.normalize(pooled, dim=-1) if follow else pooled

    def extra_repr(self) -> str:
        """What is pooled how."""
        settings: dict[str, Any] = {"modes": self.modes, "normalize": self.normalize}
        return ", ".join(f"{key}={value!r}" for key, value in settings.items())
