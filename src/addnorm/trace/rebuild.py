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
from addnorm.trace.record import Trace


def rebuild(block: Block, x: Tensor) -> eq.Steps:
    """Every step of a block in float64 from its weights and its input (T, D), by site name within the block."""
    attention, feedforward = block.attention, block.feedforward
    assert isinstance(attention.sublayer, Attention)
    assert isinstance(feedforward.sublayer, FeedForward)
    return eq.block(
        _array(x),
        {"sublayer": _attention(attention.sublayer)} | _slots(attention),
        {"sublayer": _feedforward(feedforward.sublayer)} | _slots(feedforward),
    )


def check_block(encoder: Encoder, trace: Trace, index: int) -> dict[str, float]:
    """The largest difference between the recorded and the rebuilt value, at each site of a block.

    `trace`: of one text, with the block's sites and the stream before it.
    """
    block = encoder.blocks[index]
    assert isinstance(block, Block)
    steps = rebuild(block, trace[stream_before(index)])
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


def _attention(module: Attention) -> Callable[[eq.Array], eq.Steps]:
    (WQ, bQ), (WK, bK), (WV, bV), (WO, bO) = map(_map, (module.query, module.key, module.value, module.output))
    return partial(
        eq.multi_head_attention,
        WQ=WQ, WK=WK, WV=WV, WO=WO, bQ=bQ, bK=bK, bV=bV, bO=bO,
        heads=module.config.heads,
    )  # fmt: skip


ACTIVATIONS: dict[type[nn.Module], Callable[[nn.Module], eq.Function]] = {
    nn.ReLU: lambda module: eq.relu,
    nn.GELU: lambda module: eq.gelu if module.approximate == "none" else eq.gelu_tanh,
    nn.SiLU: lambda module: eq.silu,
    nn.Tanh: lambda module: np.tanh,
}


def _feedforward(module: FeedForward) -> Callable[[eq.Array], eq.Steps]:
    (W1, b1), (W2, b2) = _map(module.up), _map(module.down)
    activation = ACTIVATIONS[type(module.activation)](module.activation)
    if module.gate is None:
        return partial(eq.feed_forward, W1=W1, W2=W2, b1=b1, b2=b2, activation=activation)
    V, c = _map(module.gate)
    return partial(eq.gated_feed_forward, W1=W1, W2=W2, V=V, b1=b1, b2=b2, c=c, activation=activation)


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
