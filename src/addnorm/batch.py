"""A batch without padding: the tokens of all texts end to end, and where each text begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Self

import torch
from torch import Tensor

from addnorm.errors import AddnormError


@dataclass(frozen=True)
class Group:
    """Texts of equal length `T`: which texts (G of them), and their rows in the batch, (G, T)."""

    texts: tuple[int, ...]
    rows: Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Token ids of `B` texts in one packed row.

    Shapes: ids (N,), types (N,), positions (N,) counted from 0 in each text, offsets (B+1,).
    """

    ids: Tensor
    types: Tensor
    positions: Tensor
    offsets: Tensor

    @classmethod
    def pack(
        cls,
        texts: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Pack lists of token ids. Errors: no text, an empty text, types of another length than ids."""
        if not texts:
            raise AddnormError("batch: no texts; give at least one")
        lengths = [len(ids) for ids in texts]
        if 0 in lengths:
            raise AddnormError(f"batch: text {lengths.index(0)} has no tokens; give each at least one")
        if types is not None and [len(t) for t in types] != lengths:
            raise AddnormError("batch: token types and ids differ in length; give one type for each id")
        count = sum(lengths)
        rows = (*texts, *([[0] * count] if types is None else types), *map(range, lengths))
        flat = [*chain.from_iterable(rows), *accumulate(lengths, initial=0)]
        # One tensor for all: for a short text, making four takes as long as a block.
        packed = torch.tensor(flat, dtype=torch.long, device=device)
        ids, kinds, positions = packed[: 3 * count].view(3, count)
        batch = cls(ids, kinds, positions, packed[3 * count :])
        vars(batch)["lengths"] = tuple(lengths)  # known here, so not read back from a device
        return batch

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each text."""
        return tuple(self.offsets.diff().tolist())

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The rows of each text in the packed tensors."""
        return tuple(slice(a, b) for a, b in pairwise(accumulate(self.lengths, initial=0)))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The texts by length, shortest first: attention runs once for each group."""
        starts = self.offsets[:-1]
        by_length: dict[int, list[int]] = {}
        for text, length in enumerate(self.lengths):
            by_length.setdefault(length, []).append(text)
        return tuple(
            Group(tuple(texts), starts[texts][:, None] + torch.arange(length, device=starts.device))
            for length, texts in sorted(by_length.items())
        )

    @cached_property
    def ungroup(self) -> Tensor:
        """(N,): for each row of the batch, its place among the rows of all groups laid end to end."""
        return torch.cat([group.rows.flatten() for group in self.groups]).argsort()
