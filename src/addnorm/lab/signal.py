"""`signal`: what becomes of the tokens on their way up: size, likeness, rank, and where attention looks.

Without residuals all tokens of a text become the same vector within a few blocks (Dong 2021); residuals are what
keeps them apart, more so the smaller the branch (Noci 2022).
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import BlockConfig, EncoderConfig, FeedForwardConfig
from addnorm.errors import AddnormError
from addnorm.lab.fresh import attentions, fresh, random_tokens, run, start, streams, transplant
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.lab.variants import build
from addnorm.nn.encoder import Encoder

NOTE = (
    "Cosine and rank are those of the tokens of one text. Cosine 1, rank 1: every token has become the same vector."
)
PARTS: dict[str, tuple[bool, bool]] = {  # Dong 2021, figure 2: with residuals, with feed-forward
    "attention": (False, False),
    "attention + feed-forward": (False, True),
    "attention + residual": (True, False),
    "full": (True, True),
}


def signal(
    variants: Sequence[str] = ("post-norm", "pre-norm", "deepnorm", "no-residual"),
    depths: Sequence[int] = (24,),
    seeds: int = 3,
    texts: int = 2,
    length: int = 64,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """The stream of fresh encoders by depth, on random tokens.

    Rows: variant, depth, seed, `layer` (blocks before it, from 0) and the columns of `signal_of`.
    """
    rows: list[Row] = []
    runs = list(product(variants, depths, range(seeds)))
    for variant, depth, seed in track(runs, lambda run: f"{run[0]}, {run[1]} blocks", progress):
        sizes = {"width": 128, "heads": 4, "vocabulary": 1000} | size
        batch = random_tokens(texts, length, sizes["vocabulary"], seed)
        encoder = start(variant, depth, seed, batch, **sizes)
        key = {"variant": variant, "depth": depth, "seed": seed}
        rows += [key | row for row in signal_of(encoder, batch)]
    return Table("The stream by depth", tuple(rows), NOTE)


@torch.no_grad()
def signal_of(encoder: Encoder, batch: Batch) -> list[Row]:
    """The stream of one encoder, fresh or trained, averaged over the texts of the batch (2 tokens or more each).

    For each layer: `norm` ‖x‖/√D, `cosine` between the tokens of a text, `rank` (effective), `residue` (Dong's
    distance from equal tokens, relative), `entropy` of the attention of the block before, relative to uniform.
    """
    if min(batch.lengths) < 2:
        raise AddnormError("token cosine and rank need texts of at least 2 tokens")
    entropies: list[list[float]] = []

    def measure(module: nn.Module, inputs: object, output: Tensor) -> None:
        # Once a group of equally long texts; shaped weights can be negative and have no entropy then.
        length = output.shape[-1]
        valid = bool((output >= 0).all()) and length > 1
        value = float(torch.special.entr(output).sum(-1).mean()) / math.log(length) if valid else math.nan
        entropies[-1].append(value)

    handles = []
    for attention in attentions(encoder):
        handles.append(attention.register_forward_pre_hook(lambda *call: entropies.append([])))
        handles.append(attention.weights.register_forward_hook(measure))
    try:
        seen = [x if x.ndim == 2 else x.mean(1) for x in run(encoder, batch, kernel="eager")[0]]
    finally:
        for handle in handles:
            handle.remove()
    rows: list[Row] = []
    for i, stream in enumerate(seen):
        texts = [stream[span].double() for span in batch.spans]
        rows.append(
            {
                "layer": i,
                "norm": float(stream.norm(dim=1).mean()) / math.sqrt(stream.shape[1]),
                "cosine": _mean(token_cosine(x) for x in texts),
                "rank": _mean(effective_rank(x) for x in texts),
                "residue": _mean(residue(x) for x in texts),
                "entropy": sum(entropies[i - 1]) / len(entropies[i - 1]) if i else None,
            }
        )
    return rows


def _mean(values: Any) -> float:
    found = list(values)
    return sum(found) / len(found)


def token_cosine(x: Tensor) -> float:
    """The mean cosine of two different tokens. Shapes: x (T, D)."""
    unit = x / x.norm(dim=1, keepdim=True)
    count = len(x)
    return (float(unit.sum(0).square().sum()) - count) / (count * (count - 1))


def effective_rank(x: Tensor) -> float:
    """e to the entropy of the singular values' shares (Roy & Vetterli 2007). Shapes: x (T, D)."""
    if not x.isfinite().all():
        return math.nan
    values = torch.linalg.svdvals(x)
    return float(torch.special.entr(values / values.sum()).sum().exp())


def residue(x: Tensor) -> float:
    """How far tokens are from being equal: ‖x − mean‖ / ‖x‖ in √(‖·‖₁ ‖·‖∞) (Dong 2021). Shapes: x (T, D)."""
    return _composite(x - x.mean(0)) / _composite(x)


