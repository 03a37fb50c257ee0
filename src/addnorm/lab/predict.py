"""`predict`: what a stack will do at the start, from its config alone, and what a random pass does.

* Post-norm (also DeepNorm and other constant skips): the mean token cosine layer by layer, by the recursion of
  Giorlandino & Goldt (ICLR 2026, 2505.24333), and the diagram of where tokens or attention collapse.
* DyT and Derf before the sub-layers: the growth of the stream, by the kernel recursion (Doshi 2023).
* Xiong 2020, lemma 2: between which lines a pre-norm stream grows. (DeepNet's bound stands beside what it bounds,
  in `update`.)
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from addnorm.config import Activation, BlockConfig, EncoderConfig, InitConfig, Matrix, UnitConfig
from addnorm.errors import AddnormError
from addnorm.lab.fresh import attentions, fresh, random_tokens, streams
from addnorm.lab.signal import token_cosine
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.lab.variants import build
from addnorm.nn.activations import ACTIVATIONS

NOTE = (
    "Measured on random tokens; the recursion is the limit of wide stacks, and `limit` that of long texts too. "
    "A single draw departs from it where the cosine rises steeply, by a few hundredths; the mean over draws does not."
)
COLLAPSED = 0.99
BETAS = [0.25 * i for i in range(1, 17)]
SKIPS = [0.25 * i for i in range(13)]


def predict(
    betas: Sequence[float] = (0.5, 3.0),
    variants: Sequence[str] = ("post-norm",),
    depth: int = 24,
    seeds: int = 2,
    length: int = 128,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """Token cosine by layer, predicted and measured.

    `betas`: spread of the scores in units of √ln T, to which W_Q and W_K are scaled. Rows: variant, beta, seed,
    layer, measured, predicted, and `limit` for infinitely long texts.
    """
    rows: list[Row] = []
    runs = list(product(variants, betas, range(seeds)))
    for variant, beta, seed in track(runs, lambda run: f"{run[0]}, β = {run[1]}", progress):
        sizes: dict[str, Any] = {"width": 256, "heads": 1, "vocabulary": 1000} | size
        config = build(variant, depth, **sizes)
        encoder = fresh(config, seed)
        with torch.no_grad():
            factor = (beta / score_spread(config, length)) ** 0.5
            for attention in attentions(encoder):
                attention.query.weight.mul_(factor)
                attention.key.weight.mul_(factor)
        batch = random_tokens(1, length, config.embeddings.vocabulary, seed)
        measured = [token_cosine(x) for x in streams(encoder, batch)]
        limit = list(cosines(config, None, measured[0], beta))
        predicted = list(cosines(config, length, measured[0], beta))
        rows += [
            {"variant": variant, "beta": beta, "seed": seed, "layer": layer}
            | {"measured": measured[layer], "predicted": predicted[layer], "limit": limit[layer]}
            for layer in range(depth + 1)
        ]
    return Table("Token cosine, predicted and measured", tuple(rows), NOTE)


# --- the recursion for post-norm ----------------------------------------------------------------------


def cosines(
    config: EncoderConfig, length: int | None, first: float = 0.0, beta: float | None = None
) -> Iterable[float]:
    """Mean token cosine before the first block and after each (Giorlandino & Goldt, section 3).

    `length`: tokens of a text, None for the paper's limit of long ones; `first`: the cosine of the embeddings;
    `beta`: None for that of the config's init, which needs a length. Errors: not post-norm.
    """
    _check_post_norm(config)
    if beta is None and length is None:
        raise AddnormError("the init's spread of scores is relative to a text's length; give length or beta")
    beta = score_spread(config, length or 0) if beta is None else beta
    p = first
    yield p
    for block in config.blocks:
        p = _attention(p, config, block, beta, length)
        p = _feedforward(p, config, block)
        yield p


def _attention(p: float, config: EncoderConfig, block: BlockConfig, beta: float, length: int | None) -> float:
    unit, width = block.attention, config.width
    gain = (
        variance(config.init, "value", width, width) * width * variance(config.init, "output", width, width) * width
    )
    skip = (_number(unit.alpha) / _number(unit.beta)) ** 2
    own, shared = _overlaps(beta, p, length)
    return (gain * (p + (1 - p) * shared) + skip * p) / (gain * (p + (1 - p) * own) + skip)


def _feedforward(p: float, config: EncoderConfig, block: BlockConfig) -> float:
    unit, width = block.feedforward, config.width
    inside = variance(config.init, "up", width, unit.width) * width
    gain = variance(config.init, "down", unit.width, width) * unit.width
    skip = (_number(unit.alpha) / _number(unit.beta)) ** 2
    q_m, p_m = gain * kernel(unit.activation, inside, 1.0), gain * kernel(unit.activation, inside, p)
    return (p_m + skip * p) / (q_m + skip)


def _overlaps(beta: float, p: float, length: int | None) -> tuple[float, float]:
    """Σ_k A_ik² and Σ_k A_ik A_jk of two tokens i and j of cosine p: how far attention keeps to the same few keys.

    In the limit 0 and 0 while attention is spread, 1 − β_c/β and 0 when it has frozen on a few tokens. In a text
    of `length` tokens the mean over a fixed draw of scores: each row N(0, β²(1 − p) ln T), two of correlation p.
    """
    if length is None:
        critical = critical_beta(p)
        return (0.0 if beta <= critical else 1 - critical / beta), 0.0
    one, other = np.random.default_rng(0).normal(size=(2, 512, length))
    spread = beta * math.sqrt(max(0.0, 1 - p) * math.log(length))
    a = _softmax(spread * one)
    b = _softmax(spread * (p * one + math.sqrt(max(0.0, 1 - p * p)) * other))
    return float((a * a).sum(1).mean()), float((a * b).sum(1).mean())


def _softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def critical_beta(p: float) -> float:
    """The spread of scores, in units of √ln T, at which attention freezes: √(2/(1 − p))."""
    return math.sqrt(2 / (1 - p)) if p < 1 else math.inf


def kernel(activation: Activation, variance: float, cosine: float) -> float:
    """E φ(u)φ(v) of two normal numbers of one variance and correlation; for ReLU in closed form (Cho & Saul 2009)."""
    c = min(max(cosine, -1.0), 1.0)
    if activation == "relu":
        return variance / 2 * (math.sqrt(1 - c * c) + c * (math.pi - math.acos(c))) / math.pi
    return _quadrature(_numpy(activation), variance, c)


def _quadrature(function: Callable[[Any], Any], variance: float, c: float) -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    u = math.sqrt(variance) * nodes[:, None]
    v = math.sqrt(variance) * (c * nodes[:, None] + math.sqrt(1 - c * c) * nodes[None])
    return float((weights[:, None] * weights[None] * function(u) * function(v)).sum())


def _numpy(activation: Activation) -> Callable[[Any], Any]:
    module = ACTIVATIONS[activation]()
    return lambda x: module(torch.from_numpy(x)).numpy()


def score_spread(config: EncoderConfig, length: int) -> float:
    """β: the standard deviation of the scores in units of √ln T, for a normalised stream and this init."""
    unit, width = config.blocks[0].attention, config.width
    inner = unit.heads * unit.head_width
    scale = unit.head_width**-0.5 if unit.scale is None else unit.scale
    query, key = (variance(config.init, name, width, inner) * width for name in ("query", "key"))
    return math.sqrt(query * key * unit.head_width) * scale / math.sqrt(math.log(length))


def variance(init: InitConfig, matrix: Matrix | str, inputs: int, outputs: int) -> float:
    """The variance of a matrix's entries as an init draws them."""
    row = next((row for row in init.matrices if row.matrix == matrix), None)
    kind = (row and row.kind) or init.kind
    plain = {
        "normal": init.std**2,
        "xavier": 2 / (inputs + outputs),
        "xavier_normal": 2 / (inputs + outputs),
        "he": 2 / inputs,
        "orthogonal": 1 / max(inputs, outputs),
        "zero": 0.0,
    }
    if kind not in plain:
        raise AddnormError(f"the init '{kind}' of {matrix} is no random draw; nothing can be predicted from it")
    return plain[kind] * (row.gain**2 if row else 1.0)


