"""Attention of the engine: projections fused, a kernel chosen by length, positions computed once a pass."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.engine import compiled
from addnorm.engine.operators import Map
from addnorm.engine.scores import Terms, attend, attend_packed, is_near, placed, product, rounding
from addnorm.engine.shared import Pass
from addnorm.nn.attention import Attention
from addnorm.nn.disentangled import RelativeTable


class FastAttention(nn.Module):
    """An `Attention` without sites and gradients. Shapes: x (N, D) → (N, D).

    `parts`: the maps to queries, keys and values, one of all where they read the same; `inner`: the copy of the
    plain module, whose other parts are used; `dtype`: of queries, keys, values and scores.
    """

    def __init__(
        self,
        inner: Attention,
        parts: Sequence[Map],
        output: Map,
        table: RelativeTable | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        config, self.dtype = inner.config, dtype
        self.inner, self.parts, self.output, self.config = inner, nn.ModuleList(parts), output, config
        self.widths = [count * config.head_width for count in (config.heads, config.key_heads, config.key_heads)]
        self.by_key, self.by_query = self._tables(inner, table)
        others = ("query_norm", "key_norm", "value_norm", "value_residual", "head_scale", "mix_norm", "disentangled")
        turns = ("query_rotary", "key_rotary", "value_rotary")
        # Whether nothing but rotations, or nothing, stands between projections, attention and output.
        self.turns_only = all(getattr(inner, part) is None for part in others)
        self.direct = self.turns_only and all(getattr(inner, part) is None for part in turns)

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
        if self.direct and compiled.takes(query, key, value):
            return self._at_once(query, key, value, shared)
        query = self._heads(query, inner.query_norm, inner.query_rotary, shared)  # (N, H, K)
        key = self._heads(key, inner.key_norm, inner.key_rotary, shared)
        value = self._heads(value, inner.value_norm, inner.value_rotary, shared)
        value = value if inner.value_residual is None else inner.value_residual(value, shared.values)
        if self.dtype is not None:
            query, key, value = (part.to(self.dtype) for part in (query, key, value))
        window, plain = self.config.window, shared.is_plain(inner)
        if plain and query.is_cuda and query.dtype == torch.bfloat16:
            mix = attend_packed(query, key, value, inner.scale, window, shared.batch).flatten(1)
        elif inner.disentangled is None and compiled.takes(query, key, value):
            mix = self._at_once(query.flatten(1), key.flatten(1), value.flatten(1), shared)
        else:
            mix = self._by_length(query, key, value, window if plain else None, shared)
        mix = mix if inner.head_scale is None else inner.head_scale(mix)
        return mix if inner.mix_norm is None else inner.mix_norm(mix)

    def _at_once(self, query: Tensor, key: Tensor, value: Tensor, shared: Pass) -> Tensor:
        """(N, H·K) each, or less for fewer heads of keys → (N, H·K), all texts by the kernels."""
        mix = torch.empty(query.shape[0], self.widths[0], dtype=self.output.dtype)
        bias, inner, heads = None, self.inner, (self.config.heads, self.config.key_heads)
        if not shared.is_plain(inner):
            bias = shared.bias(inner, shared.batch.lengths[-1], query.new_empty(0, dtype=torch.float32))
        compiled.attend(
            query, key, value, heads, shared.batch.offsets, shared.pairs, inner.scale, mix, self.config.window, bias
        )
        return mix

    def _by_length(self, query: Tensor, key: Tensor, value: Tensor, window: int | None, shared: Pass) -> Tensor:
        """(N, H, K) each → (N, H·K); `window`: where nothing else is added to the scores."""
        inner = self.inner
        mix = query.new_empty(len(query), self.widths[0], dtype=self.output.dtype)
        for texts in shared.texts(query):
            q, k, v = texts.take(query), texts.take(key), texts.take(value, blank=True)
            if self.config.key_heads != self.config.heads:
                repeats = self.config.heads // self.config.key_heads
                k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            near = window is not None and is_near(window, q)
            bias = None if near else shared.bias(inner, texts.length, q)
            further = None if inner.disentangled is None else partial(self._distances, shared)
            terms = Terms(inner.scale, texts.lengths, bias, further, window if near else None, texts.real)
            texts.put(partial(attend, q, k, v, terms), mix, self.config.heads)
        return mix

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

    def _distances(self, shared: Pass, query: Tensor, key: Tensor) -> Tensor:
        """The terms between contents and distances, (G, H, T, T)."""
        length = query.shape[2]
        rows, low, high = shared.distances(length)
        shape = (*query.shape[:2], length, length)
        terms = []
        for content, table, transposed in ((query, self.by_key, False), (key, self.by_query, True)):
            if table is not None:
                step = rounding(table)
                needed = table[:, low : low + -(-(high - low + 1) // step) * step].repeat(len(content), 1, 1)
                by_row = _split(product(placed(content), needed.transpose(1, 2)), shape[1])
                term = by_row[:, :, :length].gather(-1, (rows.T if transposed else rows).expand(shape))
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
            if part is None:
                return None
            part = part.to(self.dtype)
            return F.pad(part, (0, -width % rounding(part), 0, rounding(part))).contiguous()

        return padded(projected.key), padded(projected.query)


def _split(x: Tensor, size: int) -> Tensor:
    """(G·size, …) → (G, size, …)."""
    return x.view(-1, size, *x.shape[1:])
