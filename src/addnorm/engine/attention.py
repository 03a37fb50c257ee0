"""Attention of the engine: projections fused, a kernel chosen by length, positions computed once a pass."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.engine.operators import Linear
from addnorm.engine.shared import Pass
from addnorm.nn.attention import Attention
from addnorm.nn.disentangled import RelativeTable

# Up to this many tokens plain products are faster than scaled_dot_product_attention: medians on two cores of a
# Zen 3 without AVX512, 12 heads of 32 and 64 features; from 24 tokens on they are slower, at 256 by half.
SHORT = 16

# Floats in a line of the cache. MKL's products differ in their last bits with the alignment of a matrix, so each
# matrix of a group starts on a line: only then has a text the same bits alone and in company.
LINE = 16


def lines(count: int) -> int:
    """Rounded up to whole lines."""
    return -(-count // LINE) * LINE


class FastAttention(nn.Module):
    """An `Attention` without sites and gradients. Shapes: x (N, D) → (N, D).

    `parts`: the maps to queries, keys and values, one of all where they read the same; `inner`: the copy of the
    plain module, whose other parts are used.
    """

    def __init__(self, inner: Attention, parts: list[Linear], output: Linear, table: RelativeTable | None) -> None:
        super().__init__()
        config = inner.config
        self.inner, self.parts, self.output, self.config = inner, nn.ModuleList(parts), output, config
        self.widths = [count * config.head_width for count in (config.heads, config.key_heads, config.key_heads)]
        self.by_key, self.by_query = self._tables(inner, table)

    def forward(self, x: Tensor, shared: Pass, paired: Tensor | None = None, wide: Tensor | None = None) -> Tensor:
        """(N, D) → (N, D)."""
        return self.output(self.mix(x, shared, paired, wide))

    def plus(
        self, residual: Tensor, x: Tensor, shared: Pass, paired: Tensor | None = None, wide: Tensor | None = None
    ) -> Tensor:
        """residual + F(x), (N, D), (N, D) → (N, D)."""
        return self.output.plus(self.mix(x, shared, paired, wide), residual)

    def mix(self, x: Tensor, shared: Pass, paired: Tensor | None, wide: Tensor | None) -> Tensor:
        """What the output projection reads, (N, D) → (N, H·K)."""
        inner = self.inner
        query, key, value = self._project(x, paired, wide)
        query = self._heads(query, inner.query_norm, inner.query_rotary, shared)  # (N, H, K)
        key = self._heads(key, inner.key_norm, inner.key_rotary, shared)
        value = self._heads(value, inner.value_norm, inner.value_rotary, shared)
        value = value if inner.value_residual is None else inner.value_residual(value, shared.values)
        mix = x.new_empty(len(x), self.widths[0])
        for index, (group, start) in enumerate(zip(shared.batch.groups, shared.starts, strict=True)):
            count, length = group.rows.shape
            rows = slice(start, start + count * length)
            q, k, v = (_split(part[rows], length).transpose(1, 2) for part in (query, key, value))
            if self.config.key_heads != self.config.heads:
                repeats = self.config.heads // self.config.key_heads
                k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            bias = shared.bias(inner, index, q)
            mixed = self._attend(q, k, v, bias, shared)  # (G, H, T, K)
            mix[rows].view(count, length, self.config.heads, -1).copy_(mixed.transpose(1, 2))
        mix = mix if inner.head_scale is None else inner.head_scale(mix)
        return mix if inner.mix_norm is None else inner.mix_norm(mix)

    def _project(self, x: Tensor, paired: Tensor | None, wide: Tensor | None) -> tuple[Tensor, ...]:
        if len(self.parts) == 1:
            return self.parts[0](x).split(self.widths, dim=1)
        paired = x if paired is None else paired
        both = self.parts[0](paired).split(self.widths[:2], dim=1)
        return *both, self.parts[1](x if wide is None else wide)

    def _heads(self, x: Tensor, norm: nn.Module | None, rotary: nn.Module | None, shared: Pass) -> Tensor:
        """(N, H·K) → (N, H, K), normalised over each head or over all, and turned."""
        if norm is not None and not self.config.norm_heads:
            x = norm(x)
        x = x.view(len(x), -1, self.config.head_width)
        if norm is not None and self.config.norm_heads:
            x = norm(x)
        return x if rotary is None else rotary(x, shared)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, shared: Pass) -> Tensor:
        """(G, H, T, K) each → (G, H, T, K)."""
        count, heads, length, width = query.shape
        on_lines = width % LINE == 0 and heads > 1 and all(part.stride(1) % LINE == 0 for part in (query, key, value))
        if length > SHORT and on_lines and self.inner.disentangled is None:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=self.inner.scale)
        alone = count * heads == 1  # one product alone is split among threads, and sums in another order
        q, k, v = (_on_lines(part.expand(2, -1, -1, -1) if alone else part) for part in (query, key, value))
        q = q[:, :, :length]
        scores = torch.baddbmm(
            q.new_empty(()), q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=self.inner.scale
        )  # (G·H, T, T on lines)
        real = _split(scores, heads)[..., :length]
        if bias is not None:
            real += bias
        if self.inner.disentangled is not None:
            real += self._distances(q, k, shared)
        scores[..., length:] = float("-inf")
        mixed = _split(torch.bmm(scores.softmax(-1), v.flatten(0, 1)), heads)
        return mixed[:count, ..., :width]

    def _distances(self, query: Tensor, key: Tensor, shared: Pass) -> Tensor:
        """The terms between contents and distances, (G, H, T, T)."""
        length = query.shape[2]
        rows, low, high = shared.distances(length)
        shape = (*query.shape[:2], length, length)
        terms = []
        for content, table, transposed in ((query, self.by_key, False), (key, self.by_query, True)):
            if table is not None:
                content, needed = content[:, :, :length], table[:, low : low + lines(high - low + 1)]
                needed = needed.expand(len(content), -1, -1, -1).flatten(0, 1)
                by_row = _split(torch.bmm(content.flatten(0, 1), needed.transpose(1, 2)), shape[1])
                term = by_row.gather(-1, (rows.T if transposed else rows).expand(shape))
                terms.append(term.transpose(-2, -1) if transposed else term)
        return sum(terms[1:], terms[0]) * self.inner.scale

    def _tables(self, inner: Attention, table: RelativeTable | None) -> tuple[Tensor | None, Tensor | None]:
        """All rows of the table of distances as keys and as queries, (H, R, K): they are constants."""
        if inner.disentangled is None:
            return None, None
        assert table is not None, "disentangled attention needs the encoder's table"
        rows = table.table.weight.detach()
        rows = rows if table.norm is None else table.norm(rows)
        projected = inner.disentangled.project(rows, inner.query, inner.key)

        def padded(part: Tensor | None) -> Tensor | None:
            width = self.config.head_width
            return None if part is None else F.pad(part, (0, lines(width) - width, 0, LINE)).contiguous()

        return padded(projected.key), padded(projected.query)


def _split(x: Tensor, size: int) -> Tensor:
    """(G·size, …) → (G, size, …)."""
    return x.view(-1, size, *x.shape[1:])


def _on_lines(part: Tensor) -> Tensor:
    """(G, H, T, K) → a copy with zeros up to whole lines, (G, H, T', K')."""
    *outer, length, width = part.shape
    if length % LINE == 0 and width % LINE == 0:
        return part.contiguous()
    copy = part.new_zeros(*outer, lines(length), lines(width))
    copy[..., :length, :width] = part
    return copy
