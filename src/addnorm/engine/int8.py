"""int8: the blocks' matrices and what they read as bytes.

Each token's row gets a step and a zero of its own, so they do not depend on its company, and no text is beyond what
a sample had. Features that are large everywhere are made smaller and their column of the matrix larger, as
measured once on sample texts (SmoothQuant, Xiao 2023, eq. 4).

What `down` reads without a gate or norm before it is rounded as soon as it is computed, with one step for all
tokens, measured on the sample texts; there the few largest features stay float32 (LLM.int8, Dettmers 2022, with a
fixed choice), or bfloat16 where attention is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import Activation
from addnorm.engine.operators import ByteLinear, Bytes, Linear, Map, RowBytes
from addnorm.engine.walk import FastFeedForward, Walk, name, side_by_side
from addnorm.errors import AddnormError
from addnorm.nn.encoder import Encoder
from addnorm.nn.feedforward import FeedForward

# Texts of many kinds, one a line.
SAMPLE = Path(__file__).with_name("sample.txt")
# How much of a feature's size goes over to the matrix.
SHARE = 0.7
# Two features of so many stay floats before `down`; products of bfloat16 take two at a time.
KEPT = 48
# The others have so much more room than they took in the sample texts.
ROOM = 1.15


@dataclass(frozen=True)
class Range:
    """The smallest and largest value of each feature, (D,) each."""

    low: Tensor
    high: Tensor

    @property
    def largest(self) -> Tensor:
        """Of each feature, without sign."""
        return torch.maximum(-self.low, self.high).clamp(min=1e-5)

    def bytes(self) -> Bytes:
        """Bytes for values of this range."""
        return Bytes(float(self.low.min()), float(self.high.max()))

    def without(self, features: Tensor) -> "Range":
        """The range where some features count as 0, with room above."""
        return Range(self.low.index_fill(0, features, 0), ROOM * self.high.index_fill(0, features, 0))


def measure(encoder: Encoder, sample: Batch) -> tuple[dict[int, Range], Tensor]:
    """The range of what each linear map of the blocks reads, by the id of the module; and the stream, (N, D).

    Errors: values that are not finite.
    """
    shadow = Walk(encoder).copied(encoder, plain=True)
    found: dict[int, Range] = {}

    def see(key: int, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].float()
        low, high = x.amin(0), x.amax(0)
        if key in found:
            low, high = torch.minimum(low, found[key].low), torch.maximum(high, found[key].high)
        found[key] = Range(low, high)

    for own, copied in zip(encoder.blocks.modules(), shadow.blocks.modules(), strict=True):
        if type(own) is nn.Linear:
            copied.register_forward_pre_hook(partial(see, id(own)))
    with torch.no_grad():
        stream = shadow(sample)
    if not all(part.largest.isfinite().all() for part in found.values()):
        raise AddnormError("precision 'int8': the model's values are not finite on sample texts; take float32")
    return found, stream


def random_ids(encoder: Encoder) -> list[list[int]]:
    """Texts of random tokens, of several lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = [min(length, encoder.config.max_tokens or length) for length in (8, 16, 32, 64, 128, 256)]
    vocabulary = encoder.config.embeddings.vocabulary
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


