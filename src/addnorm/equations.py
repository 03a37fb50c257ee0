"""The mathematics of one encoder block in plain NumPy, float64, to be read beside the paper.

Vaswani et al. 2017, "Attention is all you need". One text: X is (T, D), rows are tokens, and a linear
map is x·W + b with W (in, out). Each function that has inner steps returns them by name, in the order in
which they happen; the last one is its result. The names are those of the sites of a traced model.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Steps = dict[str, Array]
Function = Callable[[Array], Array]


def result(steps: Steps) -> Array:
    """The last step."""
    return list(steps.values())[-1]


# --- functions of one row -----------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    """e^x / Σ e^x along the last axis; the maximum is taken out first so that nothing overflows."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x: Array, gain: Array, bias: Array | float, eps: float) -> Array:
    """Mean 0 and variance 1 over the features of each token, then gain and bias (Ba 2016, eq. 3 and 4)."""
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return gain * (x - mean) / np.sqrt(variance + eps) + bias


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """Mean square 1 over the features of each token, then gain (Zhang & Sennrich 2019, eq. 4)."""
    return gain * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def batch_norm(x: Array, mean: Array, variance: Array, gain: Array, bias: Array, eps: float) -> Array:
    """Each feature by the mean and variance it had over the tokens of earlier batches (Ioffe 2015)."""
    return gain * (x - mean) / np.sqrt(variance + eps) + bias


def relu(x: Array) -> Array:
    """max(0, x)."""
    return np.maximum(x, 0.0)


def gelu(x: Array) -> Array:
    """x·Φ(x), Φ the normal distribution function (Hendrycks & Gimpel 2016)."""
    erf = np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))
    return x * (1 + erf) / 2


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of gelu, from the same paper."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    """x·σ(x)."""
    return x * (1 + np.tanh(x / 2)) / 2  # σ(x) by tanh, which cannot overflow


# --- the two sub-layers -------------------------------------------------------------------------------


def attention(query: Array, key: Array, value: Array) -> Steps:
    """softmax(Q Kᵀ / √d_k) V (eq. 1). Shapes: query, key, value (T, K) or (H, T, K)."""
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    weights = softmax(scores)
    return {"scores": scores, "weights": weights, "mix": weights @ value}


def multi_head_attention(
    x: Array,
    WQ: Array,
    WK: Array,
    WV: Array,
    WO: Array,
    heads: int,
    bQ: Array | float = 0.0,
    bK: Array | float = 0.0,
    bV: Array | float = 0.0,
    bO: Array | float = 0.0,
) -> Steps:
    """Concat(head_1 … head_H) W^O (section 3.2.2). Shapes: x (T, D), WQ WK WV (D, H·K), WO (H·K, D)."""
    query, key, value = x @ WQ + bQ, x @ WK + bK, x @ WV + bV

    def split(a: Array) -> Array:  # (T, H·K) → (H, T, K)
        return a.reshape(len(a), heads, -1).swapaxes(0, 1)

    steps = attention(split(query), split(key), split(value))
    mix = steps["mix"].swapaxes(0, 1).reshape(len(x), -1)  # (T, H·K)
    return {"query": query, "key": key, "value": value} | steps | {"mix": mix, "output": mix @ WO + bO}


def feed_forward(
    x: Array, W1: Array, W2: Array, activation: Function, b1: Array | float = 0.0, b2: Array | float = 0.0
) -> Steps:
    """φ(x W₁ + b₁) W₂ + b₂ (eq. 2). Shapes: x (T, D), W1 (D, F), W2 (F, D)."""
    up = x @ W1 + b1
    active = activation(up)
    return {"up": up, "activation": active, "down": active @ W2 + b2}


def gated_feed_forward(
    x: Array,
    W1: Array,
    W2: Array,
    V: Array,
    activation: Function,
    b1: Array | float = 0.0,
    b2: Array | float = 0.0,
    c: Array | float = 0.0,
) -> Steps:
    """(φ(x V + c) ⊙ (x W₁ + b₁)) W₂ + b₂; SwiGLU when φ is silu (Shazeer 2020). Shapes: V like W1."""
    up, gate = x @ W1 + b1, x @ V + c
    active = activation(gate)
    product = active * up
    return {"up": up, "gate": gate, "activation": active, "product": product, "down": product @ W2 + b2}


# --- the unit and the block ---------------------------------------------------------------------------


def add_norm(
    x: Array,
    sublayer: Callable[[Array], Steps],
    norm_in: Function | None = None,
    norm_branch: Function | None = None,
    norm_out: Function | None = None,
    alpha: Array | float = 1.0,
    beta: Array | float = 1.0,
) -> Steps:
    """One Add & Norm unit, x ← N_out(α·x + β·N_branch(F(N_in(x)))), an absent norm being the identity."""
    steps: Steps = {}
    h = x
    if norm_in:
        h = steps["norm_in"] = norm_in(h)
    steps |= sublayer(h)
    h = result(steps)
    if norm_branch:
        h = steps["norm_branch"] = norm_branch(h)
    steps["branch"] = beta * h
    steps["add"] = alpha * x + steps["branch"]
    if norm_out:
        steps["norm_out"] = norm_out(steps["add"])
    return steps


def block(x: Array, attention: Mapping[str, Any], feedforward: Mapping[str, Any]) -> Steps:
    """An attention unit, then a feed-forward unit; each mapping holds the arguments of its `add_norm`.

    Post-norm: both have `norm_out` (the original Transformer, BERT). Pre-norm: both have `norm_in`.
    """
    first = add_norm(x, **attention)
    second = add_norm(result(first), **feedforward)
    return {f"attention.{name}": step for name, step in first.items()} | {
        f"feedforward.{name}": step for name, step in second.items()
    }
