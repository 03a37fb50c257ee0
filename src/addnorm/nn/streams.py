"""How units are connected, where it is not one after the other on one stream.

A wiring takes the stream through all blocks. It gives each block a `connect`, which decides what a unit reads
(`unit.compute`) and what its branch is added to (`unit.join`); the units themselves stay what they are.
Each wiring says how it starts: all but ResiDual, B2T and parallel start as the plain stack.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.config import WiringConfig
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Context
from addnorm.nn.norms import build_norm

Connect = Callable[..., Tensor]  # (unit, x, *inputs) → x


def one_after_another(unit: AddNorm, x: Tensor, *inputs: Any) -> Tensor:
    """The plain connection: a unit reads the stream and its result is the stream."""
    return unit(x, *inputs)


class Parallel(nn.Module):
    """y = x + Attention(x) + FeedForward(x), each with its norms (Wang & Komatsuzaki 2021)."""

    def __init__(self, config: WiringConfig, width: int, depth: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, blocks: Iterable[nn.Module], context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        for block in blocks:
            start = x

            def connect(unit: AddNorm, x: Tensor, *inputs: Any, start: Tensor = start) -> Tensor:
                return unit.join(x, unit.compute(start, *inputs))

            x = block(x, context, connect)
        return x


class BottomToTop(nn.Module):
    """u = N(x + Attention(x)), y = N(u + FeedForward(u) + x): B2T (Takase 2022)."""

    def __init__(self, config: WiringConfig, width: int, depth: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, blocks: Iterable[nn.Module], context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        for block in blocks:
            start = x

            def connect(
                unit: AddNorm, x: Tensor, *inputs: Any, start: Tensor = start, top: Any = block.feedforward
            ) -> Tensor:
                return unit.join(x + start if unit is top else x, unit.compute(x, *inputs))

            x = block(x, context, connect)
        return x


class ResiDual(nn.Module):
    """A second stream D ← D + s·F(u), from s·x, beside the post-norm one; the end is u + N(D) (Xie 2023)."""

    def __init__(self, config: WiringConfig, width: int, depth: int) -> None:
        super().__init__()
        self.scale = config.scale
        self.norm = build_norm(config.norm, width)

    def forward(self, x: Tensor, blocks: Iterable[nn.Module], context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        dual = self.scale * x

        def connect(unit: AddNorm, x: Tensor, *inputs: Any) -> Tensor:
            nonlocal dual
            branch = unit.compute(x, *inputs)
            dual = dual + self.scale * branch
            return unit.join(x, branch)

        for block in blocks:
            x = block(x, context, connect)
        return x + (dual if self.norm is None else self.norm(dual))


class Dense(nn.Module):
    """x_l = Σ_j a_lj X_j over the embeddings and all blocks' results; a starts as the last (Pagliardini 2024)."""

    def __init__(self, config: WiringConfig, width: int, depth: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.eye(i + 2)[-1].clone() for i in range(depth))

    def forward(self, x: Tensor, blocks: Iterable[nn.Module], context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        results = [x]
        for block, weights in zip(blocks, self.weights, strict=True):
            results.append(block(x, context))
            x = torch.einsum("j,jnd->nd", weights, torch.stack(results))
        return x


class HyperMix(nn.Module):
    """What a unit reads of n streams (A_m), how they pass it (A_r), where it writes (B); Zhu 2024, eq. 1 to 5.

    It starts as the plain stack: unit k reads stream k mod n, all streams pass, all are written to.
    """

    def __init__(self, config: WiringConfig, width: int, index: int) -> None:
        super().__init__()
        n = config.streams
        self.read = nn.Parameter(torch.eye(n)[index % n].clone())
        self.keep = nn.Parameter(torch.eye(n))
        self.write = nn.Parameter(torch.ones(n))
        self.norm = nn.LayerNorm(width) if config.dynamic else None
        if config.dynamic:
            self.read_weight = nn.Parameter(torch.zeros(width))
            self.keep_weight = nn.Parameter(torch.zeros(width, n))
            self.write_weight = nn.Parameter(torch.zeros(width))
            self.step = nn.Parameter(torch.full((2,), 0.01))  # of what is read and kept, of what is written

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, n, D) → weights to read (…, n), to keep (…, n, n), to write (…, n)."""
        if self.norm is None:
            return self.read, self.keep, self.write
        h = self.norm(streams)  # (N, n, D)
        return (
            self.read + self.step[0] * torch.tanh(h @ self.read_weight),
            self.keep + self.step[0] * torch.tanh(h @ self.keep_weight),
            self.write + self.step[1] * torch.tanh(h @ self.write_weight),
        )


class HyperConnections(nn.Module):
    """n streams H: a unit reads A_mᵀH, and H ← B·F + A_rᵀH; the end is their sum (Zhu 2024).

    Between blocks the stream is (N, n, D).
    """

    def __init__(self, config: WiringConfig, width: int, depth: int) -> None:
        super().__init__()
        self.streams = config.streams
        self.mixes = nn.ModuleList(HyperMix(config, width, k) for k in range(2 * depth))

    def forward(self, x: Tensor, blocks: Iterable[nn.Module], context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        mixes = iter(self.mixes)

        def connect(unit: AddNorm, streams: Tensor, *inputs: Any) -> Tensor:
            read, keep, write = next(mixes)(streams)
            branch = unit.compute((read[..., None] * streams).sum(-2), *inputs)
            return unit.join(keep.transpose(-1, -2) @ streams, write[..., None] * branch[:, None])

        streams = x[:, None].expand(-1, self.streams, -1)
        for block in blocks:
            streams = block(streams, context, connect)
        return streams.sum(-2)


class DepthMix(nn.Module):
    """Σ_i softmax_i(w · RMSNorm(v_i)) v_i; w starts at 0, so as the mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, results: list[Tensor]) -> Tensor:
        """Tensors of (N, D) → (N, D)."""
        values = torch.stack(results)  # (i, N, D)
        return (torch.softmax(self.norm(values) @ self.query, dim=0)[..., None] * values).sum(0)


class AttentionResiduals(nn.Module):
    """What a unit reads is a softmax mixture of the embeddings and all earlier units' results (arXiv 2603.15031).

    Units have α = 0: their result is the bare branch.
    """

    def __init__(self, config: WiringConfig, width: int, depth: int) -> None:
        super().__init__()
        self.mixes = nn.ModuleList(DepthMix(width) for _ in range(2 * depth))

    def forward(self, x: Tensor, blocks: Iterable[nn.Module], context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        results, mixes = [x], iter(self.mixes)

        def connect(unit: AddNorm, x: Tensor, *inputs: Any) -> Tensor:
            results.append(unit(x, *inputs))
            return next(mixes)(results)

        for block in blocks:
            x = block(x, context, connect)
        return x


WIRINGS: dict[str, Callable[[WiringConfig, int, int], nn.Module]] = {
    "parallel": Parallel,
    "b2t": BottomToTop,
    "residual": ResiDual,
    "dense": Dense,
    "hyper": HyperConnections,
    "attention": AttentionResiduals,
}


def build_wiring(config: WiringConfig | None, width: int, depth: int) -> nn.Module | None:
    """The wiring of `depth` blocks that a config asks for; None for one unit after the other."""
    return None if config is None else WIRINGS[config.kind](config, width, depth)
