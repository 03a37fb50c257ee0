"""A block taken from the model and computed again by `equations.py`, step by step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from addnorm import equations as eq
from addnorm.config import Learned
from addnorm.errors import AddnormError
from addnorm.nn.addnorm import AddNorm, Scale
from addnorm.nn.attention import Attention, ShapedWeights
from addnorm.nn.convolution import Convolution
from addnorm.nn.disentangled import Relative
from addnorm.nn.encoder import Block, Bottleneck, Encoder
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.norms import Affine, Derf, DyT, Times
from addnorm.nn.positions import Rotary
from addnorm.trace.record import Trace


def rebuild(
    block: Block,
    x: Tensor,
    bias: Tensor | None = None,
    relative: Relative | None = None,
    first: Tensor | None = None,
) -> eq.Steps:
    """Every step of a block in float64 from its weights and its input (T, D), by site name within the block.

    `bias`: what the encoder adds to the scores of every block, (H, T, T); `relative`: its distances;
    `first`: the first block's values, (T, H, K), that a value residual looks back to.
    """
    attention, feedforward = block.attention, block.feedforward
    assert isinstance(attention.sublayer, Attention)
    assert isinstance(feedforward.sublayer, FeedForward)
    return eq.block(
        _array(x),
        {"sublayer": _attention(attention.sublayer, len(x), bias, relative, first)} | _slots(attention),
        {"sublayer": _feedforward(feedforward.sublayer)} | _slots(feedforward),
        None if block.convolution is None else _convolution(block.convolution),
        [_further(unit) for unit in block.further],
        None if block.bottleneck is None else _bottleneck(block.bottleneck),
    )


def check_block(encoder: Encoder, trace: Trace, index: int) -> dict[str, float]:
    """The largest difference between the recorded and the rebuilt value, at each site of a block.

    `trace`: of one text, with the block's sites and the stream before it. Errors: units in another wiring,
    which the equations of one stream do not describe.
    """
    if encoder.config.wiring is not None:
        raise AddnormError(f"blocks in the wiring '{encoder.config.wiring.kind}' are not those of equations.py")
    block = encoder.blocks[index]
    assert isinstance(block, Block)
    x = trace[stream_before(index)]
    bias, relative = encoder.position_bias, encoder.relative
    steps = rebuild(
        block,
        x,
        None if bias is None else bias(len(x)),
        None if relative is None else relative.of([len(x)]),
        _first_values(encoder, trace, index),
    )
    return {
        f"blocks.{index}.{name}": _largest(step, _array(trace[f"blocks.{index}.{name}"]).reshape(step.shape))
        for name, step in steps.items()
    }


def _first_values(encoder: Encoder, trace: Trace, index: int) -> Tensor | None:
    """The values that the first block with a value residual left, for those after it."""
    for i, block in enumerate(encoder.config.blocks[:index]):
        if block.attention.value_residual is not None:
            values: Tensor = trace[f"blocks.{i}.attention.value_residual"]
            return values
    return None


def _largest(a: eq.Array, b: eq.Array) -> float:
    """The largest difference; scores beyond a window are −∞ on both sides."""
    with np.errstate(invalid="ignore"):
        return float(np.where(a == b, 0.0, np.abs(a - b)).max())


def stream_before(index: int) -> str:
    """The site of the stream that enters a block."""
    return f"blocks.{index - 1}" if index else "embeddings"


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().to(torch.float64).cpu().numpy()


def _map(linear: nn.Linear) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """W (in, out) and b of  x·W + b."""
    return _array(linear.weight).T, 0.0 if linear.bias is None else _array(linear.bias)


def _attention(
    module: Attention, length: int, bias: Tensor | None, relative: Relative | None, values: Tensor | None
) -> Callable[[eq.Array], eq.Steps]:
    (WQ, bQ), (WK, bK), (WV, bV), (WO, bO) = map(_map, (module.query, module.key, module.value, module.output))
    config = module.config
    norms = {name: getattr(module, name) for name in ("query_norm", "key_norm", "value_norm", "mix_norm")}
    rotaries = {name: getattr(module, name) for name in ("query_rotary", "key_rotary", "value_rotary")}
    inner = {name: _over_heads(norm, config.norm_heads) for name, norm in norms.items() if norm is not None}
    inner |= {name: _rotary(rotary, length) for name, rotary in rotaries.items() if rotary is not None}
    if module.head_scale is not None:
        gains = _array(module.head_scale.weight)
        inner["head_scale"] = lambda mix: (mix.reshape(len(mix), len(gains), -1) * gains[:, None]).reshape(mix.shape)
    if module.value_residual is not None:
        share, first = module.value_residual.share, None if values is None else _array(values)
        inner["value_residual"] = lambda value: value if first is None else share * first + (1 - share) * value
    return partial(
        eq.multi_head_attention,
        WQ=WQ, WK=WK, WV=WV, WO=WO, bQ=bQ, bK=bK, bV=bV, bO=bO,
        heads=config.heads, kv_heads=config.kv_heads, inner=inner,
        scale=module.scale, bias=_bias(module, length, bias), softcap=config.softcap, shaping=_shaping(module),
        distances=_distances(module, relative) if relative else None,
    )  # fmt: skip


def _shaping(module: Attention) -> tuple[eq.Array, eq.Array, eq.Array] | None:
    weights = module.weights
    if not isinstance(weights, ShapedWeights):
        return None
    a, b, g = (_array(part)[:, None, None] for part in (weights.identity, weights.softmax, weights.centre))
    return a, b, g


def _over_heads(norm: nn.Module, each: bool) -> eq.Function:
    """A norm of queries or keys (T, H, K): over each head's features, or over all heads' together."""
    function = NORMS[type(norm)](norm)
    return function if each else lambda x: function(x.reshape(len(x), -1)).reshape(x.shape)


def _rotary(module: Rotary, length: int) -> eq.Function:
    return partial(
        eq.rotate,
        positions=np.arange(length, dtype=float),
        frequencies=_array(module.frequencies()),
        interleaved=module.config.interleaved,
    )


def _distances(module: Attention, relative: Relative) -> Callable[[eq.Array, eq.Array], eq.Array] | None:
    """The term of the scores between contents and distances."""
    own = module.disentangled
    if own is None:
        return None
    table = _array(relative.table)

    def projected(projection: nn.Linear) -> eq.Array:
        W, b = _map(projection)
        return (table @ W + b).reshape(len(table), module.config.heads, -1).swapaxes(0, 1)

    return partial(
        eq.disentangled,
        rows=relative.rows[0].numpy(),
        scale=module.scale,
        position_key=projected(own.position_key or module.key) if own.config.content_to_position else None,
        position_query=projected(own.position_query or module.query) if own.config.position_to_content else None,
    )


def _bias(module: Attention, length: int, shared: Tensor | None) -> eq.Array:
    """What is added to the scores by place: the encoder's term, the block's own, and −∞ beyond the window."""
    terms = [shared] if shared is not None else []
    if module.position_bias is not None:
        terms.append(module.position_bias(length))
    place = np.arange(length)
    window = length if module.config.window is None else module.config.window
    beyond = np.where(np.abs(place[None, :] - place[:, None]) > window, -np.inf, 0.0)
    return sum((_array(term) for term in terms), start=beyond)


ACTIVATIONS: dict[type[nn.Module], Callable[[nn.Module], eq.Function]] = {
    nn.ReLU: lambda module: eq.relu,
    nn.GELU: lambda module: eq.gelu if module.approximate == "none" else eq.gelu_tanh,
    nn.SiLU: lambda module: eq.silu,
    nn.Tanh: lambda module: np.tanh,
}


def _feedforward(module: FeedForward) -> Callable[[eq.Array], eq.Steps]:
    (W1, b1), (W2, b2) = _map(module.up), _map(module.down)
    activation = ACTIVATIONS[type(module.activation)](module.activation)
    norm = None if module.inner_norm is None else NORMS[type(module.inner_norm)](module.inner_norm)
    given: dict[str, Any] = {"W1": W1, "W2": W2, "b1": b1, "b2": b2, "activation": activation, "inner_norm": norm}
    if module.gate is None:
        return partial(eq.feed_forward, **given)
    V, c = _map(module.gate)
    return partial(eq.gated_feed_forward, V=V, c=c, **given)


def _convolution(module: Convolution) -> Callable[[eq.Array, eq.Array], eq.Steps]:
    conv, norm = module.conv, module.norm_out
    assert conv.bias is not None
    return partial(
        eq.convolution,
        W=_array(conv.weight),
        b=_array(conv.bias),
        activation=ACTIVATIONS[type(module.branch)](module.branch),
        groups=conv.groups,
        norm_out=None if norm is None else NORMS[type(norm)](norm),
    )


def _further(unit: nn.Module) -> dict[str, Any]:
    assert isinstance(unit, AddNorm)
    assert isinstance(unit.sublayer, FeedForward)
    return {"sublayer": _feedforward(unit.sublayer)} | _slots(unit)


def _bottleneck(unit: AddNorm) -> dict[str, Any]:
    module = unit.sublayer
    assert isinstance(module, Bottleneck)

    def way(name: str) -> Callable[[eq.Array], eq.Steps] | None:
        linear, norm = getattr(module, name), getattr(module, f"{name}_norm")
        if linear is None:
            return None
        W, b = _map(linear)

        def steps(x: eq.Array) -> eq.Steps:
            h = x @ W + b
            return {name: h} | ({f"{name}_norm": NORMS[type(norm)](norm)(h)} if norm is not None else {})

        return steps

    W, b = _map(module.exit)
    return {"entry": way("entry"), "queries": way("queries"), "exit": lambda x: x @ W + b, "slots": _slots(unit)}


def _slots(unit: AddNorm) -> dict[str, Any]:
    norms = {"norm_in": unit.norm_in, "norm_branch": unit.norm_branch, "norm_out": unit.norm_out}
    filled = {name: NORMS[type(norm)](norm) for name, norm in norms.items() if norm is not None}
    return filled | {"alpha": _scale(unit.add.alpha), "beta": _scale(unit.branch)}


def _scale(scale: Scale) -> Any:
    return _array(scale.weight) if isinstance(scale.value, Learned) else scale.value


def _affine(norm: Any) -> dict[str, Any]:
    return {"gain": _array(norm.weight), "bias": 0.0 if norm.bias is None else _array(norm.bias)}


def _times(norm: Times) -> eq.Function:
    inner = NORMS[type(norm.norm)](norm.norm)
    return lambda x: norm.factor * inner(x)


def _layer_norm(norm: Any) -> eq.Function:
    bias = 0.0 if norm.bias is None else _array(norm.bias)
    return partial(eq.layer_norm, gain=_array(norm.weight), bias=bias, eps=norm.eps)


NORMS: dict[type[nn.Module], Callable[[Any], eq.Function]] = {
    nn.LayerNorm: _layer_norm,
    Affine: lambda norm: partial(eq.affine, **_affine(norm)),
    DyT: lambda norm: partial(eq.dyt, slope=_array(norm.slope), **_affine(norm)),
    Derf: lambda norm: partial(eq.derf, slope=_array(norm.slope), shift=_array(norm.shift), **_affine(norm)),
    Times: _times,
    nn.RMSNorm: lambda norm: partial(eq.rms_norm, gain=_array(norm.weight), eps=norm.eps),
    nn.BatchNorm1d: lambda norm: partial(
        eq.batch_norm,
        mean=_array(norm.running_mean),
        variance=_array(norm.running_var),
        gain=_array(norm.weight),
        bias=_array(norm.bias),
        eps=norm.eps,
    ),
}
