"""The engine's own kernels, in C: linear maps with what follows them, attention without copies, small steps.

PyTorch does these in several passes over memory, and its products are slow for few rows. They are compiled when the
package is built, once for each kind of processor (`hatch_build.py`), never on a user's machine at run time. Where a
library is missing or does not run, the engine takes PyTorch's operators instead: oneDNN's maps (`operators.py`) and
`scores.py`.
"""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from addnorm.engine.compiled.levels import LEVELS

# How the kernels call what numbers are stored as.
KINDS = {torch.float32: 0, torch.bfloat16: 1}
# Multiplications from which on work is worth the start of several threads.
PARALLEL = 2**20
# The same where threads have to be started for it.
STARTED = 2**25


class Task(ctypes.Structure):
    """`struct attention` of attention.c; -1 as window: none."""

    _fields_ = (
        *((name, c_void_p) for name in ("query", "key", "value", "mix")),
        *((name, c_int64) for name in ("query_step", "key_step", "value_step", "mix_step")),
        ("offsets", c_void_p),
        *((name, c_int64) for name in ("texts", "heads", "key_heads", "width", "kind", "mix_kind", "window")),
        ("bias", c_void_p),
        ("bias_head", c_int64),
        ("bias_step", c_int64),
        ("scale", c_float),
        ("next", c_int64),
        ("failed", c_int64),
    )


class Norm(ctypes.Structure):
    """`struct norm` of kernels.h."""

    _fields_ = (("gain", c_void_p), ("bias", c_void_p), ("eps", c_float), ("centred", c_int64))

    @classmethod
    def of(cls, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Self:
        """A norm of these; gain, bias: (D,) float32, side by side in memory."""
        norm = cls(*(None if part is None else part.data_ptr() for part in (gain, bias)), eps, centred)
        norm.kept = gain, bias
        return norm


@cache
def library(level: str) -> ctypes.CDLL | None:
    """The kernels of a level; None where they were not compiled or this processor cannot run them."""
    path = Path(__file__).with_name(f"{level}.so")
    if not path.exists():
        return None
    try:
        kernels = ctypes.CDLL(str(path))
    except OSError:  # for another system
        return None
    if not kernels.addnorm_runs():
        return None
    whole = c_int64, c_int64, c_int64
    threads = c_void_p, c_int64
    kernels.addnorm_attention.argtypes = [c_void_p, *threads]
    kernels.addnorm_linear.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, *whole, *threads]
    kernels.addnorm_program.argtypes = [c_void_p, c_int64, c_void_p]
    kernels.addnorm_embed.argtypes = [c_void_p, c_int64, c_float, c_void_p, c_int64, c_int64, c_void_p]
    kernels.addnorm_pool.argtypes = [c_void_p, *whole[:2], c_void_p, c_int64, c_void_p, *whole[:2], c_void_p]
    kernels.addnorm_room.argtypes = [c_void_p]
    kernels.addnorm_room.restype = c_int64
    kernels.addnorm_place.argtypes = [c_void_p, c_void_p, c_void_p]
    kernels.addnorm_row_of_bytes.argtypes = [c_int64]
    kernels.addnorm_row_of_bytes.restype = c_int64
    kernels.addnorm_bytes.argtypes = [c_void_p, *whole, c_int64, c_void_p, c_void_p]
    kernels.addnorm_norm.argtypes = [
        c_void_p, *whole, c_int64, c_void_p, c_void_p, c_float, c_int64, c_void_p, c_int64
    ]  # fmt: skip
    kernels.addnorm_rotate.argtypes = [c_void_p, *whole, *whole, c_int64, c_void_p, c_void_p]
    return kernels


@cache
def best() -> ctypes.CDLL | None:
    """The best kernels that run here."""
    return next(filter(None, map(library, LEVELS)), None)


