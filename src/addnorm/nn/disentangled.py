"""Disentangled attention: scores between contents and distances (DeBERTa, He 2021, section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import AttentionConfig, DisentangledConfig, RelativeConfig
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import build_table


@dataclass(frozen=True)
class Relative:
    """The distances of one pass.

    `table`: (R, D), the rows that its longest text needs; `rows`: for each group of the batch the row of
    each query and key, (T, T).
    """

    table: Tensor
    rows: tuple[Tensor, ...]


@dataclass(frozen=True)
class Projected:
    """The table as keys and as queries, (H, R, K), each where a term asks for it."""

    key: Tensor | None
    query: Tensor | None


class RelativeTable(nn.Module):
    """A row for each distance from query to key, or for each bucket of distances; one table for all blocks."""

    def __init__(self, config: RelativeConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.table = build_table(2 * config.span, width)
        self.norm = build_norm(config.norm, width)

    def forward(self, batch: Batch) -> Relative:
        """Batch → its distances."""
        return self.of([group.rows.shape[1] for group in batch.groups])

    def of(self, lengths: Sequence[int]) -> Relative:
        """The distances of groups of texts of these lengths, the longest last."""
        rows = [self._rows(length) for length in lengths]
        low, high = (int(row) for row in rows[-1].aminmax())  # of the longest texts
        table = self.table.weight[low : high + 1]
        table = table if self.norm is None else self.norm(table)
        return Relative(table, tuple(row - low for row in rows))

    def _rows(self, length: int) -> Tensor:
        """T → (T, T), queries down, keys across."""
        span, place = self.config.span, torch.arange(length, device=self.table.weight.device)
        distances = torch.arange(1 - length, length, device=place.device)
        rows = (self._bucket(distances) + span).clamp(0, 2 * span - 1)
        return rows[place[:, None] - place[None, :] + length - 1]

    def _bucket(self, distance: Tensor) -> Tensor:
        if self.config.max_distance is None:
            return distance
        exact = self.config.span // 2  # distances up to here have a bucket of their own
        far = distance.abs().clamp(min=exact)
        # float32, as in the reference: at a bucket's edge the rounding decides.
        longest = torch.tensor((self.config.max_distance - 1) / exact, dtype=torch.float32, device=far.device)
        logarithm = torch.log(far.float() / exact) / torch.log(longest)
        coarse = torch.ceil(logarithm * (exact - 1)).long() + exact
        return torch.where(far == exact, distance, coarse * distance.sign())


class Disentangled(nn.Module):
    """(query · position key + key · position query) · scale, each where it is asked for.

    A position query belongs to the distance from the query to the key, as a position key does.
    """

    def __init__(self, config: DisentangledConfig, attention: AttentionConfig, width: int, scale: float) -> None:
        super().__init__()
        inner, own = attention.heads * attention.head_width, not config.shared
        self.config = config
        self.scale = scale
        self.heads = attention.heads
        self.dropout = nn.Dropout(config.dropout)
        self.position_key = (
            nn.Linear(width, inner, bias=config.key_bias) if own and config.content_to_position else None
        )
        self.position_query = nn.Linear(width, inner) if own and config.position_to_content else None

    def project(self, table: Tensor, query: nn.Linear, key: nn.Linear) -> Projected:
        """(R, D) → the table as keys and queries, by own projections or by those of the contents."""
        table = self.dropout(table)
        return Projected(
            self._heads(table, self.position_key or key) if self.config.content_to_position else None,
            self._heads(table, self.position_query or query) if self.config.position_to_content else None,
        )

    def forward(self, query: Tensor, key: Tensor, projected: Projected, rows: Tensor) -> Tensor:
        """(G, H, T, K), (G, H, T, K), rows (T, T) → (G, H, T, T), queries down, keys across."""
        shape = (*query.shape[:-1], query.shape[-2])
        terms = []
        if projected.key is not None:
            by_row = query @ projected.key.transpose(-2, -1)  # (G, H, T, R)
            terms.append(by_row.gather(-1, rows.expand(shape)))
        if projected.query is not None:
            by_row = key @ projected.query.transpose(-2, -1)  # (G, H, T, R), keys down
            terms.append(by_row.gather(-1, rows.T.expand(shape)).transpose(-2, -1))
        return sum(terms[1:], terms[0]) * self.scale

    def _heads(self, table: Tensor, projection: nn.Linear) -> Tensor:
        # Not by calling the module: a projection that the contents share would show the table as its site.
        rows = F.linear(table, projection.weight, projection.bias)
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)
