"""Multi-head self-attention (Vaswani 2017, section 3.2)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import AttentionConfig, ShapingConfig
from addnorm.nn.disentangled import Disentangled, Relative
from addnorm.nn.kernels import Kernel
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import Rotary, build_position_bias


@dataclass(frozen=True)
class Context:
    """What every attention of one pass shares.

    `biases`: for each group of the batch the term of the scores that all blocks add, (H, T, T), or None;
    `values`: the first block's values, (N, H, K), kept for a value residual; `relative`: the distances of
    disentangled attention.
    """

    batch: Batch
    kernel: Kernel
    biases: tuple[Tensor | None, ...]
    values: list[Tensor] = field(default_factory=list)
    relative: Relative | None = None


class Scores(nn.Module):
    """Q Kᵀ · scale, capped, + bias."""

    def __init__(self, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.softcap = softcap

    def forward(self, query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
        """(G, H, T, K), (G, H, T, K), (H, T, T) or (G, H, T, T) → (G, H, T, T)."""
        scores = query @ key.transpose(-2, -1) * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores if bias is None else scores + bias


class ShapedWeights(nn.Module):
    """a·I + b·softmax(scores) − g·C, a number a head; C is the softmax of equal scores (Noci 2023, eq. 5)."""

    def __init__(self, config: ShapingConfig, heads: int) -> None:
        super().__init__()
        self.identity = nn.Parameter(torch.full((heads,), config.identity))
        self.softmax = nn.Parameter(torch.full((heads,), config.softmax))
        self.centre = nn.Parameter(torch.full((heads,), config.centre))

    def forward(self, scores: Tensor) -> Tensor:
        """(G, H, T, T) → (G, H, T, T)."""
        a, b, g = (part[:, None, None] for part in (self.identity, self.softmax, self.centre))
        equal = torch.zeros_like(scores).masked_fill(scores == float("-inf"), float("-inf"))
        one = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device)
        return a * one + b * scores.softmax(-1) - g * equal.softmax(-1)


class ValueResidual(nn.Module):
    """λ·V₁ + (1−λ)·V, with V₁ the values of the first block (Zhou 2024)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, value: Tensor, values: list[Tensor]) -> Tensor:
        """(N, H, K) → (N, H, K); the first block of a pass leaves its values in `values`."""
        if not values:
            values.append(value)
            return value
        return self.share * values[0] + (1 - self.share) * value


class HeadScale(nn.Module):
    """A learned factor a head (Shleifer 2021)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def forward(self, mix: Tensor) -> Tensor:
        """(N, H·K) → (N, H·K)."""
        return mix * self.weight.repeat_interleave(mix.shape[1] // len(self.weight))


class Mix(nn.Module):
    """The groups' results, heads side by side, back in the order of the batch."""

    def forward(self, groups: list[Tensor], batch: Batch) -> Tensor:
        """Tensors of (G, H, T, K) → (N, H·K)."""
        rows = [mix.transpose(1, 2).flatten(0, 1).flatten(1) for mix in groups]  # (G·T, H·K)
        return rows[0] if len(batch) == 1 else torch.cat(rows)[batch.ungroup]


