"""`mixing`: how much of a token's new vector comes from other tokens, and how much it keeps (Kobayashi 2021).

In a post-norm attention unit a token's vector is N_out(α·x + β·(Σ_j a_j f(x_j) + b_O)) with f(x) = (x W_V + b_V) W_O.
With its statistics taken as they are, the norm is a linear map g and a shift, so the vector is a sum of three terms:

    mix   g(β Σ_{j≠i} a_j f(x_j))        what comes from the other tokens
    keep  g(α·x_i + β a_i f(x_i))        what comes from the token itself
    rest  g(β b_O) and the norm's shift  what is the same for every token

and the mixing ratio is ‖mix‖ / (‖mix‖ + ‖keep‖). Attention weights alone make it look close to 1; residual and norm
show that most of a token is kept.

    addnorm lab mixing --model sentence-transformers/all-MiniLM-L6-v2
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from addnorm.config import BlockConfig, EncoderConfig
from addnorm.errors import AddnormError
from addnorm.lab import tasks
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.model import Model
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention
from addnorm.nn.encoder import Encoder
from addnorm.trace.rebuild import stream_before
from addnorm.trace.record import Trace

# What is taken into account: weights of attention alone (W) or vectors (N); the residual; the norm.
METHODS = ("Attn-W", "Attn-N", "AttnRes-W", "AttnRes-N", "AttnResLn-N")
NOTE = (
    "`ratio` is the share of other tokens in a token's vector, the mean over all tokens: by attention weights (W) or "
    "vector norms (N), without and with the residual (Res) and the norm (Ln). `error` is how far the terms are from "
    "adding up to what the model computed. `expansion` is how much longer a step makes a vector (root mean square of "
    "its singular values): f's under Attn-N, the norm's under AttnResLn-N."
)


@dataclass(frozen=True)
class Terms:
    """What a token's vectors are made of after a step. Shapes: mix, keep (T, D), rest (D,) or (T, D)."""

    mix: Tensor
    keep: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """The vectors themselves, (T, D)."""
        return self.mix + self.keep + self.rest

    @property
    def ratio(self) -> Tensor:
        """‖mix‖ / (‖mix‖ + ‖keep‖) of each token, (T,)."""
        mix, keep = self.mix.norm(dim=1), self.keep.norm(dim=1)
        return mix / (mix + keep)


def mixing(
    model: Model, texts: Sequence[str] | None = None, count: int = 24, progress: Progress | None = None
) -> Table:
    """The mixing ratios of every block, by each method.

    `texts`: None for `count` paragraphs of the standard library's docstrings. Rows: `block`, `method`, `ratio` (mean
    over tokens), `least`, `most` (of a single token), `error` (largest difference between the terms' sum and the
    model's own value), `expansion`. Errors: an encoder that the decomposition is not about.
    """
    check(model.config)
    chosen = paragraphs(count) if texts is None else list(texts)
    if not chosen:
        raise AddnormError("mixing: no texts; give at least one")
    depth = len(model.config.blocks)
    ratios: dict[tuple[int, str], list[Tensor]] = {}
    errors: dict[tuple[int, str], float] = {}
    norms: dict[int, list[Tensor]] = {}
    for text in track(chosen, lambda text: text[:30].replace("\n", " "), progress):
        trace = model.trace(text, sites=[site for i in range(depth) for site in _sites(i)])
        for i in range(depth):
            for method, ratio in ratios_of(model.encoder, trace, i).items():
                ratios.setdefault((i, method), []).append(ratio)
            for method, error in errors_of(model.encoder, trace, i).items():
                errors[i, method] = max(error, errors.get((i, method), 0.0))
            norms.setdefault(i, []).append(norm_expansion(_unit(model.encoder, i), trace[_site(i, "add")]))
    rows: list[Row] = []
    for i in range(depth):
        expansions = {
            "Attn-N": expansion(_unit(model.encoder, i)),
            "AttnResLn-N": float(torch.cat(norms[i]).mean()),
        }
        for method in METHODS:
            found = torch.cat(ratios[i, method])
            row = {"block": i, "method": method, "ratio": float(found.mean())}
            row |= {"least": float(found.min()), "most": float(found.max()), "error": errors.get((i, method))}
            rows.append(row | {"expansion": expansions.get(method)})
    return Table(f"Mixing ratios of {model.name}", tuple(rows), NOTE)


