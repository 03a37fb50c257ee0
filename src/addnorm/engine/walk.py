"""The walk over an encoder's modules that puts a fast form in the place of each one that has one.

A piece without a fast form is copied as it is (its parameters are shared, its own parts are lowered), so every
encoder that can be built can be lowered. The encoder itself is not touched.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.config import Activation
from addnorm.engine import compiled
from addnorm.engine.around import FastEmbeddings, FastPooling, tables_of
from addnorm.engine.attention import FastAttention
from addnorm.engine.compiled.around import Lookup
from addnorm.engine.operators import Linear, Map
from addnorm.engine.shared import Pass
from addnorm.errors import AddnormError
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.encoder import Encoder
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.heads import SentencePooling
from addnorm.nn.positions import Rotary


class FastFeedForward(nn.Module):
    """A `FeedForward` with its activation computed in the product before it. Shapes: (N, D) → (N, D)."""

    def __init__(self, first: nn.Module, up: Map | None, norm: nn.Module | None, down: Map) -> None:
        super().__init__()
        self.first, self.up, self.norm, self.down = first, up, norm, down

    def inner(self, x: Tensor) -> Tensor:
        """(N, D) → (N, F)."""
        h = self.first(x)
        h = h if self.up is None else self.up.times(x, h)
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


class FastNorm(nn.Module):
    """A LayerNorm or RMSNorm in one pass over memory. Shapes: (…, D) → (…, D).

    `widens`: bfloat16 becomes float32, as PyTorch has no fast RMSNorm of bfloat16 with float32 gains.
    """

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm, widens: bool = False) -> None:
        super().__init__()
        self.norm, self.widens, self.centred = norm, widens, isinstance(norm, nn.LayerNorm)
        own = (norm.weight, getattr(norm, "bias", None))
        self.gain, self.bias = (None if part is None else part.detach() for part in own)
        self.eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        parts = [part for part in (self.gain, self.bias) if part is not None]
        self.fits = all(part.dtype == torch.float32 and part.is_contiguous() for part in parts)
        self.kernel = compiled.Norm.of(self.gain, self.bias, self.eps, self.centred)  # where it fits

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        if not self.fits or not compiled.takes(x):
            return self.norm(x.float() if self.widens else x)
        dtype = torch.float32 if self.widens else x.dtype
        if x.ndim == 2:
            return compiled.norm(x, self.gain, self.bias, self.eps, self.centred, dtype)
        return compiled.norm(x.flatten(0, -2), self.gain, self.bias, self.eps, self.centred, dtype).view(x.shape)


class FastRotary(nn.Module):
    """A `Rotary` whose angles are computed once a pass."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        """(N, H, K) → (N, H, K), perhaps in place. Errors: a text longer than the limit."""
        self.check(shared)
        width = self.rotary.width
        if compiled.takes(x):
            cos, sin = shared.rotation(self.rotary, torch.float32)
            compiled.rotate(x, cos, sin, self.rotary.config.interleaved)
            return x
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

    def check(self, shared: Pass) -> None:
        """Errors: a text longer than the limit."""
        limit, longest = self.rotary.config.limit, shared.batch.lengths[-1]
        if limit is not None and longest > limit:
            raise AddnormError(
                f"position {longest - 1} is beyond the {limit} of the model's rotation; shorten the text"
            )


class Walk:
    """Which module becomes what; `matrices`: the dtype of those in attention and feed-forward, their own where None.

    `dtype`: of what attention computes with. Matrices that several modules share are packed once.
    """

    def __init__(
        self, encoder: Encoder, matrices: torch.dtype | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.encoder, self.matrices, self.dtype = encoder, matrices, dtype
        self.packed: dict[Any, Linear] = {}

    def pooling(self, pooling: SentencePooling | None) -> SentencePooling | None:
        """What makes one vector of a text's stream."""
        own = None if pooling is None else self.copied(pooling)
        if type(own) is SentencePooling:
            own.__class__ = FastPooling
        return own

    def embeddings(self, module: Embeddings) -> Embeddings:
        """By one kernel, where they are tables that are added and a norm."""
        own = self.copied(module)
        tables, norm = tables_of(own), own.norm
        if tables is not None and (norm is None or (type(norm) is FastNorm and norm.fits)):
            own.__class__ = FastEmbeddings
            own.lookup = Lookup(tables, own.config.scale, None if norm is None else norm.kernel)
        return own

    def lowered(self, module: nn.Module) -> Any:
        """The fast form of a module, or its copy."""
        if type(module) is nn.Linear:
            return self.linear([module])
        if type(module) in (nn.LayerNorm, nn.RMSNorm) and len(module.normalized_shape) == 1:  # type: ignore[arg-type]
            return FastNorm(self.copied(module), type(module) is nn.RMSNorm and self.dtype is not None)
        if type(module) is Embeddings:
            return self.embeddings(module)
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

    def linear(
        self, modules: Sequence[nn.Linear], activation: Activation | None = None, dtype: torch.dtype | None = None
    ) -> Linear:
        """Linear maps of the same input side by side."""
        key = (*((id(m.weight), id(m.bias)) for m in modules), activation, dtype)
        if key not in self.packed:
            weight, bias = (None if part is None else part.to(dtype) for part in side_by_side(modules))
            assert weight is not None
            self.packed[key] = Linear(weight, bias, activation)
        return self.packed[key]

    def projections(self, modules: Sequence[nn.Linear]) -> Map:
        """What attention reads its queries, keys and values with."""
        return self.linear(modules, dtype=self.matrices)

    def output(self, module: nn.Linear) -> Map:
        """What attention ends with."""
        return self.linear([module], dtype=self.matrices)

    def feedforward(self, module: FeedForward) -> nn.Module:
        """Fast where its activation is one by name and its parts are linear maps."""
        activation = name(module.activation)
        if activation is None or not self.is_linear(module):
            return self.copied(module)
        first = self.linear([module.up if module.gate is None else module.gate], activation, self.matrices)
        norm = None if module.inner_norm is None else self.lowered(module.inner_norm)
        up = None if module.gate is None else self.linear([module.up], dtype=self.matrices)
        return FastFeedForward(first, up, norm, self.linear([module.down], dtype=self.matrices))

    @staticmethod
    def is_linear(module: FeedForward) -> bool:
        """Whether its maps are linear ones and nothing more."""
        return all(type(part) is nn.Linear for part in (module.up, module.down, module.gate) if part is not None)

    def attention(self, module: Attention) -> nn.Module:
        """Fast unless scores are capped or weights shaped."""
        maps = [module.query, module.key, module.value, module.output]
        if module.config.softcap is not None or module.config.shaping or any(type(m) is not nn.Linear for m in maps):
            # The projections of distances are read, not called.
            return self.copied(module, plain=module.disentangled is not None)
        inner = self.copied(module, plain=True)
        for part in ("query_rotary", "key_rotary", "value_rotary"):
            rotary = getattr(inner, part)
            setattr(inner, part, None if rotary is None else FastRotary(rotary))
        for part in ("query_norm", "key_norm", "value_norm", "mix_norm", "head_scale", "value_residual"):
            own = getattr(module, part)
            setattr(inner, part, None if own is None else self.lowered(own))
        same = module.query.in_features == module.value.in_features and not self.has_queries
        groups = [maps[:3]] if same else [maps[:2], maps[2:3]]
        parts = [self.projections(group) for group in groups]
        return FastAttention(inner, parts, self.output(module.output), self.encoder.relative, self.dtype)

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


def side_by_side(modules: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of maps of the same input as one map; a missing bias among others is 0."""
    first = modules[0]
    if len(modules) == 1:
        return first.weight.detach(), None if first.bias is None else first.bias.detach()
    weight = torch.cat(tuple(module.weight for module in modules))
    if all(module.bias is None for module in modules):
        return weight, None
    offsets = (m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules)
    return weight, torch.cat(tuple(offsets))


def name(activation: nn.Module) -> Activation | None:
    """What the configs call an activation."""
    if type(activation) is nn.GELU:
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    names: dict[type, Activation] = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Tanh: "tanh"}
    return names.get(type(activation))