class Attention(nn.Module):
    """The sub-layer F: projections, attention within each text, output projection.

    Shapes: x (N, D) → (N, D).
    """

    def __init__(self, config: AttentionConfig, width: int) -> None:
        super().__init__()
        inner, shared = config.heads * config.head_width, config.key_heads * config.head_width
        self.config = config
        self.scale: float = config.head_width**-0.5 if config.scale is None else config.scale
        self.query = nn.Linear(width, inner, bias=config.bias)
        self.key = nn.Linear(width, shared, bias=config.bias and config.key_bias)
        self.value = nn.Linear(config.value_width or width, shared, bias=config.bias)
        self.query_norm = build_norm(config.query_norm, config.head_width if config.norm_heads else inner)
        self.key_norm = build_norm(config.key_norm, config.head_width if config.norm_heads else shared)
        self.value_norm = build_norm(config.value_norm, config.head_width if config.norm_heads else shared)
        rotary = config.rotary
        self.query_rotary = Rotary(rotary, config.head_width) if rotary else None
        self.key_rotary = Rotary(rotary, config.head_width) if rotary else None
        self.value_rotary = Rotary(rotary, config.head_width) if rotary and rotary.value else None
        self.position_bias = build_position_bias(config.position_bias, config.heads)
        split = config.disentangled
        self.disentangled = Disentangled(split, config, width, self.scale) if split else None
        self.scores = Scores(self.scale, config.softcap)
        self.weights = ShapedWeights(config.shaping, config.heads) if config.shaping else nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(config.weights_dropout)
        share = config.value_residual
        self.value_residual = None if share is None else ValueResidual(share)
        self.mix = Mix()
        self.head_scale = HeadScale(config.heads) if config.head_scale else None
        self.mix_norm = build_norm(config.mix_norm, inner)
        self.output = nn.Linear(inner, width, bias=config.output_bias)
        self.output_dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, context: Context, paired: Tensor | None = None, wide: Tensor | None = None
    ) -> Tensor:
        """(N, D) → (N, D); `paired`: what queries and keys come from, `wide`: values, where that is not x."""
        batch, paired, wide = context.batch, x if paired is None else paired, x if wide is None else wide
        query = self._heads(self.query(paired), self.query_norm, self.query_rotary, batch)  # (N, H, K)
        key = self._heads(self.key(paired), self.key_norm, self.key_rotary, batch)
        value = self._heads(self.value(wide), self.value_norm, self.value_rotary, batch)
        value = value if self.value_residual is None else self.value_residual(value, context.values)
        distances = self._distances(context)
        groups = []
        for group, shared, distance in zip(batch.groups, context.biases, distances, strict=True):
            q, k, v = (part[group.rows].transpose(1, 2) for part in (query, key, value))  # (G, H, T, K)
            if k.shape[1] != q.shape[1]:
                repeats = q.shape[1] // k.shape[1]
                k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            bias = self._bias(q, shared)
            bias = bias if distance is None else _plus(bias, distance(q, k))
            groups.append(context.kernel.run(q, k, v, bias, self))
        mix = self.mix(groups, batch)  # (N, H·K)
        mix = mix if self.head_scale is None else self.head_scale(mix)
        mix = mix if self.mix_norm is None else self.mix_norm(mix)
        return self.output_dropout(self.output(mix))

    def _heads(self, x: Tensor, norm: nn.Module | None, rotary: nn.Module | None, batch: Batch) -> Tensor:
        """(N, H·K) → (N, H, K), normalised over each head or over all, and turned."""
        if norm is not None and not self.config.norm_heads:
            x = norm(x)
        x = x.view(len(x), -1, self.config.head_width)
        if norm is not None and self.config.norm_heads:
            x = norm(x)
        return x if rotary is None else rotary(x, batch.positions)

    def _distances(self, context: Context) -> list[Callable[[Tensor, Tensor], Tensor] | None]:
        """For each group what gives its term between contents and distances; None without one."""
        module, relative = self.disentangled, context.relative
        if module is None:
            return [None] * len(context.biases)
        assert relative is not None, "disentangled attention needs the encoder's table"
        projected = module.project(relative.table, self.query, self.key)
        return [partial(module, projected=projected, rows=rows) for rows in relative.rows]

    def _bias(self, query: Tensor, shared: Tensor | None) -> Tensor | None:
        """The terms of the scores that depend on places alone, (H or 1, T, T), or None."""
        length, window = query.shape[-2], self.config.window
        bias = shared
        if self.position_bias is not None:
            bias = _plus(bias, self.position_bias(length).to(query))
        if window is not None and length > window + 1:
            place = torch.arange(length, device=query.device)
            beyond = (place[None, :] - place[:, None]).abs() > window
            bias = _plus(bias, query.new_zeros(1, length, length).masked_fill(beyond, float("-inf")))
        return bias


def _plus(bias: Tensor | None, term: Tensor) -> Tensor:
    return term if bias is None else bias + term