def summary(table: Table) -> list[Table]:
    """The ratios, a row a block and a column a method, with the mean over blocks; and the expansion of f and norm."""
    blocks = list(dict.fromkeys(table.values("block")))
    ratios: list[Row] = [
        {"block": i} | {row["method"]: row["ratio"] for row in table.where(block=i).rows} for i in blocks
    ]
    means = {method: fmean(row[method] for row in ratios) for method in METHODS}
    expansions: list[Row] = [
        {
            "block": i,
            "f": table.where(block=i, method="Attn-N").values("expansion")[0],
            "norm": table.where(block=i, method="AttnResLn-N").values("expansion")[0],
        }
        for i in blocks
    ]
    rows = (*ratios, {"block": "mean"} | means)
    return [Table(table.title, rows), Table("Expansion", tuple(expansions))]


def paragraphs(count: int) -> list[str]:
    """Paragraphs of 60 to 120 words of the standard library's docstrings, spread evenly over them."""
    kept = (part for part in tasks.docstrings().split("\n\n") if 60 <= len(part.split()) <= 120)
    found = [part for part in kept if len(part) < 800]  # no tables, which have many tokens a word
    return found[:: max(1, len(found) // count)][:count]


# --- the terms ----------------------------------------------------------------------------------------


def decompose(encoder: Encoder, trace: Trace, block: int) -> dict[str, Terms]:
    """The terms of one text in one block after attention, the residual sum and the norm, in float64.

    `trace`: of one text, with the block's attention sites and the stream before it.
    """
    unit = _unit(encoder, block)
    attention = unit.sublayer
    assert isinstance(attention, Attention)
    weights = trace[_site(block, "weights")].double()  # (H, T, T)
    value = trace[_site(block, "value")].double().unflatten(1, (attention.config.heads, -1))  # (T, H, K)
    x = trace[stream_before(block)].double()
    own = weights.diagonal(dim1=1, dim2=2)  # (H, T)
    other = weights - torch.diag_embed(own)

    def out(heads: Tensor) -> Tensor:
        """Heads side by side, projected and scaled as the branch is: (T, H, K) → (T, D)."""
        return _scaled(unit.branch, heads.flatten(1) @ attention.output.weight.detach().double().T)

    bias = attention.output.bias
    nothing = x.new_zeros(x.shape[1])
    attended = Terms(
        out(torch.einsum("hij,jhk->ihk", other, value)),
        out(own.T[:, :, None] * value),
        nothing if bias is None else _scaled(unit.branch, bias.detach().double()),
    )
    added = Terms(attended.mix, _scaled(unit.add.alpha, x) + attended.keep, attended.rest)
    z = trace[_site(block, "add")].double()
    shift = getattr(unit.norm_out, "bias", None)
    normed = Terms(
        linear(unit, added.mix, z),
        linear(unit, added.keep, z),
        linear(unit, added.rest.expand_as(z), z) + (nothing if shift is None else shift.detach().double()),
    )
    return {"Attn-N": attended, "AttnRes-N": added, "AttnResLn-N": normed}


def linear(unit: AddNorm, v: Tensor, z: Tensor) -> Tensor:
    """g(v): the norm as a linear map, with the statistics that it takes of z. Shapes: (T, D), (T, D) → (T, D)."""
    gain = unit.norm_out.weight.detach().double()  # type: ignore[union-attr, operator]
    v = v - v.mean(1, keepdim=True) if isinstance(unit.norm_out, nn.LayerNorm) else v
    return gain * v / _spread(unit, z)


def _spread(unit: AddNorm, z: Tensor) -> Tensor:
    """What the norm divides by, (T, 1)."""
    norm = unit.norm_out
    if isinstance(norm, nn.LayerNorm):
        return (z.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
    if isinstance(norm, nn.RMSNorm):
        return (z.square().mean(1, keepdim=True) + (norm.eps or 0.0)).sqrt()
    return z.new_ones(len(z), 1)


def ratios_of(encoder: Encoder, trace: Trace, block: int) -> dict[str, Tensor]:
    """The mixing ratio of each token of one text, (T,), by each method."""
    weights = trace[_site(block, "weights")].double().mean(0)
    by_weight = 1 - weights.diagonal()
    by_norm = {method: terms.ratio for method, terms in decompose(encoder, trace, block).items()}
    found = {"Attn-W": by_weight, "AttnRes-W": by_weight / 2} | by_norm
    return {method: found[method] for method in METHODS}


def errors_of(encoder: Encoder, trace: Trace, block: int) -> dict[str, float]:
    """How far the terms are from adding up to the value that the model computed, at worst."""
    sites = {"Attn-N": "branch", "AttnRes-N": "add", "AttnResLn-N": "norm_out"}
    return {
        method: float((terms.total - trace[_site(block, sites[method])]).abs().max())
        for method, terms in decompose(encoder, trace, block).items()
    }


# --- expansion ----------------------------------------------------------------------------------------


def expansion(unit: AddNorm, published: bool = False) -> float:
    """Root mean square of the singular values of x, 1 ↦ f(x) + b_O, 1: how much longer attention makes a vector.

    From the weights alone. `published`: as the authors' program has it, which adds up b_O as a column where it is a
    row, so that their printed digits come out.
    """
    attention = unit.sublayer
    assert isinstance(attention, Attention)
    value, output = (_affine(linear) for linear in (attention.value, attention.output))
    if published:
        output[:-1, -1], output[-1, :-1] = output[-1, :-1].clone(), 0.0
    map_ = value @ output
    return float(map_.norm()) / math.sqrt(len(map_))


def _affine(linear: nn.Linear) -> Tensor:
    """x, 1 ↦ x Wᵀ + b, 1 as one matrix (in + 1, out + 1)."""
    made = torch.zeros(linear.in_features + 1, linear.out_features + 1, dtype=torch.float64)
    made[:-1, :-1] = linear.weight.detach().double().T
    made[-1, -1] = 1
    if linear.bias is not None:
        made[-1, :-1] = linear.bias.detach().double()
    return made


def norm_expansion(unit: AddNorm, z: Tensor) -> Tensor:
    """Root mean square of the singular values of g for each token of z, (T, D) → (T,)."""
    gain = unit.norm_out.weight.detach().double()  # type: ignore[union-attr, operator]
    centred = 1 - 1 / len(gain) if isinstance(unit.norm_out, nn.LayerNorm) else 1.0
    return (gain.square().mean() * centred).sqrt() / _spread(unit, z.double()).flatten()


# --- what it is about ---------------------------------------------------------------------------------


def check(config: EncoderConfig) -> None:
    """Errors: an encoder whose attention units are not x ← N(α·x + β·F(x)) with plain attention; says which part."""
    if config.wiring is not None:
        raise AddnormError(f"mixing: the wiring '{config.wiring.kind}' is not one residual stream")
    if not config.blocks:
        raise AddnormError("mixing: the encoder has no blocks")
    for i, block in enumerate(config.blocks):
        reason = _reason(block)
        if reason is not None:
            raise AddnormError(f"mixing: block {i} {reason}; the decomposition is of post-norm blocks")


def _reason(block: BlockConfig) -> str | None:
    attention = block.attention
    norm = attention.norm_out
    told = {
        "normalises before attention (pre-norm)": attention.norm_in is not None,
        "normalises the branch": attention.norm_branch is not None,
        "has no norm after the residual sum": norm is None,
        f"has a norm of kind '{norm.kind if norm else None}', which is not linear once its statistics are known": (
            norm is not None and (norm.kind not in ("layer", "rms", "affine") or norm.factor != 1)
        ),
        f"shares {attention.key_heads} heads of keys and values among {attention.heads}": (
            attention.key_heads != attention.heads
        ),
        "stands on a narrow stream of its own (bottleneck)": block.bottleneck is not None,
        "shapes its attention weights": attention.shaping is not None,
        "adds the first block's values": attention.value_residual is not None,
        "changes values or their mix on the way": (
            attention.head_scale or attention.mix_norm is not None or attention.value_norm is not None
        ),
        "turns values by position": attention.rotary is not None and attention.rotary.value,
    }
    return next((reason for reason, holds in told.items() if holds), None)


def _site(block: int, name: str) -> str:
    return f"blocks.{block}.attention.{name}"


def _sites(block: int) -> list[str]:
    names = ("value", "weights", "branch", "add", "norm_out")
    return [stream_before(block), *(_site(block, name) for name in names)]


def _unit(encoder: Encoder, block: int) -> AddNorm:
    unit = encoder.get_submodule(f"blocks.{block}.attention")
    assert isinstance(unit, AddNorm)
    return unit


def _scaled(scale: nn.Module, x: Tensor) -> Tensor:
    return scale(x).detach().double()
