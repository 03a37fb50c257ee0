"""What all blocks share in one pass of an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import RotaryConfig
from addnorm.engine.scores import rounding
from addnorm.nn.attention import Attention, Context
from addnorm.nn.disentangled import RelativeTable
from addnorm.nn.positions import Rotary


@dataclass(frozen=True)
class Texts:
    """Consecutive texts whose attention is computed together, as if each had `length` tokens.

    `rows`: theirs in the batch; `lengths`: their own. Where these differ, `index` says which of the rows, (G·T,),
    stands at each place (after a text's end, its last one), `ends` which places are after an end, `back` which
    are not, and `real`, (G, 1, T), weighs them.
    """

    rows: slice
    lengths: tuple[int, ...]
    length: int
    index: Tensor | None = None
    ends: Tensor | None = None
    back: Tensor | None = None
    real: Tensor | None = None

    @classmethod
    def of(cls, start: int, lengths: tuple[int, ...], length: int, like: Tensor) -> Self:
        """The texts of these lengths from a row on."""
        rows = slice(start, start + sum(lengths))
        if lengths[0] == lengths[-1]:
            return cls(rows, lengths, lengths[0])
        sizes = torch.tensor(lengths)[:, None]
        place = torch.arange(length)
        index = (sizes.cumsum(0) - sizes + place.minimum(sizes - 1)).flatten()
        inside = place < sizes  # (G, T)
        back, ends = (part.flatten().nonzero().flatten() for part in (inside, ~inside))
        return cls(rows, lengths, length, index, ends, back, inside[:, None].to(like.dtype))

    def take(self, part: Tensor, blank: bool = False) -> Tensor:
        """(N, H, K) → (G, H, T, K); `blank`: with zeros after the ends."""
        part = part[self.rows]
        if self.index is not None:
            part = part.index_select(0, self.index)
            part = part.index_fill_(0, self.ends, 0) if blank and self.ends is not None else part
        return part.view(-1, self.length, *part.shape[1:]).transpose(1, 2)

    def put(self, run: Callable[[Tensor], None], mix: Tensor, heads: int) -> None:
        """Let `run` fill (G, H, T, K), and write it to the texts' rows of (N, H·K)."""
        rows = mix[self.rows]
        out = rows if self.back is None else mix.new_empty(len(self.lengths) * self.length, mix.shape[1])
        run(out.view(len(self.lengths), self.length, heads, -1).transpose(1, 2))
        if self.back is not None:
            torch.index_select(out, 0, self.back, out=rows)


@dataclass(frozen=True)
class Pass(Context):
    """A `Context` that keeps what depends on lengths alone: texts, terms of the scores, rotations, distances.

    `batch` is in order of length.
    """

    position_bias: nn.Module | None = None
    table: RelativeTable | None = None
    kept: dict[Any, Any] = field(default_factory=dict)

    def texts(self, like: Tensor) -> list[Texts]:
        """The batch's texts by length, rounded up as products of `like`'s kind need it."""
        key = ("texts", like.dtype)
        if key not in self.kept:
            merged = like.dtype == torch.bfloat16 and like.device.type == "cpu"
            step, start, found = rounding(like) if merged else 1, 0, []  # PyTorch's kernel takes one length only
            for length, some in groupby(self.batch.lengths, lambda own: -(-own // step) * step):
                found.append(Texts.of(start, tuple(some), length, like))
                start += sum(found[-1].lengths)
            self.kept[key] = found
        return self.kept[key]

    @cached_property
    def pairs(self) -> int:
        """Of tokens that see each other, Σ T²."""
        return sum(length * length for length in self.batch.lengths)

    def is_plain(self, attention: Attention) -> bool:
        """Whether nothing but a window is added to the scores."""
        return not any((self.position_bias, attention.position_bias, attention.disentangled))

    def bias(self, attention: Attention, length: int, like: Tensor) -> Tensor | None:
        """The terms of the scores that depend on places alone, (H or 1, T, T), or None."""
        window = attention.config.window
        masked = window is not None and length > window + 1
        if self.position_bias is None and attention.position_bias is None and not masked:
            return None
        own = None if attention.position_bias is None else id(attention.position_bias)
        key = ("bias", length, own, window if masked else None, like.dtype)
        if key not in self.kept:
            common = None if self.position_bias is None else self.position_bias(length).to(like)
            # Only what has a window or a bias of its own asks for more than the pass's.
            bias = attention._bias(like.new_empty(length, 0), common)
            self.kept[key] = None if bias is None else bias.contiguous()
        return self.kept[key]

    def rotation(self, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin for each token, (N, 1, width/2)."""
        key = ("rotation", rotary.config, rotary.width, dtype)
        if key not in self.kept:
            positions, longest = self.batch.positions, self.batch.lengths[-1]
            count = max(64, 1 << (longest - 1).bit_length())
            cos, sin = rotation_table(rotary.config, rotary.width, count, dtype, positions.device)
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


@lru_cache(maxsize=8)
def rotation_table(
    config: RotaryConfig, width: int, count: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin for the positions below `count`, (count, 1, width/2).

    Kept, as all passes have the same; from 0 on, so that a position has the same bits in tables of any size.
    """
    return Rotary(config, width)._tables(torch.arange(count, device=device), dtype)


def in_order(batch: Batch) -> Batch:
    """The same texts, shortest first; the batch itself where it is so already."""
    lengths = batch.lengths
    if all(a <= b for a, b in pairwise(lengths)):
        return batch
    rows = torch.cat([group.rows.flatten() for group in batch.groups])
    offsets = torch.tensor([0, *sorted(lengths)], device=batch.offsets.device).cumsum(0)
    return Batch(batch.ids[rows], batch.types[rows], batch.positions[rows], offsets)