class ByteMap(Map):
    """A linear map that reads floats and multiplies bytes. Shapes: (N, in) → (N, out)."""

    dtype = torch.float32

    def __init__(self, reads: RowBytes, product: ByteLinear) -> None:
        super().__init__()
        self.reads, self.product = reads, product

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        return self.product(self.reads(x))

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + W x + b, (N, in), (N, out) → (N, out)."""
        return self.product.add_to(residual.clone(), self.reads(x))


class ByteFeedForward(FastFeedForward):
    """Both maps to the inner width read the same bytes. Shapes: (N, D) → (N, D)."""

    def __init__(self, reads: RowBytes, *parts: Any) -> None:
        super().__init__(*parts)
        self.reads = reads

    def inner(self, x: Tensor) -> Tensor:
        """(N, D) → (N, F)."""
        return super().inner(self.reads(x))


class BytesThrough(nn.Module):
    """A feed-forward whose inner values are bytes at once: up, activation and rounding are one product.

    `kept_up` and `kept_down` compute the features that stay floats. Shapes: (N, D) → (N, D).
    """

    def __init__(
        self, reads: RowBytes, up: ByteLinear, down: ByteLinear, kept_up: ByteLinear, kept_down: Linear
    ) -> None:
        super().__init__()
        self.reads, self.up, self.down, self.kept_up, self.kept_down = reads, up, down, kept_up, kept_down

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) → (N, D)."""
        x = self.reads(x)
        none = torch.zeros(x.shape[0], len(self.down.steps))
        return self.down.add_to(self.kept_down.plus(self.kept_up(x), none), self.up(x))

    def plus(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + F(x), (N, D), (N, D) → (N, D)."""
        x = self.reads(x)
        return self.down.add_to(self.kept_down.plus(self.kept_up(x), residual), self.up(x))


class ByteWalk(Walk):
    """The walk where the maps of attention and feed-forward become products of bytes; `dtype`: of attention."""

    def __init__(self, encoder: Encoder, found: dict[int, Range], dtype: torch.dtype) -> None:
        super().__init__(encoder, dtype, dtype)
        self.found, self.writes = found, dtype

    def projections(self, modules: Sequence[nn.Linear]) -> ByteMap:
        """What attention reads its queries, keys and values with."""
        reads, weight, bias = self.evened(modules)
        return ByteMap(reads, ByteLinear(weight, bias, None, self.writes))

    def output(self, module: nn.Linear) -> ByteMap:
        """What attention, or a feed-forward, ends with."""
        return ByteMap(RowBytes(), ByteLinear(module.weight, module.bias, None, torch.float32))

    def evened(self, modules: Sequence[nn.Linear]) -> tuple[RowBytes, Tensor, Tensor | None]:
        """Maps of the same input side by side, their features evened out."""
        weight, bias = side_by_side(modules)
        found = self.found[id(modules[0])]
        size = found.largest**SHARE / weight.abs().amax(0).clamp(min=1e-5) ** (1 - SHARE)
        size = size / size.mean()
        return RowBytes(1 / size), weight * size, bias

    def feedforward(self, module: FeedForward) -> nn.Module:
        """Bytes throughout where nothing stands between activation and `down`."""
        activation = name(module.activation)
        if activation is None or not self.is_linear(module):
            return self.copied(module)
        if module.gate is None and module.inner_norm is None:
            return self.through(module, activation)
        both = [module.up] if module.gate is None else [module.gate, module.up]
        reads, weight, bias = self.evened(both)
        biases = [None] * len(both) if bias is None else bias.chunk(len(both))
        maps = [
            ByteLinear(w, b, None, self.writes, phi)
            for w, b, phi in zip(weight.chunk(len(both)), biases, (activation, None), strict=False)
        ]
        norm = None if module.inner_norm is None else self.lowered(module.inner_norm)
        return ByteFeedForward(reads, maps[0], maps[1] if module.gate else None, norm, self.output(module.down))

    def through(self, module: FeedForward, activation: Activation) -> BytesThrough:
        """Without gate and inner norm."""
        reads, weight, bias = self.evened([module.up])
        found = self.found[id(module.down)]
        at = found.largest.topk(min(2 * -(-len(found.low) // KEPT), len(found.low))).indices
        between = found.without(at).bytes()
        down = ByteLinear(module.down.weight.index_fill(1, at, 0), module.down.bias, between, torch.float32)
        kept_down = Linear(module.down.weight[:, at].to(self.writes), None)
        kept_up = ByteLinear(weight[at], None if bias is None else bias[at], None, kept_down.dtype, activation)
        return BytesThrough(reads, ByteLinear(weight, bias, None, between, activation), down, kept_up, kept_down)
