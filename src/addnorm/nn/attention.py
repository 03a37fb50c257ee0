"""Multi-head self-attention (Vaswani 2017, section 3.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import AttentionConfig
from addnorm.nn.kernels import Kernel
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import Rotary, build_position_bias


@dataclass(frozen=True)
class Context:
    """What every attention of one pass shares.

    `biases`: for each group of the batch the term of the scores that all blocks add, (H, T, T), or None.
    """

    batch: Batch
    kernel: Kernel
    biases: tuple[Tensor | None, ...]


class Scores(nn.Module):
    """Q Kᵀ · scale, capped, + bias."""

    def __init__(self, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.softcap = softcap

    def forward(self, query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
        """(G, H, T, K), (G, H, T, K), (H, T, T) → (G, H, T, T)."""
        scores = query @ key.transpose(-2, -1) * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores if bias is None else scores + bias


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
        self.key = nn.Linear(width, shared, bias=config.bias)
        self.value = nn.Linear(width, shared, bias=config.bias)
        self.query_norm = build_norm(config.query_norm, config.head_width if config.norm_heads else inner)
        self.key_norm = build_norm(config.key_norm, config.head_width if config.norm_heads else shared)
        rotary = config.rotary
        self.query_rotary = Rotary(rotary, config.head_width) if rotary else None
        self.key_rotary = Rotary(rotary, config.head_width) if rotary else None
        self.value_rotary = Rotary(rotary, config.head_width) if rotary and rotary.value else None
        self.position_bias = build_position_bias(config.position_bias, config.heads)
        self.scores = Scores(self.scale, config.softcap)
        self.weights = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(config.weights_dropout)
        self.mix = Mix()
        self.mix_norm = build_norm(config.mix_norm, inner)
        self.output = nn.Linear(inner, width, bias=config.output_bias)
        self.output_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        batch = context.batch
        query = self._heads(self.query(x), self.query_norm, self.query_rotary, batch)  # (N, H, K)
        key = self._heads(self.key(x), self.key_norm, self.key_rotary, batch)
        value = self._heads(self.value(x), None, self.value_rotary, batch)
        groups = []
        for group, shared in zip(batch.groups, context.biases, strict=True):
            q, k, v = (part[group.rows].transpose(1, 2) for part in (query, key, value))  # (G, H, T, K)
            if k.shape[1] != q.shape[1]:
                repeats = q.shape[1] // k.shape[1]
                k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            groups.append(context.kernel.run(q, k, v, self._bias(q, shared), self))
        mix = self.mix(groups, batch)  # (N, H·K)
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
