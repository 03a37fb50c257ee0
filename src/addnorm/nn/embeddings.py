"""From token ids to the stream."""

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import EmbeddingsConfig
from addnorm.errors import AddnormError
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import POSITIONS


class Sum(nn.Module):
    """Adds up what it is given."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Tensors of (N, D) → (N, D)."""
        for other in others:
            first = first + other
        return first


class Embeddings(nn.Module):
    """Tokens, token types and positions, summed, normalised and, where the tables are narrower, projected.

    Shapes: Batch → (N, D).
    """

    def __init__(self, config: EmbeddingsConfig, width: int) -> None:
        super().__init__()
        own = config.width or width
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, own)
        self.types = nn.Embedding(config.types, own) if config.types else None
        self.tasks = nn.Embedding(config.tasks, own) if config.tasks else None
        self.positions = POSITIONS[config.positions](config.max_positions, own) if config.positions else None
        self.sum = Sum()
        self.norm = build_norm(config.norm, own)
        self.dropout = nn.Dropout(config.dropout)
        self.projection = nn.Linear(own, width) if config.width else None

    def forward(self, batch: Batch) -> Tensor:
        """Errors: an id outside the vocabulary, a token type or a position the tables do not have."""
        positions = self._positions(batch)
        self._check(batch, positions)
        tokens = self.tokens(batch.ids)  # (N, D)
        parts = [tokens if self.config.scale == 1 else tokens * self.config.scale]
        if self.types is not None:
            parts.append(self.types(batch.types))
        if self.positions is not None:
            parts.append(self.positions(positions).to(tokens.dtype))
        if self.tasks is not None:
            parts.append(self.tasks(torch.zeros_like(batch.ids)))
        x: Tensor = self.sum(*parts)
        x = x if self.norm is None else self.norm(x)
        x = self.dropout(x)
        return x if self.projection is None else self.projection(x)

    def _positions(self, batch: Batch) -> Tensor:
        """The row of each token in the position table."""
        if self.config.pad is None:
            return batch.positions + self.config.position_offset
        counted = batch.ids != self.config.pad
        places = counted.cumsum(0)
        before = (places - counted.long())[batch.offsets[:-1]]  # counted in the texts before
        places = places - before.repeat_interleave(batch.offsets.diff()) - 1 + self.config.position_offset
        return torch.where(counted, places, self.config.pad)

    def _check(self, batch: Batch, positions: Tensor) -> None:
        limits = [("token id", batch.ids, self.config.vocabulary, "vocabulary")]
        if self.types is not None:
            limits.append(("token type", batch.types, self.config.types, "token types"))
        if self.positions is not None:
            limits.append(("position", positions, self.config.max_positions, "positions"))
        for what, values, limit, table in limits:
            low, high = (int(value) for value in values.aminmax())
            if low < 0 or high >= limit:
                bad = low if low < 0 else high
                raise AddnormError(f"{what} {bad} is outside the model's {limit} {table}; shorten or mend the input")