def _composite(x: Tensor) -> float:
    return math.sqrt(float(x.abs().sum(0).max()) * float(x.abs().sum(1).max()))


# --- which part keeps tokens apart --------------------------------------------------------------------


def take_parts(config: EncoderConfig, residual: bool, feedforward: bool) -> EncoderConfig:
    """A stack without residuals (norms stay), without feed-forwards, or both.

    Errors: units whose α is learned, another wiring than one stream.
    """
    if config.wiring is not None:
        raise AddnormError("parts can be taken from a stack on one stream, not from another wiring")

    def without(block: BlockConfig) -> BlockConfig:
        if not residual:
            block = block.replace(
                attention=block.attention.replace(alpha=0.0), feedforward=block.feedforward.replace(alpha=0.0)
            )
        return block if feedforward else block.replace(feedforward=_nothing(block.feedforward))

    return config.replace(blocks=tuple(without(block) for block in config.blocks))


def _nothing(unit: FeedForwardConfig) -> FeedForwardConfig:
    """A unit that hands on its stream: no norm, no branch."""
    return unit.replace(norm_in=None, norm_branch=None, norm_out=None, alpha=1.0, beta=0.0)


def parts(encoder: Encoder, batch: Batch) -> Table:
    """One encoder with and without residuals and feed-forwards (Dong 2021, figure 2): columns as `signal_of`."""
    rows: list[Row] = []
    for name, (residual, feedforward) in PARTS.items():
        made = transplant(encoder, take_parts(encoder.config, residual, feedforward))
        rows += [{"parts": name} | row for row in signal_of(made, batch)]
    return Table("What keeps tokens apart", tuple(rows), NOTE)


def fresh_parts(
    seeds: int = 3, depth: int = 12, length: int = 64, progress: Progress | None = None, **size: Any
) -> Table:
    """`parts` of fresh post-norm stacks drawn as BERT; rows have a seed."""
    rows: list[Row] = []
    for seed in track(range(seeds), lambda seed: f"seed {seed}", progress):
        sizes: dict[str, Any] = {"width": 192, "heads": 4, "init": "bert", "activation": "gelu"} | size
        config = build("post-norm", depth, **sizes)
        batch = random_tokens(2, length, config.embeddings.vocabulary, seed)
        rows += [{"seed": seed} | row for row in parts(fresh(config, seed), batch).rows]
    return Table("What keeps tokens apart", tuple(rows), NOTE)


# --- the closed form ----------------------------------------------------------------------------------


def likeness(x: Tensor) -> float:
    """r = ‖mean token‖² / mean ‖token‖²: 0 for tokens that cancel out, 1 for equal ones. Shapes: x (T, D)."""
    return float(x.mean(0).square().sum() / x.square().sum(1).mean())


def predict_likeness(r: float, layers: int, scale: float = 1.0) -> float:
    """logit r_l = logit r_0 + l·ln(1 + a²): uniform attention on a branch of scale a, no norm (Noci 2022)."""
    odds = r / (1 - r) * (1 + scale**2) ** layers
    return odds / (1 + odds)


def closed_form(
    depth: int = 8,
    scales: Sequence[float] | None = None,
    seeds: int = 3,
    width: int = 512,
    length: int = 64,
    progress: Progress | None = None,
) -> Table:
    """Likeness of tokens measured in an attention-only stack and as Noci's closed form has it.

    Rows: `scale` of the branch (1 and 1/√depth), seed, layer, measured, predicted. Feed-forwards, which are linear
    in the theory and do not change the likeness, are left out.
    """
    rows: list[Row] = []
    chosen = (1.0, depth**-0.5) if scales is None else scales
    for scale, seed in track(list(product(chosen, range(seeds))), lambda run: f"scale {run[0]:.2f}", progress):
        config = build("none", depth, width=width, heads=1, inner=1)
        block = config.blocks[0]
        block = BlockConfig(attention=block.attention.replace(beta=scale), feedforward=_nothing(block.feedforward))
        encoder = fresh(config.replace(blocks=(block,) * depth), seed)
        with torch.no_grad():
            for attention in attentions(encoder):
                attention.query.weight.zero_()
        seen = streams(encoder, random_tokens(1, length, config.embeddings.vocabulary, seed))
        first = likeness(seen[0])
        rows += [
            {
                "scale": scale,
                "seed": seed,
                "layer": layer,
                "measured": likeness(x),
                "predicted": predict_likeness(first, layer, scale),
            }
            for layer, x in enumerate(seen)
        ]
    return Table("Likeness of tokens", tuple(rows), "Noci 2022: with 1/√N on the branch tokens stay apart.")
