"""The mathematics of one encoder block in plain NumPy, float64, to be read beside the paper.

Vaswani et al. 2017, "Attention is all you need". One text: X is (T, D), rows are tokens, and a linear
map is x·W + b with W (in, out). Each function that has inner steps returns them by name, in the order in
which they happen; the last one is its result. The names are those of the sites of a traced model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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


def affine(x: Array, gain: Array, bias: Array | float = 0.0) -> Array:
    """Gain and bias alone (NoNorm; Sun 2020, section 3.3)."""
    return gain * x + bias


def dyt(x: Array, slope: Array | float, gain: Array, bias: Array | float = 0.0) -> Array:
    """tanh in a norm's place (Zhu 2025)."""
    return gain * np.tanh(slope * x) + bias


def derf(x: Array, slope: Array | float, shift: Array | float, gain: Array, bias: Array | float = 0.0) -> Array:
    """The error function in a norm's place (Chen 2025)."""
    return gain * np.vectorize(math.erf, otypes=[float])(slope * x + shift) + bias


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


def attention(
    query: Array,
    key: Array,
    value: Array,
    scale: float | None = None,
    bias: Array | float = 0.0,
    softcap: float | None = None,
    shaping: tuple[Array, Array, Array] | None = None,
) -> Steps:
    """softmax(Q Kᵀ / √d_k) V (eq. 1). Shapes: query, key, value (T, K) or (H, T, K).

    Later encoders choose another `scale`, add a `bias` by distance (Raffel 2020, Press 2022), and cap the
    scores smoothly at ±`softcap` (Gemma 2). `shaping`: a, b, g of a·I + b·softmax − g·C, C the softmax of
    equal scores (Noci 2023, eq. 5).
    """
    scores = query @ key.swapaxes(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = scores + bias
    weights = softmax(scores)
    if shaping is not None:
        a, b, g = shaping
        equal = softmax(np.where(np.isneginf(scores), scores, 0.0))
        weights = a * np.eye(scores.shape[-1]) + b * weights - g * equal
    return {"scores": scores, "weights": weights, "mix": weights @ value}


def rotate(x: Array, positions: Array, frequencies: Array, interleaved: bool = False) -> Array:
    """Pairs of features turned by position · frequency (Su 2021, eq. 34); what has no frequency stays.

    Shapes: x (T, H, K), positions (T), frequencies (R/2) with R ≤ K. A pair is features i and i + R/2, or
    interleaved 2i and 2i + 1.
    """
    angles = positions[:, None, None] * frequencies  # (T, 1, R/2)
    width = 2 * len(frequencies)
    first, second = (
        (slice(0, width, 2), slice(1, width, 2)) if interleaved else (slice(width // 2), slice(width // 2, width))
    )
    turned = x.copy()
    turned[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    turned[..., second] = x[..., second] * np.cos(angles) + x[..., first] * np.sin(angles)
    return turned


def disentangled(
    query: Array,
    key: Array,
    rows: Array,
    scale: float,
    position_key: Array | None = None,
    position_query: Array | None = None,
) -> Array:
    """(Q_i · K^r_δ(i,j) + K_j · Q^r_δ(i,j)) · scale: contents with distances (He 2021, eq. 4).

    The paper's second term has δ(j,i); all published weights are of the code, which has δ(i,j).
    Shapes: query, key (H, T, K), position_key, position_query (H, R, K), rows: δ as whole numbers (T, T).
    """
    scores = np.zeros((len(query), *rows.shape))
    if position_key is not None:
        scores += np.einsum("hik,hijk->hij", query, position_key[:, rows])
    if position_query is not None:
        scores += np.einsum("hjk,hijk->hij", key, position_query[:, rows])
    return scores * scale


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
    kv_heads: int | None = None,
    inner: Mapping[str, Function] | None = None,
    distances: Callable[[Array, Array], Array] | None = None,
    paired: Array | None = None,
    wide: Array | None = None,
    **options: Any,
) -> Steps:
    """Concat(head_1 … head_H) W^O (section 3.2.2). Shapes: x (T, D), WQ WK WV (D, H·K), WO (H·K, D).

    `kv_heads`: fewer heads of key and value, each shared by several queries (Ainslie 2023); `inner`: what
    happens on the way, by name: query_norm, query_rotary, likewise of key and value, value_residual on
    (T, H, K), head_scale, mix_norm on (T, H·K); `distances`: a term of the scores from query and key;
    `paired`: what queries and keys come from, `wide`: values, where that is not x; `options`: of `attention`.
    """
    steps, inner = {}, inner or {}

    def heads_of(name: str, W: Array, b: Array | float, count: int, source: Array | None) -> Array:
        steps[name] = (x if source is None else source) @ W + b
        a = steps[name].reshape(len(x), count, -1)  # (T, H, K)
        for step in (f"{name}_norm", f"{name}_rotary", f"{name}_residual"):
            if step in inner:
                a = steps[step] = inner[step](a)
        return np.repeat(a, heads // count, axis=1).swapaxes(0, 1)  # (H, T, K)

    shared = kv_heads or heads
    query, key, value = (
        heads_of("query", WQ, bQ, heads, paired),
        heads_of("key", WK, bK, shared, paired),
        heads_of("value", WV, bV, shared, wide),
    )
    if distances is not None:
        steps["disentangled"] = distances(query, key)
        options["bias"] = options.get("bias", 0.0) + steps["disentangled"]
    steps |= attention(query, key, value, **options)
    steps["mix"] = steps["mix"].swapaxes(0, 1).reshape(len(x), -1)  # (T, H·K)
    for step in ("head_scale", "mix_norm"):
        if step in inner:
            steps[step] = inner[step](result(steps))
    steps["output"] = result(steps) @ WO + bO
    return steps


def feed_forward(
    x: Array,
    W1: Array,
    W2: Array,
    activation: Function,
    b1: Array | float = 0.0,
    b2: Array | float = 0.0,
    inner_norm: Function | None = None,
) -> Steps:
    """φ(x W₁ + b₁) W₂ + b₂ (eq. 2). Shapes: x (T, D), W1 (D, F), W2 (F, D)."""
    up = x @ W1 + b1
    return _down({"up": up, "activation": activation(up)}, W2, b2, inner_norm)


def gated_feed_forward(
    x: Array,
    W1: Array,
    W2: Array,
    V: Array,
    activation: Function,
    b1: Array | float = 0.0,
    b2: Array | float = 0.0,
    c: Array | float = 0.0,
    inner_norm: Function | None = None,
) -> Steps:
    """(φ(x V + c) ⊙ (x W₁ + b₁)) W₂ + b₂; SwiGLU when φ is silu (Shazeer 2020). Shapes: V like W1."""
    up, gate = x @ W1 + b1, x @ V + c
    active = activation(gate)
    return _down({"up": up, "gate": gate, "activation": active, "product": active * up}, W2, b2, inner_norm)


def _down(steps: Steps, W2: Array, b2: Array | float, inner_norm: Function | None) -> Steps:
    if inner_norm:
        steps["inner_norm"] = inner_norm(result(steps))
    return steps | {"down": result(steps) @ W2 + b2}


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


def convolution(
    x: Array,
    after: Array,
    W: Array,
    b: Array,
    activation: Function,
    groups: int = 1,
    norm_out: Function | None = None,
) -> Steps:
    """N_out(after + φ(conv(x))), zeros standing beyond the text's ends. Shapes: W (out, in / groups, tokens)."""
    kernel = W.shape[2]
    padded = np.pad(x, ((kernel // 2, kernel // 2), (0, 0)))
    parts = [
        sum((part[s : s + len(x)] @ w[:, :, s].T for s in range(kernel)), start=np.zeros(()))
        for part, w in zip(np.split(padded, groups, axis=1), np.split(W, groups), strict=True)
    ]
    steps = {"conv": np.concatenate(parts, axis=1) + b}
    steps["branch"] = activation(steps["conv"])
    steps["add"] = after + steps["branch"]
    return steps | ({"norm_out": norm_out(steps["add"])} if norm_out else {})


def block(
    x: Array,
    attention: Mapping[str, Any],
    feedforward: Mapping[str, Any],
    beside: Callable[[Array, Array], Steps] | None = None,
    further: Sequence[Mapping[str, Any]] = (),
    bottleneck: Mapping[str, Any] | None = None,
) -> Steps:
    """An attention unit, then a feed-forward unit; each mapping holds the arguments of its `add_norm`.

    Post-norm: both have `norm_out` (the original Transformer, BERT). Pre-norm: both have `norm_in`.
    `beside`: a convolution of the block's input and output; `further`: feed-forward units that follow;
    `bottleneck`: a unit whose F leads in by `entry` (and by `queries` for queries and keys, x itself being
    there for values), through all others, and out by `exit`.
    """
    parts: dict[str, Steps] = {}

    def units(x: Array, **sources: Array) -> Array:
        sublayer = partial(attention["sublayer"], **sources) if sources else attention["sublayer"]
        parts["attention"] = add_norm(x, **{**attention, "sublayer": sublayer})
        parts["feedforward"] = add_norm(result(parts["attention"]), **feedforward)
        for k, unit in enumerate(further):
            parts[f"further.{k}"] = add_norm(result(list(parts.values())[-1]), **unit)
        return result(list(parts.values())[-1])

    def narrow(x: Array) -> Steps:
        assert bottleneck is not None
        ways = bottleneck["entry"](x), bottleneck["queries"](x) if bottleneck["queries"] else {}
        sources = {"paired": result(ways[1]), "wide": x} if ways[1] else {}
        return {**ways[0], **ways[1], "exit": bottleneck["exit"](units(result(ways[0]), **sources))}

    if bottleneck is None:
        after = units(x)
    else:
        parts["bottleneck"] = add_norm(x, narrow, **bottleneck["slots"])
        after = result(parts["bottleneck"])
    if beside:
        parts["convolution"] = beside(x, after)
    return {f"{part}.{name}": step for part, steps in parts.items() for name, step in steps.items()}