def _number(scale: object) -> float:
    return float(scale) if isinstance(scale, int | float) else float(scale.init)  # type: ignore[attr-defined]


def _check_post_norm(config: EncoderConfig) -> None:
    for i, block in enumerate(config.blocks):
        units: tuple[tuple[str, UnitConfig], ...] = (
            ("attention", block.attention),
            ("feedforward", block.feedforward),
        )
        for name, unit in units:
            kinds = {slot: norm.kind for slot, norm in unit.norms.items()}
            if config.wiring or set(kinds) != {"norm_out"} or not set(kinds.values()) <= {"layer", "rms"}:
                raise AddnormError(
                    f"the recursion is that of a post-norm stack; blocks.{i}.{name} has "
                    f"{', '.join(f'{slot} {kind}' for slot, kind in kinds.items()) or 'no norm'}"
                    f"{' and another wiring' if config.wiring else ''}"
                )
        if block.feedforward.gated or block.attention.shaping or _number(block.attention.beta) == 0:
            raise AddnormError(f"the recursion knows plain attention and feed-forward; blocks.{i} has another")


def diagram(
    betas: Sequence[float] = BETAS,
    skips: Sequence[float] = SKIPS,
    depth: int = 24,
    length: int = 256,
    first: float = 0.05,
    **size: Any,
) -> Table:
    """Where a post-norm stack can be trained: rows beta, `skip` (α of every unit), `cosine` at the end, `phase`.

    "entropy collapse": attention freezes on a few tokens in the first block, β > β_c; "rank collapse": tokens are
    equal at the end (cosine above 0.99); else "trainable". Nothing is run.
    """
    base = build("post-norm", depth, **{"width": 256, "heads": 1} | size)
    rows: list[Row] = []
    for skip, beta in product(skips, betas):
        block = base.blocks[0]
        block = block.replace(
            attention=block.attention.replace(alpha=skip), feedforward=block.feedforward.replace(alpha=skip)
        )
        cosine = list(cosines(base.replace(blocks=(block,) * depth), None, first, beta))[-1]
        frozen = beta > critical_beta(first)
        phase = "entropy collapse" if frozen else "rank collapse" if cosine > COLLAPSED else "trainable"
        rows.append({"beta": beta, "skip": skip, "cosine": cosine, "phase": phase})
    return Table("Where a post-norm stack can be trained", tuple(rows), f"After {depth} blocks, texts of {length}.")


