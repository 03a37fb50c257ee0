"""From token ids to the stream."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import EmbeddingsConfig
from addnorm.errors import AddnormError
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import POSITIONS, build_table


class Sum(nn.Module):
    """Adds up what it is given."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Tensors of (N, D) → (N, D)."""
        for other in others:
            first = first + other
        return first


class Trigrams(nn.Module):
    """Each token between the next and the last one of its text, zeros where there is none (Sun 2020)."""

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """(N, E) → (N, 3·E)."""
        first, last = batch.offsets[:-1], batch.offsets[1:] - 1
        after = tokens.roll(-1, 0).index_fill(0, last, 0)
        before = tokens.roll(1, 0).index_fill(0, first, 0)
        return torch.cat((after, tokens, before), dim=-1)


class Dropped(nn.Module):
    """Mask tokens are 0 and the text's others scaled up, as dropout would do it (ESM; Rives 2021).

    In training 0.15 · 0.8 of the tokens were masks; the scale makes good for a text with another share.
    """

    def __init__(self, mask: int) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """(N, D) → (N, D)."""
        masked, lengths = batch.ids == self.mask, batch.offsets.diff()
        counted = F.pad(masked.cumsum(0), (1, 0))[batch.offsets].diff()  # masks of each text
        exact = torch.promote_types(tokens.dtype, torch.float32)
        kept = 1 - counted.to(exact) / lengths
        factor = (1 - 0.15 * 0.8) / kept.clamp(min=torch.finfo(exact).eps)  # a text of masks alone stays 0
        return tokens.masked_fill(masked[:, None], 0) * factor.repeat_interleave(lengths)[:, None].to(tokens.dtype)


class Embeddings(nn.Module):
    """Tokens, token types and positions, summed, normalised and, where the tables are narrower, projected.

    `merge` first joins to the tokens what lies beside them. Shapes: Batch → (N, D).
    """

    def __init__(self, config: EmbeddingsConfig, width: int) -> None:
        super().__init__()
        own = config.width or width
        self.config = config
        tokens = config.tokens_width or own
        self.tokens = build_table(config.vocabulary, tokens)
        self.dropped = None if config.dropped is None else Dropped(config.dropped)
        self.trigrams = Trigrams() if config.trigrams else None
        self.shapes = build_table(config.shapes.rows, config.shapes.width) if config.shapes else None
        spoken = config.pronunciations
        self.pronunciations = build_table(spoken.rows, spoken.width) if spoken else None
        beside = sum(table.width for table in config.side)
        self.merge = nn.Linear(tokens * (3 if config.trigrams else 1) + beside, own) if config.merge else None
        self.types = build_table(config.types, own) if config.types else None
        self.tasks = build_table(config.tasks, own) if config.tasks else None
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
        tokens = tokens if self.dropped is None else self.dropped(tokens, batch)
        tokens = tokens if self.trigrams is None else self.trigrams(tokens, batch)
        if self.merge is not None:
            first = torch.zeros_like(batch.ids)
            beside = [table(first) for table in (self.shapes, self.pronunciations) if table is not None]
            tokens = self.merge(torch.cat((tokens, *beside), dim=-1))
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
