"""softmax(Q Kᵀ·scale + bias) V without a search for the largest score of each row.

exp(s) / Σ exp(s) needs the largest score subtracted only where exp(s) leaves the range of its type. So the scores
are exponentiated as they are, and their sum comes out of the second product, from a column of ones beside V. Where a
sum shows that a text's scores were too large or too small, that text is computed again by PyTorch's own kernel.
In bfloat16 that takes a half (512 tokens) to a third (128) or a quarter (32) of the time of PyTorch's kernel, whose
softmax of short rows takes longer than both products; measured on two cores of a Zen 5, 12 heads of 32 features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.batch import Batch

# A sum of exponentials within these has lost nothing, and its product with V cannot overflow.
SMALLEST, LARGEST = 1e-30, 1e34

# Scores held at a time: what the cache next to the cores holds.
HELD = 2**20

# Bytes in a line of the cache. MKL's products differ in their last bits with the alignment of a matrix, so each
# matrix of a group starts on a line: only then has a text the same bits alone and in company.
LINE = 64

# oneDNN prepares a bfloat16 product anew for each size that it has not seen: lengths are rounded up to so many.
ROUND = 16

# A float32 product alone is split among threads, and so many multiplications or less in bfloat16 are not oneDNN's
# work: both sum in another order. So a text in little company is computed several times.
SMALL = 16**3

# Queries of a band that see the same keys.
BLOCK = 64


@dataclass(frozen=True)
class Terms:
    """What a group's attention is made of beside queries, keys and values.

    scores = Q Kᵀ·scale + `bias` (H or 1, T, T) + `further`(query, key), which depends on contents, (G, H, T, T);
    `window`: how far a query sees, where there is no other bias. `lengths`: of the texts; where one ends before T,
    its values are 0 from there on, and `real`, (G, 1, T), is too.
    """

    scale: float
    lengths: tuple[int, ...]
    bias: Tensor | None = None
    further: Callable[[Tensor, Tensor], Tensor] | None = None
    window: int | None = None
    real: Tensor | None = None

    def of(self, texts: slice) -> Self:
        """Of some of the texts."""
        return replace(self, lengths=self.lengths[texts], real=None if self.real is None else self.real[texts])


def attend(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    """Fill `out` from query, key and value, all (G, H, T, K)."""
    count, heads, length, width = query.shape
    near = terms.window is not None and is_near(terms.window, query)
    # In float32 PyTorch's kernel is the faster one, for texts of any length.
    plain = query.dtype == torch.float32 and width % 16 == 0 and heads > 1 and not terms.further
    way = _near if near else _exact if plain or query.device.type != "cpu" else _whole
    size = heads * (BLOCK * (BLOCK + 2 * (terms.window or 0)) if near else length * length)
    step = max(1, HELD // size)  # texts whose scores stay in the cache
    if step >= count:
        way(query, key, value, terms, out)
        return
    for start in range(0, count, step):
        some = slice(start, start + step)
        way(query[some], key[some], value[some], terms.of(some), out[some])


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, batch: Batch
) -> Tensor:
    """All texts at once by PyTorch's attention of variable lengths, on a GPU; three of (N, H, K) → (N, H, K).

    Not run on a GPU so far: what is tested is that the arguments mean what the formula means.
    """
    from torch.nn.attention import varlen

    offsets, longest = batch.offsets.to(torch.int32), max(batch.lengths)
    sides = (-1, -1) if window is None else (window, window)
    mixed = varlen.varlen_attn(
        query, key, value, offsets, offsets, longest, longest, scale=scale, window_size=sides,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(mixed, Tensor), "asked for nothing else"
    return mixed


def is_near(window: int, like: Tensor) -> bool:
    """Whether texts of (G, H, T, K) are computed in bands: it is faster from here on."""
    # Rounded, as a text's length is in company.
    length = -(-like.shape[2] // rounding(like)) * rounding(like)
    return like.device.type == "cpu" and length > 2 * (BLOCK + 2 * window)


def _whole(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    """All scores of a text at once."""
    count, heads, length, _ = query.shape
    q, k, v = placed(query), placed(key), placed(value, ones=terms)
    scores = product(q, k.transpose(1, 2), terms.scale)  # (G·H, T', T')
    real = scores.view(count, heads, *scores.shape[1:])[..., :length, :length]
    if terms.bias is not None:
        real += terms.bias
    if terms.further is not None:
        real += terms.further(query, key)
    mixed = product(scores.exp_(), v).view(count, heads, -1, v.shape[-1])
    _divide(mixed[:, :, :length], query, key, value, terms, out)


def _near(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    """Blocks of queries, each with the keys it sees."""
    count, heads, length, _ = query.shape
    assert terms.window is not None, "a band has a width"
    window, padded = terms.window, -(-length // BLOCK) * BLOCK
    q = placed(query, total=padded)
    # Places before and after the text weigh nothing: their rows of V and of the ones are 0.
    k = placed(key, before=window, total=padded + 2 * window)
    v = placed(value, before=window, total=padded + 2 * window, ones=terms)
    place = torch.arange(BLOCK + 2 * window)
    beyond = (place - torch.arange(BLOCK)[:, None] - window).abs() > window
    band = query.new_zeros(1, *beyond.shape).masked_fill_(beyond, float("-inf"))
    mixed = q.new_empty(len(q), padded, v.shape[-1])
    for start in range(0, padded, BLOCK):
        queries, keys = slice(start, start + BLOCK), slice(start, start + len(place))
        scores = product(q[:, queries], k[:, keys].transpose(1, 2), terms.scale).add_(band)
        mixed[:, queries] = product(scores.exp_(), v[:, keys])
    _divide(mixed.view(count, heads, padded, -1)[:, :, :length], query, key, value, terms, out)


def product(a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """factor·a b, (B, I, J), (B, J, L) → (B, I, L)."""
    size = a.numel() * b.shape[-1]
    if len(a) == 1 or (a.dtype == torch.bfloat16 and size <= SMALL):
        times = 2 + SMALL // size
        return product(a.repeat(times, 1, 1), b.repeat(times, 1, 1), factor)[: len(a)]
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=factor)


def placed(part: Tensor, before: int = 0, total: int = 0, ones: Terms | None = None) -> Tensor:
    """(G, H, T, K) → a copy (G·H, T', K'), rounded up, zeros around; with a column of ones beside K."""
    length, width = part.shape[2:]
    step, beside = rounding(part), ones is not None
    rows, columns = -(-max(total, length) // step) * step, -(-(width + beside) // step) * step
    if (length, width) == (rows, columns):
        return part.reshape(-1, length, width)
    copy = F.pad(part, (0, columns - width, before, rows - before - length))
    if ones is not None:
        copy[:, :, before : before + length, width] = 1 if ones.real is None else ones.real
    return copy.flatten(0, 1)


def rounding(like: Tensor) -> int:
    """What sizes of products are rounded up to."""
    return ROUND if like.dtype == torch.bfloat16 else LINE // like.element_size()


def _divide(mixed: Tensor, query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    """Σ exp(s) V over Σ exp(s), beside it in (G, H, T, K + 1 …), → `out`; a text out of range is computed again."""
    width = out.shape[-1]
    sums = mixed[..., width : width + 1]
    if terms.real is not None:
        sums += 1 - terms.real[..., None]  # beyond a text's end a query may see no key
    torch.div(mixed[..., :width], sums, out=out)
    low, high = (float(end) for end in sums.aminmax())
    if not (low > SMALLEST and high < LARGEST):
        good = ((sums > SMALLEST) & (sums < LARGEST)).flatten(1).all(1)
        for i in (~good).nonzero().flatten().tolist():
            own = (slice(i, i + 1), slice(None), slice(terms.lengths[i]))
            _exact(query[own], key[own], value[own], terms, out[own])


def _exact(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    """By PyTorch's own kernel, for texts that are all of length T."""
    length = query.shape[2]
    bias = None if terms.bias is None else terms.bias[:, :length, :length].to(query.dtype)
    if bias is None and terms.window is not None and length > terms.window + 1:
        place = torch.arange(length, device=query.device)
        beyond = (place - place[:, None]).abs() > terms.window
        bias = query.new_zeros(1, length, length).masked_fill_(beyond, float("-inf"))
    if terms.further is not None:
        term = terms.further(query, key)
        bias = term if bias is None else term + bias
    out.copy_(F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=terms.scale))
