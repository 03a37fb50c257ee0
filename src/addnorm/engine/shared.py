"""What all blocks share in one pass of an engine."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from addnorm.batch import Batch
from addnorm.nn.attention import Attention, Context
from addnorm.nn.disentangled import RelativeTable
from addnorm.nn.positions import Rotary


@dataclass(frozen=True)
class Pass(Context):
    """A `Context` that keeps what depends on lengths alone: terms of the scores, rotations, distances.

    `batch` is in order of length, so the texts of a group are consecutive rows, `starts` says from where.
    """

    starts: tuple[int, ...] = ()
    table: RelativeTable | None = None
    kept: dict[Any, Any] = field(default_factory=dict)

    def only_window(self, attention: Attention, group: int) -> int | None:
        """How far a query of a group sees, where the scores have no other term that depends on places."""
        other = self.biases[group] is not None or attention.position_bias is not None or attention.disentangled
        return None if other else attention.config.window

    def bias(self, attention: Attention, group: int, like: Tensor) -> Tensor | None:
        """The terms of a group's scores that depend on places alone, (H or 1, T, T), or None."""
        length, window = self.batch.groups[group].rows.shape[1], attention.config.window
        masked = window is not None and length > window + 1
        if self.biases[group] is None and attention.position_bias is None and not masked:
            return None
        own = None if attention.position_bias is None else id(attention.position_bias)
        key = ("bias", group, own, window if masked else None)
        if key not in self.kept:
            # Only what has a window or a bias of its own asks for more than the pass's.
            self.kept[key] = attention._bias(like.new_empty(length, 0), self.biases[group])
        return self.kept[key]

    def rotation(self, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin for each token, (N, 1, width/2)."""
        key = ("rotation", rotary.config, rotary.width)
        if key not in self.kept:
            positions = self.batch.positions
            # A table from 0 on: a position's numbers come from the same place of it in every pass.
            places = torch.arange(-(-(int(positions.max()) + 1) // 64) * 64, device=positions.device)
            cos, sin = rotary._tables(places, dtype)
            self.kept[key] = cos[positions], sin[positions]
        return self.kept[key]

    def distances(self, length: int) -> tuple[Tensor, int, int]:
        """The row of each query and key, (T, T), counted from the first one needed; that one, and the last."""
        key = ("distances", length)
        if key not in self.kept:
            assert self.table is not None, "disentangled attention needs the encoder's table"
            rows = self.table._rows(length)
            low, high = (int(row) for row in rows.aminmax())
            self.kept[key] = rows - low, low, high
        return self.kept[key]


def in_order(batch: Batch) -> Batch:
    """The same texts, shortest first; the batch itself where it is so already."""
    lengths = batch.lengths
    if all(a <= b for a, b in pairwise(lengths)):
        return batch
    rows = torch.cat([group.rows.flatten() for group in batch.groups])
    offsets = torch.tensor([0, *sorted(lengths)], device=batch.offsets.device).cumsum(0)
    return Batch(batch.ids[rows], batch.types[rows], batch.positions[rows], offsets)
