"""`update`: how much the output moves when the weights move a little, by depth.

With the same small change in every matrix a post-norm stack moves in proportion to its depth, a pre-norm one and
Admin with the logarithm (Liu 2020). DeepNorm's update by one step of gradient descent does not depend on the depth
(Wang 2022), as long as matrices alone are moved: its bound leaves out norms and biases.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from addnorm.batch import Batch
from addnorm.config import EncoderConfig, Learned, Matrix, UnitConfig
from addnorm.errors import AddnormError
from addnorm.lab.fresh import random_tokens, seeded, start, units
from addnorm.lab.table import Progress, Row, Table, slope, track
from addnorm.nn.encoder import Encoder

How = Literal["noise", "sgd", "adam"]
What = Literal["matrices", "all"]
NOTE = (
    "The exponents are slopes on doubly logarithmic axes: 1 is in proportion to depth, 0 independent of it. "
    "DeepNorm's bound holds for matrices; with biases and norms moved as well its update grows with depth."
)


def update(
    variants: Sequence[str] = ("post-norm", "pre-norm", "admin", "deepnorm"),
    depths: Sequence[int] = (6, 12, 24, 48),
    seeds: int = 3,
    how: How = "noise",
    what: What = "matrices",
    size_of_step: float | None = None,
    texts: int = 2,
    length: int = 32,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """The change of the output of fresh encoders, on random tokens, float64.

    `how`: every parameter moved by noise of a share of its own size (default 1 %), or all by one step of SGD or
    Adam on a cross-entropy with random targets (default learning rates 1e-3); `what`: matrices of the blocks, or
    their biases and norms too. Rows: variant, depth, seed, `change`: for noise the mean over tokens of ‖ΔF‖²/D,
    for a step the root of that, divided by the learning rate; for a step also `bound`, DeepNet's, divided likewise
    (it says how the change may grow with depth, not how large it is).
    """
    if how not in ("noise", "sgd", "adam") or what not in ("matrices", "all"):
        raise AddnormError(f"update by '{how}' of '{what}': expected noise, sgd or adam, of matrices or all")
    amount = size_of_step or {"noise": 0.01, "sgd": 1e-3, "adam": 1e-3}[how]
    rows: list[Row] = []
    runs = list(product(variants, depths, range(seeds)))
    for variant, depth, seed in track(runs, lambda run: f"{run[0]}, {run[1]} blocks", progress):
        sizes: dict[str, Any] = {"width": 64, "heads": 2, "inner": 128, "vocabulary": 500, "outputs": 100} | size
        batch = random_tokens(texts, length, sizes["vocabulary"], seed)
        encoder = start(variant, depth, seed, batch, torch.float64, **sizes)
        change, steps = change_of(encoder, batch, how, what, amount, seed)
        row = {"variant": variant, "depth": depth, "seed": seed, "change": change}
        if how != "noise" and encoder.config.wiring is None:
            row["bound"] = deepnet_bound(encoder.config, steps) / amount
        rows.append(row)
    return Table(f"Change of the output by {how} on {what}", tuple(rows), NOTE)


def change_of(
    encoder: Encoder, batch: Batch, how: How, what: What, amount: float, seed: int
) -> tuple[float, list[float]]:
    """The change of one encoder's output, and how far each unit's matrices moved; its weights are put back."""
    moved = list(_parameters(encoder, what))
    kept = [parameter.detach().clone() for parameter in moved]
    with torch.no_grad():
        before = encoder(batch)
    if how == "noise":
        with seeded(seed + 1), torch.no_grad():
            for parameter in moved:
                parameter.add_(amount * parameter.square().mean().sqrt() * torch.randn_like(parameter))
    else:
        _step(encoder, batch, moved, how, amount, seed)
    with torch.no_grad():
        change = float((encoder(batch) - before).square().mean())
        origin = {id(parameter): value for parameter, value in zip(moved, kept, strict=True)}
        steps = [
            sum(float((p - origin[id(p)]).square().sum()) for p in unit.sublayer.parameters() if p.ndim == 2) ** 0.5
            for unit in units(encoder)
        ]
        for parameter, value in zip(moved, kept, strict=True):
            parameter.copy_(value)
    return (change if how == "noise" else change**0.5 / amount), steps


def _step(encoder: Encoder, batch: Batch, moved: list[nn.Parameter], how: How, rate: float, seed: int) -> None:
    with seeded(seed + 1):
        logits = encoder.read(encoder(batch), batch)
        if logits is None:
            raise AddnormError("a step of training needs a head; build with outputs=…")
        targets = torch.randint(logits.shape[1], (len(logits),))
    optimiser = torch.optim.SGD(moved, lr=rate) if how == "sgd" else torch.optim.Adam(moved, lr=rate)
    F.cross_entropy(logits, targets).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    encoder.zero_grad()


def _parameters(encoder: Encoder, what: What) -> Iterator[nn.Parameter]:
    for parameter in encoder.blocks.parameters():
        if what == "all" or parameter.ndim == 2:
            yield parameter


def exponents(table: Table) -> dict[str, float]:
    """For each variant the exponent of the change over depth (means over seeds)."""
    means = table.mean("change", "variant", "depth")
    return {
        variant: slope(means.where(variant=variant).values("depth"), means.where(variant=variant).values("change"))
        for variant in dict.fromkeys(table.values("variant"))
    }


def deepnet_bound(config: EncoderConfig, steps: Sequence[float]) -> float:
    """Wang 2022, theorem 4.2: ‖ΔF‖ ≤ Σ_i √(v_i² + w_i²)/α · ‖Δθ_i‖, up to a constant.

    `steps`: ‖Δθ_i‖ of each unit in forward order; v and w: gains of the two matrices that carry the branch.
    """
    gains = {row.matrix: row.gain for row in config.init.matrices}
    slots: list[tuple[UnitConfig, tuple[Matrix, Matrix]]] = []
    for block in config.blocks:
        slots += [(block.attention, ("value", "output")), (block.feedforward, ("up", "down"))]
    total = 0.0
    for (unit, matrices), step in zip(slots, steps, strict=True):
        v, w = (gains.get(matrix, 1.0) for matrix in matrices)
        alpha = unit.alpha.init if isinstance(unit.alpha, Learned) else unit.alpha
        total += math.hypot(v, w) / alpha * step if alpha else math.inf
    return total
