"""Encoder → Engine: a walk over the modules that puts a fast form in the place of each one that has one.

A piece without a fast form is copied as it is (its parameters are shared, its own parts are lowered), so every
encoder that can be built can be lowered. The encoder itself is not touched.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import Activation
from addnorm.engine.attention import FastAttention
from addnorm.engine.operators import Linear
from addnorm.engine.shared import Pass, in_order
from addnorm.errors import AddnormError
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention
from addnorm.nn.encoder import Encoder
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.heads import SentencePooling
from addnorm.nn.positions import Rotary

PRECISIONS = ("float32",)
PLANNED = ("bfloat16", "int8", "auto")


class Engine:
    """The fast form of an encoder, for inference: a batch → the stream after the last block (and final norm).

    It has no state of a pass, so several threads may call it. It holds packed copies of the encoder's matrices:
    an encoder that changes needs a new one (`Model.engine` sees to that).
    """

    def __init__(self, encoder: Encoder, pooling: SentencePooling | None, precision: str) -> None:
        self.precision = precision
        self.encoder, self.pooling = encoder, pooling

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Batch → (N, D). Errors: as the encoder's."""
        encoder, ordered = self.encoder, in_order(batch)
        x: Tensor = encoder.embeddings(ordered)
        bias, starts = encoder.position_bias, [0]
        for group in ordered.groups:
            starts.append(starts[-1] + group.rows.numel())
        shared = Pass(
            ordered,
            encoder.kernel_for(),
            tuple(None if bias is None else bias(group.rows.shape[1]).to(x) for group in ordered.groups),
            relative=None if self.fast_distances or encoder.relative is None else encoder.relative(ordered),
            starts=tuple(starts[:-1]),
            table=encoder.relative,
        )
        if encoder.wiring is not None:
            x = encoder.wiring(x, encoder.blocks, shared)
        else:
            for block in encoder.blocks:
                x = block(x, shared)
        x = x if encoder.norm is None else encoder.norm(x)
        return x if ordered is batch else x[batch.ungroup]

    @torch.no_grad()
    def encode(self, batch: Batch, normalize: bool | None = None) -> Tensor:
        """Batch → sentence vectors, (B, D)."""
        assert self.pooling is not None, "an engine lowered without pooling has no sentence vectors"
        return self.pooling(self(batch), batch, normalize)

    @property
    def fast_distances(self) -> bool:
        """Whether no block needs the table of distances anew in each pass."""
        return all(isinstance(block.attention.sublayer, FastAttention) for block in self.encoder.blocks)  # type: ignore[union-attr]


def lower(encoder: Encoder, precision: str = "float32", pooling: SentencePooling | None = None) -> Engine:
    """The engine of an encoder, and of the pooling that follows.

    Errors: a precision that is unknown or not there yet.
    """
    if precision in PLANNED:
        raise AddnormError(f"precision '{precision}' is not there yet; known: {', '.join(PRECISIONS)}")
    if precision not in PRECISIONS:
        raise AddnormError(f"precision '{precision}' is unknown; known: {', '.join(PRECISIONS)}")
    with torch.no_grad():
        walk = Walk(encoder)
        lowered = walk.copied(encoder)
        assert isinstance(lowered, Encoder)
        return Engine(lowered, None if pooling is None else walk.lowered(pooling), precision)


class FastFeedForward(nn.Module):
    """A `FeedForward` with its activation computed in the product before it. Shapes: (N, D) → (N, D)."""

    def __init__(self, first: Linear, up: Linear | None, norm: nn.Module | None, down: Linear) -> None:
        super().__init__()
        self.first, self.up, self.norm, self.down = first, up, norm, down

    def inner(self, x: Tensor) -> Tensor:
        """(N, D) → (N, F)."""
        h = self.first(x)
        h = h if self.up is None else h * self.up(x)
        return h if self.norm is None else self.norm(h)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) → (N, D)."""
        return self.down(self.inner(x))

    def plus(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + F(x), (N, D), (N, D) → (N, D)."""
        return self.down.plus(self.inner(x), residual)


class FastUnit(AddNorm):
    """An `AddNorm` with α = β = 1 and no norm of the branch, whose last product adds the residual."""

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        """(N, D) → (N, D)."""
        h = x if self.norm_in is None else self.norm_in(x)
        x = self.sublayer.plus(x, h, *inputs)  # type: ignore[operator]
        return x if self.norm_out is None else self.norm_out(x)