# --- norms without statistics -------------------------------------------------------------------------


def squashed(
    kinds: Sequence[str] = ("derf", "dyt"),
    slopes: Sequence[float] = (0.5, 1.0),
    depth: int = 24,
    width: int = 1024,
    seeds: int = 2,
    progress: Progress | None = None,
) -> Table:
    """h ← h + W φ(a·h): the mean square K of the stream, measured and by recursion.

    On texts of one token attention is the map W_O W_V; feed-forwards are left out. For Derf
    K' = K + s²·(2/π)·asin(2a²K/(1 + 2a²K)). Rows: kind, slope, seed, layer, measured, predicted.
    """
    rows: list[Row] = []
    runs = list(product(kinds, slopes, range(seeds)))
    for kind, a, seed in track(runs, lambda run: f"{run[0]}, a = {run[1]}", progress):
        config = build(kind, depth, width=width, heads=1, inner=1, vocabulary=64)
        block = config.blocks[0]
        assert block.attention.norm_in is not None
        block = block.replace(
            attention=block.attention.replace(norm_in=block.attention.norm_in.replace(slope=a)),
            feedforward=block.feedforward.replace(norm_in=None, beta=0.0),
        )
        encoder = fresh(config.replace(blocks=(block,) * depth), seed)
        seen = streams(encoder, random_tokens(32, 1, 64, seed))
        predicted = [float(seen[0].square().mean())]
        for _ in range(depth):
            predicted.append(predicted[-1] + squashed_square(kind, a, predicted[-1]))
        rows += [
            {"kind": kind, "slope": a, "seed": seed, "layer": layer}
            | {"measured": float(x.square().mean()), "predicted": predicted[layer]}
            for layer, x in enumerate(seen)
        ]
    return Table("Mean square of the stream without statistics", tuple(rows), "Growth is slower than pre-norm's.")


def squashed_square(kind: str, a: float, K: float) -> float:
    """E φ(a·h)² for h ~ N(0, K), φ = erf in closed form (Williams 1997), tanh by quadrature."""
    if kind == "derf":
        return 2 / math.pi * math.asin(2 * a * a * K / (1 + 2 * a * a * K))
    return _quadrature(np.tanh, a * a * K, 1.0)


# --- bounds -------------------------------------------------------------------------------------------


def growth(depth: int = 12, width: int = 256, seeds: int = 3, progress: Progress | None = None) -> Table:
    """Xiong 2020, lemma 2: (1 + l/2)·D ≤ E‖x_l‖² ≤ (1 + 3l/2)·D in a pre-norm stack, and 3D/2 before a post-norm.

    Theirs is a D × D feed-forward with ReLU and W_Q = 0. Rows: seed, layer, measured, lower, upper, each over D.
    """
    rows: list[Row] = []
    for seed in track(range(seeds), lambda seed: f"seed {seed}", progress):
        encoder = fresh(build("pre-norm", depth, width=width, heads=1, inner=width), seed)
        with torch.no_grad():
            for attention in attentions(encoder):
                attention.query.weight.zero_()
        for layer, x in enumerate(streams(encoder, random_tokens(2, 32, 1000, seed))):
            lines = {"lower": 1 + layer / 2, "upper": 1 + 3 * layer / 2}
            rows.append({"seed": seed, "layer": layer, "measured": float(x.square().mean())} | lines)
    return Table(
        "Size of a pre-norm stream", tuple(rows), "Both lines are linear in depth, and so is what is measured."
    )
