"""Embeddings, and vectors of whole texts, by the kernels."""

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from addnorm.engine import compiled

# How the kernels call the ways to make one vector of a text's rows; names as in sentence-transformers.
MODES = {"cls": 0, "lasttoken": 1, "max": 2, "mean": 3, "mean_sqrt_len_tokens": 4, "weightedmean": 5}


class _Table(ctypes.Structure):
    """`struct table` of around.c."""

    _fields_ = (("first", c_void_p), ("count", c_int64), ("places", c_void_p))


class Lookup:
    """scale·(a row of the first table) + a row of each other one, then the norm, if any.

    tables: (V, D) float32 each, its rows side by side in memory.
    """

    def __init__(self, tables: Sequence[Tensor], scale: float, norm: compiled.Norm | None) -> None:
        self.tables, self.scale, self.norm = tuple(table.detach() for table in tables), scale, norm

    def __call__(self, *places: Tensor) -> Tensor | None:
        """The rows of each table, (N,) int64 each → (N, D); None where a table does not have them all."""
        kernels = compiled.best()
        assert kernels is not None, "ask `takes` first"
        places = tuple(part.contiguous() for part in places)
        parts = zip(self.tables, places, strict=True)
        given = (_Table * len(places))(*(_Table(t.data_ptr(), len(t), part.data_ptr()) for t, part in parts))
        result = torch.empty(len(places[0]), self.tables[0].shape[1])
        norm = None if self.norm is None else ctypes.addressof(self.norm)
        failed = kernels.addnorm_embed(given, len(given), self.scale, norm, *result.shape, result.data_ptr())
        return None if failed else result


def pool(x: Tensor, offsets: Tensor, modes: Sequence[str], normalize: bool) -> Tensor:
    """One vector of each of the texts that begin and end at `offsets`, (B+1,), by one mode beside the other.

    x: (N, D), side by side in memory → (B, D · number of modes) float32; `normalize`: to length 1.
    """
    kernels = compiled.best()
    assert kernels is not None, "ask `takes` first"
    texts, width, given = len(offsets) - 1, x.shape[1], (c_int64 * len(modes))(*(MODES[mode] for mode in modes))
    result = torch.empty(texts, width * len(modes))
    kernels.addnorm_pool(
        x.data_ptr(), compiled.KINDS[x.dtype], width, offsets.data_ptr(), texts, given, len(modes), normalize,
        result.data_ptr(),
    )  # fmt: skip
    return result
