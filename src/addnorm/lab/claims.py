"""What is said about Add & Norm, and how a measured table decides whether it is so.

A claim gives checks: a measured figure and the limit it is held against. Checks under one condition stand or fall
together; a claim that holds under some conditions and not under others depends.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from addnorm.lab.predict import COLLAPSED
from addnorm.lab.table import Table, slope
from addnorm.lab.train import finals

DEEPNORM_24 = 48**0.25  # α of DeepNorm for 24 blocks
Verdict = Literal["holds", "does not hold", "depends", "not measured"]


@dataclass(frozen=True)
class Check:
    """`what` was measured, its `value`, the `limit` in words, whether it is kept; `under`: the condition."""

    what: str
    value: float
    limit: str
    kept: bool
    under: str = ""


@dataclass(frozen=True)
class Claim:
    """What is said, who said it, and the checks that a measured table gives."""

    text: str
    source: str
    judge: Callable[[Table], Sequence[Check]]


def verdict(checks: Sequence[Check]) -> Verdict:
    """What the checks come to. "not measured": there are none, or a figure is not a number."""
    if not checks or any(math.isnan(check.value) for check in checks):
        return "not measured"
    kept = set(conditions(checks).values())
    return "depends" if len(kept) == 2 else "holds" if True in kept else "does not hold"


def conditions(checks: Sequence[Check]) -> dict[str, bool]:
    """For each condition whether all its checks are kept."""
    return {
        under: all(check.kept for check in checks if check.under == under)
        for under in dict.fromkeys(check.under for check in checks)
    }


def below(what: str, value: float, limit: float, under: str = "") -> Check:
    """The value has to be below a limit."""
    return Check(what, value, f"below {_said(limit)}", value < limit, under)


def above(what: str, value: float, limit: float, under: str = "") -> Check:
    """The value has to be above a limit."""
    return Check(what, value, f"above {_said(limit)}", value > limit, under)


def near_zero(what: str, value: float, limit: float, under: str = "") -> Check:
    """The value has to be between −limit and limit."""
    return Check(what, value, f"within ±{_said(limit)}", abs(value) < limit, under)


def _said(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


# --- figures of a table -------------------------------------------------------------------------------


def at(table: Table, column: str, **where: object) -> float:
    """The mean of a column over the rows that have these values; NaN if there are none."""
    means = table.where(**where).mean(column).rows
    return float(means[0][column]) if means else math.nan


def exponent(table: Table, column: str) -> float:
    """The exponent over depth of the means of a column; NaN if it is no power law (0, not finite, one depth)."""
    means = table.mean(column, "depth")
    x, y = means.values("depth"), means.values(column)
    return slope(x, y) if len(x) > 1 and all(0 < v < math.inf for v in y) else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def _deepest(table: Table) -> Table:
    return table.where(depth=max(table.values("depth")))


def _last(table: Table, key: str = "layer") -> Table:
    return table.where(**{key: max(table.values(key))})


def _distance(table: Table, relative: bool = False, *by: str) -> float:
    """How far the means over seeds of measured and predicted are from each other at most, over all layers."""
    measured = table.mean("measured", *by, "layer").values("measured")
    predicted = table.mean("predicted", *by, "layer").values("predicted")
    gaps = [abs(a / b - 1) if relative else abs(a - b) for a, b in zip(measured, predicted, strict=True)]
    return max(gaps) if gaps and all(map(math.isfinite, gaps)) else math.nan


def _each(table: Table, column: str) -> list[object]:
    return list(dict.fromkeys(table.values(column)))


# --- judges -------------------------------------------------------------------------------------------


def last_gradients(table: Table) -> list[Check]:
    """Of the last block's W₂ over depth."""
    rows = table.where(where="down").rows
    last = Table("", tuple(row for row in rows if row["layer"] == row["depth"]))
    return [
        near_zero("exponent over depth, post-norm", exponent(last.where(variant="post-norm"), "gradient"), 0.2),
        below("exponent over depth, pre-norm", exponent(last.where(variant="pre-norm"), "gradient"), -0.3),
    ]


def _stream_ratio(table: Table, variant: str) -> float:
    rows = _deepest(table).where(variant=variant, where="stream")
    depth = max(table.values("depth"))
    return _ratio(at(rows, "gradient", layer=0), at(rows, "gradient", layer=depth))