def takes(*tensors: Tensor) -> bool:
    """Whether the kernels are there and compute with such tensors, (…, D) with D side by side in memory."""
    return best() is not None and all(
        x.dtype in KINDS and x.device.type == "cpu" and x.stride(-1) == 1 for x in tensors
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: tuple[int, int],
    offsets: Tensor,
    pairs: int,
    scale: float,
    out: Tensor,
    window: int | None = None,
    bias: Tensor | None = None,
) -> None:
    """Fill `out`, (N, H·K), with softmax(Q Kᵀ·scale + bias) V of the texts that begin and end at `offsets`, (B+1,).

    query: (N, H·K), key and value: (N, H·K) or less, of one dtype; `heads`: of query, of key and value; `pairs`: of
    tokens that see each other, Σ T², from which follows whether several threads are worth it. `window`: how far a
    query sees; bias: (H or 1, T, T) float32 of the longest text, for the others its corner.
    """
    kernels = best()
    assert kernels is not None, "ask `takes` first"
    width = query.shape[1]
    kind, out_kind = KINDS[query.dtype], KINDS[out.dtype]
    steps = query.stride(0), key.stride(0), value.stride(0), out.stride(0)
    terms: tuple[int | None, int, int] = (None, 0, 0)
    if bias is not None:
        terms = bias.data_ptr(), bias.stride(0) if len(bias) > 1 else 0, bias.stride(1)
    task = Task(
        query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr(), *steps,
        offsets.data_ptr(), offsets.shape[0] - 1, *heads, width // heads[0], kind, out_kind,
        -1 if window is None else window, *terms, scale,
    )  # fmt: skip
    if kernels.addnorm_attention(ctypes.byref(task), *helpers(pairs * width)):
        raise MemoryError("attention: no memory for the keys and values of a text")


def row_of_bytes(width: int) -> int:
    """Bytes that a row of so many takes: the last four filled up, its step and zero, and what may follow."""
    kernels = best()
    assert kernels is not None, "ask `takes` first"
    return int(kernels.addnorm_row_of_bytes(width))


def to_bytes(x: Tensor, factor: Tensor | None) -> Tensor:
    """Rows as bytes, factor·x ≈ step·(byte - zero); (N, D) → (N, `row_of_bytes(D)`) uint8.

    Behind a row's last whole word are its step and zero as float32. factor: (D,) float32.
    """
    kernels = best()
    assert kernels is not None, "ask `takes` first"
    result = torch.empty(x.shape[0], row_of_bytes(x.shape[1]), dtype=torch.uint8)
    at = None if factor is None else factor.data_ptr()
    kernels.addnorm_bytes(x.data_ptr(), KINDS[x.dtype], x.stride(0), *x.shape, at, result.data_ptr())
    return result


def norm(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool, dtype: torch.dtype
) -> Tensor:
    """(x - mean)/√(variance + eps)·gain + bias, where not `centred` without the mean; (N, D) → (N, D) in `dtype`.

    gain, bias: (D,) float32, side by side in memory.
    """
    kernels = best()
    assert kernels is not None, "ask `takes` first"
    rows, width = x.shape
    result = torch.empty(rows, width, dtype=dtype)
    kernels.addnorm_norm(
        x.data_ptr(), KINDS[x.dtype], x.stride(0), rows, width,
        None if gain is None else gain.data_ptr(), None if bias is None else bias.data_ptr(), eps, centred,
        result.data_ptr(), KINDS[dtype],
    )  # fmt: skip
    return result


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    """Turn the first features of each head, (N, H, K), in place; cos, sin: (N, half of them) float32.

    (a, b) → (a cos - b sin, b cos + a sin), a and b neighbours where `interleaved`, else half of them apart.
    """
    kernels = best()
    assert kernels is not None, "ask `takes` first"
    half = cos.shape[-1]
    kernels.addnorm_rotate(
        x.data_ptr(), KINDS[x.dtype], x.stride(0), *x.shape, half, interleaved, cos.data_ptr(), sin.data_ptr()
    )


def helpers(multiplications: int) -> tuple[c_void_p | None, int]:
    """How to start threads, and how many, for so much work."""
    start, worth = starter()
    return start, torch.get_num_threads() if multiplications >= worth else 1


@cache
def starter() -> tuple[c_void_p | None, int]:
    """The function by which PyTorch's OpenMP runs another on its threads, and how much work is worth that.

    None where that is no GNU OpenMP: then threads are started for each call.
    """
    package = Path(torch.__file__).parent
    for path in (*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")):
        return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, c_void_p), PARALLEL
    return None, STARTED
