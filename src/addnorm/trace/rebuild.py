"""A block taken from the model and computed again by `equations.py`, step by step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from addnorm import equations as eq
from addnorm.nn.addnorm import AddNorm, Scale
from addnorm.nn.attention import Attention
from addnorm.nn.encoder import Block, Encoder
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.positions import Rotary
from addnorm.trace.record import Trace


def rebuild(block: Block, x: Tensor, bias: Tensor | None = None) -> eq.Steps:
    """Every step of a block in float64 from its weights and its input (T, D), by site name within the block.

    `bias`: what the encoder adds to the scores of every block, (H, T, T).
    """
    attention, feedforward = block.attention, block.feedforward
    assert isinstance(attention.sublayer, Attention)
    assert isinstance(feedforward.sublayer, FeedForward)
    return eq.block(
        _array(x),
        {"sublayer": _attention(attention.sublayer, len(x), bias)} | _slots(attention),
        {"sublayer": _feedforward(feedforward.sublayer)} | _slots(feedforward),
    )


def check_block(encoder: Encoder, trace: Trace, index: int) -> dict[str, float]:
    """The largest difference between the recorded and the rebuilt value, at each site of a block.

    `trace`: of one text, with the block's sites and the stream before it.
    """
    block = encoder.blocks[index]
    assert isinstance(block, Block)
    x = trace[stream_before(index)]
    steps = rebuild(block, x, encoder.position_bias(len(x)) if encoder.position_bias is not None else None)
    return {
        f"blocks.{index}.{name}": float(np.abs(step - _array(trace[f"blocks.{index}.{name}"])).max())
        for name, step in steps.items()
    }


def stream_before(index: int) -> str:
    """The site of the stream that enters a block."""
    return f"blocks.{index - 1}" if index else "embeddings"


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().to(torch.float64).cpu().numpy()


def _map(linear: nn.Linear) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """W (in, out) and b of  x·W + b."""
    return _array(linear.weight).T, 0.0 if linear.bias is None else _array(linear.bias)


def _attention(module: Attention, length: int, bias: Tensor | None) -> Callable[[eq.Array], eq.Steps]:
    (WQ, bQ), (WK, bK), (WV, bV), (WO, bO) = map(_map, (module.query, module.key, module.value, module.output))
    config = module.config
    norms = {"query_norm": module.query_norm, "key_norm": module.key_norm, "mix_norm": module.mix_norm}
    rotaries = {name: getattr(module, name) for name in ("query_rotary", "key_rotary", "value_rotary")}
    inner = {name: _over_heads(norm, config.norm_heads) for name, norm in norms.items() if norm is not None}
    inner |= {name: _rotary(rotary, length) for name, rotary in rotaries.items() if rotary is not None}
    return partial(
        eq.multi_head_attention,
        WQ=WQ, WK=WK, WV=WV, WO=WO, bQ=bQ, bK=bK, bV=bV, bO=bO,
        heads=config.heads, kv_heads=config.kv_heads, inner=inner,
        scale=module.scale, bias=_bias(module, length, bias), softcap=config.softcap,
    )  # fmt: skip


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


def _slots(unit: AddNorm) -> dict[str, Any]:
    norms = {"norm_in": unit.norm_in, "norm_branch": unit.norm_branch, "norm_out": unit.norm_out}
    filled = {name: NORMS[type(norm)](norm) for name, norm in norms.items() if norm is not None}
    return filled | {"alpha": _scale(unit.add.alpha), "beta": _scale(unit.branch)}


def _scale(scale: Scale) -> Any:
    return scale.value if isinstance(scale.value, float) else _array(scale.weight)


def _layer_norm(norm: Any) -> eq.Function:
    bias = 0.0 if norm.bias is None else _array(norm.bias)
    return partial(eq.layer_norm, gain=_array(norm.weight), bias=bias, eps=norm.eps)


NORMS: dict[type[nn.Module], Callable[[Any], eq.Function]] = {
    nn.LayerNorm: _layer_norm,
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