def _query_ratio(table: Table, variant: str) -> float:
    rows = _deepest(table).where(variant=variant, where="query")
    return _ratio(at(rows, "gradient", layer=max(table.values("depth"))), at(rows, "gradient", layer=1))


def post_norm_vanishes(table: Table) -> list[Check]:
    """‖∂L/∂x‖ before the first block over that after the last."""
    return [below("‖∂L/∂x‖ below the first block ÷ above the last", _stream_ratio(table, "post-norm"), 0.1)]


def residuals_save_gradients(table: Table) -> list[Check]:
    """In the stream, and in W_Q, whose gradient is gone where tokens have become equal."""
    stream = "‖∂L/∂x‖ below the first block ÷ above the last"
    query = "‖∂L/∂W_Q‖ of the last block ÷ of the first"
    with_pre, with_post = "for W_Q with pre-norm", "for W_Q with post-norm"
    alone = _query_ratio(table, "no-residual")
    return [
        below(f"{stream}, no residual", _stream_ratio(table, "no-residual"), 0.1, "for the stream"),
        above(f"{stream}, pre-norm", _stream_ratio(table, "pre-norm"), 0.1, "for the stream"),
        below(f"{query}, no residual", alone, 1e-4, with_pre),
        above(f"{query}, pre-norm", _query_ratio(table, "pre-norm"), 1e-2, with_pre),
        below(f"{query}, no residual", alone, 1e-4, with_post),
        above(f"{query}, post-norm", _query_ratio(table, "post-norm"), 1e-2, with_post),
    ]


def tokens_stay_apart(table: Table) -> list[Check]:
    """Token cosine at the end of the deepest stack, for each variant with residuals."""
    end = _last(_deepest(table))
    names = [str(name) for name in _each(table, "variant") if name != "no-residual"]
    return [
        below(f"token cosine, {name}", at(end, "cosine", variant=name), COLLAPSED, f"for {name}") for name in names
    ]


def collapse(table: Table) -> list[Check]:
    """Dong's distance from equal tokens."""
    without = [f"{name}" for name in ("attention", "attention + feed-forward")]
    checks = [
        below(f"‖x − mean‖ ÷ ‖x‖ after 3 blocks, {p}", at(table, "residue", parts=p, layer=3), 0.01) for p in without
    ]
    return [*checks, above("the same at the end of the full model", at(_last(table), "residue", parts="full"), 0.3)]


def likeness(table: Table) -> list[Check]:
    """Noci's formula, and what it says about 1/√N."""
    checks = []
    for scale in _each(table, "scale"):
        rows = table.where(scale=scale)
        checks.append(below(f"largest difference, branch × {scale:.2g}", _distance(rows), 0.05))
        at_end, what = at(_last(rows), "measured"), f"likeness at the end, branch × {scale:.2g}"
        checks.append(above(what, at_end, 0.5) if scale == 1 else below(what, at_end, 0.5))
    return checks


def noise(table: Table) -> list[Check]:
    """Exponents over depth of the change by noise."""
    found = {name: exponent(table.where(variant=name), "change") for name in ("post-norm", "pre-norm", "admin")}
    return [
        above("exponent over depth, post-norm", found["post-norm"], 0.9),
        below("pre-norm", found["pre-norm"], 0.6),
        below("Admin", found["admin"], 0.6),
    ]


def deepnorm_step(table: Table) -> list[Check]:
    """Exponents over depth of the change by one step; the column `what` has what was moved."""
    said = {"matrices": "where matrices alone move", "all": "where biases and norms move too"}
    return [
        near_zero(
            f"exponent over depth, {what}", exponent(table.where(variant=f"deepnorm, {what}"), "change"), 0.2, under
        )
        for what, under in said.items()
    ]


def recursion(table: Table) -> list[Check]:
    """Giorlandino & Goldt against a pass."""
    return [
        below(f"largest difference in token cosine, β = {beta}", _distance(table.where(beta=beta)), 0.03)
        for beta in _each(table, "beta")
    ]


def larger_skip(table: Table) -> list[Check]:
    """The diagram at its smallest β, at α = 1 and at the first α that is DeepNorm's or more."""
    rows = table.where(beta=min(table.values("beta")))
    large = min((skip for skip in rows.values("skip") if skip >= DEEPNORM_24), default=math.nan)
    return [
        above("predicted cosine, α = 1", at(rows, "cosine", skip=1.0), COLLAPSED),
        below(f"predicted cosine, α = {large:g}", at(rows, "cosine", skip=large), COLLAPSED),
    ]


