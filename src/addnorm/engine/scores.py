"""softmax(Q Kᵀ·scale + bias) V without a search for the largest score of each row.

exp(s) / Σ exp(s) needs the largest score subtracted only where exp(s) leaves the range of its type. So the scores
are exponentiated as they are, and their sum comes out of the second product, from a column of ones beside V. Where a
sum shows that a text's scores were too large or too small, that text is computed again by PyTorch's own kernel.
In bfloat16 that takes a half (512 tokens) to a third (128) or a quarter (32) of the time of PyTorch's kernel, whose
softmax of short rows takes longer than both products; measured on two cores of a Zen 5, 12 heads of 32 features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

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
    """What a group's scores are made of beside Q Kᵀ: a factor, a bias (H or 1, T, T), and what depends on contents.

    `further`: query and key (G, H, T, K) → (G, H, T, T).
    """

    scale: float
    bias: Tensor | None = None
    further: Callable[[Tensor, Tensor], Tensor] | None = None


def attend(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    """Fill `out` from query, key and value, all (G, H, T, K)."""
    count, heads, length, width = query.shape
    # In float32 PyTorch's kernel is the faster one, for texts of any length.
    plain = query.dtype == torch.float32 and width % 16 == 0 and heads > 1 and not terms.further
    for texts in _parts(count, heads * length * length):
        parts = query[texts], key[texts], value[texts]
        if plain or query.device.type != "cpu":
            out[texts] = _exact(*parts, terms)
        else:
            _whole(*parts, terms, out[texts])


def attend_near(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int, out: Tensor) -> None:
    """`attend` where a query sees the keys up to `window` places away: blocks of queries with the keys they see."""
    place = torch.arange(BLOCK + 2 * window)
    beyond = (place - torch.arange(BLOCK)[:, None] - window).abs() > window
    band = query.new_zeros(1, *beyond.shape).masked_fill_(beyond, float("-inf"))
    for texts in _parts(len(query), query.shape[1] * band.numel()):
        _blocks(query[texts], key[texts], value[texts], scale, band, out[texts])


def is_near(window: int, like: Tensor) -> bool:
    """Whether `attend_near` is the faster one for texts of (G, H, T, K)."""
    return like.device.type == "cpu" and like.shape[2] > 2 * (BLOCK + 2 * window)


def _parts(count: int, size: int) -> Iterator[slice]:
    """Texts that are computed together, so that their scores, `size` a text, stay in the cache."""
    step = max(1, HELD // size)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _whole(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor) -> None:
    count, heads, length, _ = query.shape
    q, k, v = placed(query), placed(key), placed(value, ones=True)
    scores = product(q, k.transpose(1, 2), terms.scale)  # (G·H, T', T')
    real = scores.view(count, heads, *scores.shape[1:])[..., :length, :length]
    if terms.bias is not None:
        real += terms.bias
    if terms.further is not None:
        real += terms.further(query, key)
    mixed = product(scores.exp_(), v).view(count, heads, -1, v.shape[-1])[:, :, :length]
    _divide(mixed, out, lambda text: _exact(query[text], key[text], value[text], terms))


def _blocks(query: Tensor, key: Tensor, value: Tensor, scale: float, band: Tensor, out: Tensor) -> None:
    count, heads, length, _ = query.shape
    _, block, seen = band.shape
    window, padded = (seen - block) // 2, -(-length // block) * block
    q = placed(query, total=padded)
    # Places before and after the text weigh nothing: their rows of V and of the ones are 0.
    k = placed(key, before=window, total=padded + 2 * window)
    v = placed(value, before=window, total=padded + 2 * window, ones=True)
    mixed = q.new_empty(len(q), padded, v.shape[-1])
    for start in range(0, padded, block):
        queries, keys = slice(start, start + block), slice(start, start + seen)
        scores = product(q[:, queries], k[:, keys].transpose(1, 2), scale).add_(band)
        mixed[:, queries] = product(scores.exp_(), v[:, keys])

    def exact(text: slice) -> Tensor:
        place = torch.arange(length)
        beyond = (place - place[:, None]).abs() > window
        bias = query.new_zeros(1, length, length).masked_fill_(beyond, float("-inf"))
        return _exact(query[text], key[text], value[text], Terms(scale, bias))

    _divide(mixed.view(count, heads, padded, -1)[:, :, :length], out, exact)


def product(a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """factor·a b, (B, I, J), (B, J, L) → (B, I, L)."""
    size = a.numel() * b.shape[-1]
    if len(a) == 1 or (a.dtype == torch.bfloat16 and size <= SMALL):
        times = 2 + SMALL // size
        return product(a.repeat(times, 1, 1), b.repeat(times, 1, 1), factor)[: len(a)]
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=factor)


def placed(part: Tensor, before: int = 0, total: int = 0, ones: bool = False) -> Tensor:
    """(G, H, T, K) → a copy (G·H, T', K'), rounded up, zeros around; with a column of `ones` beside K."""
    texts, heads, length, width = part.shape
    rows, columns = rounded(max(total, length), part), rounded(width + ones, part)
    if (length, width) == (rows, columns):
        return part.reshape(texts * heads, length, width)
    copy = F.pad(part, (0, columns - width, before, rows - before - length))
    if ones:
        copy[:, :, before : before + length, width] = 1
    return copy.flatten(0, 1)


def rounded(count: int, like: Tensor) -> int:
    """So many numbers, rounded up as products need it."""
    step = ROUND if like.dtype == torch.bfloat16 else LINE // like.element_size()
    return -(-count // step) * step


def _divide(mixed: Tensor, out: Tensor, exact: Callable[[slice], Tensor]) -> None:
    """Σ exp(s) V over Σ exp(s), beside it in (G, H, T, K + 1 …) → `out`; by `exact` for a text out of range."""
    width = out.shape[-1]
    sums = mixed[..., width : width + 1]
    torch.div(mixed[..., :width], sums, out=out)
    low, high = (float(end) for end in sums.aminmax())
    if not (low > SMALLEST and high < LARGEST):
        good = ((sums > SMALLEST) & (sums < LARGEST)).flatten(1).all(1)
        for i in (~good).nonzero().flatten().tolist():
            text = slice(i, i + 1)
            out[text] = exact(text)


def _exact(query: Tensor, key: Tensor, value: Tensor, terms: Terms) -> Tensor:
    """By PyTorch's own kernel."""
    bias = None if terms.bias is None else terms.bias.to(query.dtype)
    if terms.further is not None:
        term = terms.further(query, key)
        bias = term if bias is None else term + bias
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=terms.scale)