class FastRotary(nn.Module):
    """A `Rotary` whose angles are computed once a pass."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        """(N, H, K) → (N, H, K). Errors: a text longer than the limit."""
        limit, width = self.rotary.config.limit, self.rotary.width
        longest = shared.batch.lengths[-1]
        if limit is not None and longest > limit:
            raise AddnormError(
                f"position {longest - 1} is beyond the {limit} of the model's rotation; shorten the text"
            )
        cos, sin = shared.rotation(self.rotary, x.dtype)
        turned = x.new_empty(x.shape)
        part, result = x[..., :width], turned[..., :width]
        if self.rotary.config.interleaved:
            (a, b), (first, second) = (part[..., 0::2], part[..., 1::2]), (result[..., 0::2], result[..., 1::2])
        else:
            (a, b), (first, second) = part.chunk(2, dim=-1), result.chunk(2, dim=-1)
        # Not by addcmul: it rounds once in vectors and twice at their end.
        torch.sub(a * cos, b * sin, out=first)
        torch.add(b * cos, a * sin, out=second)
        turned[..., width:] = x[..., width:]
        return turned


class Walk:
    """The walk: which module becomes what. Matrices that several modules share are packed once."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.packed: dict[Any, Linear] = {}

    def lowered(self, module: nn.Module) -> Any:
        """The fast form of a module, or its copy."""
        if type(module) is nn.Linear:
            return self.linear([module])
        if type(module) is FeedForward:
            return self.feedforward(module)
        if type(module) is Attention:
            return self.attention(module)
        if type(module) is AddNorm:
            return self.unit(module)
        return self.copied(module)

    def copied(self, module: nn.Module, plain: bool = False) -> Any:
        """The module for inference, without hooks; the parameters are the very same.

        Its parts are lowered or, `plain`, copied as well.
        """
        own = copy.copy(module)
        own._modules = {
            name: None
            if part is None or name in self.unread(module)
            else self.copied(part, plain=True)
            if plain
            else self.lowered(part)
            for name, part in module._modules.items()
        }
        own._forward_hooks, own._forward_pre_hooks = OrderedDict(), OrderedDict()
        own.training = False
        return own

    def unread(self, module: nn.Module) -> tuple[str, ...]:
        """Parts that are not on the way to the stream."""
        return ("pooler", "head") if module is self.encoder else ()

    def linear(self, modules: Sequence[nn.Linear], activation: Activation | None = None) -> Linear:
        """Linear maps of the same input side by side."""
        key = (*((id(m.weight), id(m.bias)) for m in modules), activation)
        if key not in self.packed:
            weight = modules[0].weight if len(modules) == 1 else torch.cat(tuple(m.weight for m in modules))
            self.packed[key] = Linear(weight, _biases(modules), activation)
        return self.packed[key]

    def feedforward(self, module: FeedForward) -> nn.Module:
        """Fast where its activation is one by name and its parts are linear maps."""
        maps = [module.up, module.down, *([] if module.gate is None else [module.gate])]
        activation = _name(module.activation)
        if activation is None or not all(type(part) is nn.Linear for part in maps):
            return self.copied(module)
        first = self.linear([module.up if module.gate is None else module.gate], activation)
        norm = None if module.inner_norm is None else self.lowered(module.inner_norm)
        up = None if module.gate is None else self.linear([module.up])
        return FastFeedForward(first, up, norm, self.linear([module.down]))

    def attention(self, module: Attention) -> nn.Module:
        """Fast unless scores are capped or weights shaped."""
        maps = [module.query, module.key, module.value, module.output]
        if module.config.softcap is not None or module.config.shaping or any(type(m) is not nn.Linear for m in maps):
            # The projections of distances are read, not called.
            return self.copied(module, plain=module.disentangled is not None)
        inner = self.copied(module, plain=True)
        for name in ("query_rotary", "key_rotary", "value_rotary"):
            rotary = getattr(inner, name)
            setattr(inner, name, None if rotary is None else FastRotary(rotary))
        for name in ("query_norm", "key_norm", "value_norm", "mix_norm", "head_scale", "value_residual"):
            part = getattr(module, name)
            setattr(inner, name, None if part is None else self.lowered(part))
        same = module.query.in_features == module.value.in_features and not self.has_queries
        groups = [maps[:3]] if same else [maps[:2], maps[2:3]]
        parts = [self.linear(group) for group in groups]
        return FastAttention(inner, parts, self.linear(maps[3:]), self.encoder.relative)

    def unit(self, module: AddNorm) -> nn.Module:
        """With the residual in its last product, where the equation's other slots allow it."""
        own = self.copied(module)
        plain = module.add.alpha.value == 1 and module.branch.value == 1 and module.norm_branch is None
        if plain and hasattr(own.sublayer, "plus"):
            own.__class__ = FastUnit
        return own

    @property
    def has_queries(self) -> bool:
        """Whether some block's queries come from elsewhere than its values."""
        return any(block.bottleneck is not None and block.bottleneck.queries for block in self.encoder.config.blocks)


def _biases(modules: Sequence[nn.Linear]) -> Tensor | None:
    if all(module.bias is None for module in modules):
        return None
    rows: list[Tensor] = [m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _name(activation: nn.Module) -> Activation | None:
    """What the configs call an activation."""
    if type(activation) is nn.GELU:
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    names: dict[type, Activation] = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Tanh: "tanh"}
    return names.get(type(activation))