def between_lines(table: Table) -> list[Check]:
    """Xiong's lines are expectations: 5 % are left to chance."""
    means = [table.mean(column, "layer").values(column) for column in ("lower", "measured", "upper")]
    lowest = min(_ratio(m, low) for low, m, _ in zip(*means, strict=True))
    highest = max(_ratio(m, high) for _, m, high in zip(*means, strict=True))
    return [above("least measured ÷ lower line", lowest, 0.95), below("most measured ÷ upper line", highest, 1.05)]


def kernels(table: Table) -> list[Check]:
    """Relative distance of the recursion of DyT and Derf."""
    return [
        below(
            f"largest relative difference, {kind}",
            _distance(table.where(kind=kind), True, "slope"),
            0.02,
            f"for {kind}",
        )
        for kind in _each(table, "kind")
    ]


def company(table: Table) -> list[Check]:
    """Who changes when the batch does."""
    end = _last(table)
    return [
        above("change, batch", at(end, "change", norm="batch"), 0.1),
        *(below(f"change, {n}", at(end, "change", norm=n), 1e-12) for n in _each(end, "norm") if n != "batch"),
    ]


def _loss(table: Table, **where: object) -> float:
    """The loss at the end; infinite where it was not finite, NaN where nothing was run."""
    rows = finals(table).where(**where).rows
    value = at(Table("", rows), "loss")
    return math.inf if rows and math.isnan(value) else value


def deepest_learn(table: Table) -> list[Check]:
    """Post-norm at chance, DeepNorm not, in the deepest stack."""
    depth, chance = max(table.values("depth")), float(table.rows[0]["chance"])
    return [
        above(f"loss of {depth} blocks, post-norm", _loss(table, depth=depth, variant="post-norm"), chance - 0.1),
        below(f"loss of {depth} blocks, DeepNorm", _loss(table, depth=depth, variant="deepnorm"), 0.3),
    ]


def pre_beats_post(table: Table) -> list[Check]:
    """At each depth."""
    return [
        below(
            f"loss of pre-norm, {depth} blocks",
            _loss(table, depth=depth, variant="pre-norm"),
            _loss(table, depth=depth, variant="post-norm") - 0.1,
            f"for {depth} blocks",
        )
        for depth in _each(table, "depth")
    ]


def warm_up(table: Table) -> list[Check]:
    """Post-norm with the longest warm-up: half of chance or less is learning."""
    warmup, chance = max(table.values("warmup")), float(table.rows[0]["chance"])
    return [
        below(
            f"loss of {d} blocks after {warmup} steps of warm-up",
            _loss(table, depth=d, warmup=warmup),
            chance / 2,
            f"for {d} blocks",
        )
        for d in _each(table, "depth")
    ]


def still_readable(table: Table) -> list[Check]:
    """Probes after the last block."""
    end = _last(table)
    checks = []
    for name in (name for name in _each(end, "variant") if name != "no-residual"):
        for what in ("position", "token"):
            value = at(end, "accuracy", variant=name, what=what)
            checks.append(above(f"accuracy, {what}, {name}", value, 0.9, f"for {name}"))
    for what in ("position", "token"):
        value, chance = (at(end, column, variant="no-residual", what=what) for column in ("accuracy", "chance"))
        for name in dict.fromkeys(check.under for check in checks):
            checks.append(below(f"accuracy, {what}, no residual", value, 3 * chance, name))
    return checks


def _rank(table: Table, kind: str) -> float:
    return at(table, "rank", kind=kind)


def residual_matters_most(table: Table) -> list[Check]:
    """Mean rank agreement without a residual against that without another part of a unit."""
    value = _rank(table, "residual")
    others = {"norm": "a norm", "attention": "attention", "feedforward": "a feed-forward"}
    return [
        below(
            f"rank agreement without one residual, against without {said}",
            value,
            _rank(table, kind),
            f"against {said}",
        )
        for kind, said in others.items()
    ]


def any_block_can_go(table: Table) -> list[Check]:
    """The worst rank agreement without one block."""
    ranks = table.where(kind="block").values("rank")
    worst = min(ranks) if ranks and all(map(math.isfinite, ranks)) else math.nan
    return [above("lowest rank agreement without one block", worst, 0.8)]
