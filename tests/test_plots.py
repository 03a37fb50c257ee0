"""Pictures: axes are named, and nothing is told apart by colour alone."""

import builtins
import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from addnorm import AddnormError, plots
from addnorm.lab.table import Table
from addnorm.lab.variants import VARIANTS
from addnorm.panels import DASHES, SYMBOLS, Line, Panel, figure, short

VARIANT = ("post-norm", "pre-norm", "no-residual")


def rows(value: Callable[[int, int], float], **columns: Any) -> list[dict[str, Any]]:
    """Rows over every combination of the columns' values; `value` of the row's number and its seed."""
    found: list[dict[str, Any]] = [{}]
    for name, values in columns.items():
        found = [row | {name: one} for row in found for one in values]
    return [row | {"value": value(i, row.get("seed", 0))} for i, row in enumerate(found)]


def table(column: str, title: str = "A title", more: dict[str, Any] | None = None, **columns: Any) -> Table:
    made = rows(lambda i, seed: 1 / (2 + i) + 0.01 * seed, **columns)
    return Table(title, tuple(row | {column: row["value"]} | (more or {}) for row in made))


def gradients() -> Table:
    made = [
        row | {"gradient": row["value"], "where": where}
        for depth in (1, 2, 3)
        for where in ("stream", "query", "down")
        for row in rows(
            lambda i, s: 1 / (1 + i), variant=VARIANT, depth=(depth,), layer=range(depth + 1), seed=(0, 1)
        )
        if where == "stream" or row["layer"]
    ]
    return Table("", tuple(made))


def signal() -> Table:
    found = table(
        "cosine", variant=VARIANT, depth=(2,), layer=(0, 1, 2), seed=(0, 1), more={"norm": 1.5, "rank": 3.0}
    )
    return Table("", tuple(row | {"entropy": 0.9 if row["layer"] else None} for row in found.rows))


def train() -> Table:
    more = {"chance": 4.0, "rate": 1e-3, "warmup": 0, "diverged": False}
    return table("loss", more=more, variant=VARIANT, depth=(2, 4), seed=(0, 1), step=(10, 20))


def beside(**columns: Any) -> Table:
    return table(
        "measured", more={"predicted": 0.3, "lower": 0.1, "upper": 2.0}, layer=(0, 1, 2), seed=(0, 1), **columns
    )


def norms() -> Table:
    return table("change", norm=("layer", "batch"), company=(1, 4), layer=(0, 1), seed=(0, 1))


def diagram() -> Table:
    phases = ("trainable", "rank collapse", "entropy collapse")
    return Table("D", tuple({"beta": i, "skip": i / 2, "cosine": 0.5, "phase": p} for i, p in enumerate(phases)))


FIGURES: dict[str, tuple[Callable[[Table], Any], Callable[[], Table], int]] = {
    "gradients": (plots.gradients, gradients, 3),
    "signal": (plots.signal, signal, 3),
    "parts": (plots.parts, lambda: table("residue", parts=("attention", "full"), layer=(0, 1), seed=(0, 1)), 2),
    "closed form": (plots.closed_form, lambda: beside(scale=(1.0, 0.5)), 2),
    "update": (plots.update, lambda: table("change", variant=VARIANT, depth=(1, 2, 4), seed=(0, 1)), 3),
    "train": (plots.train, train, 3),
    "predict": (plots.predict, lambda: beside(variant=("post-norm",), beta=(0.5, 3.0)), 2),
    "growth": (plots.growth, beside, 1),
    "squashed": (plots.squashed, lambda: beside(kind=("derf", "dyt"), slope=(0.5, 1.0)), 4),
    "diagram": (plots.diagram, diagram, 3),
    "norms": (plots.norms, norms, 2),
    "position": (
        plots.position,
        lambda: table("accuracy", variant=VARIANT, what=("position", "token"), layer=(0, 1), more={"chance": 0.1}),
        3,
    ),
}  # fmt: skip


def panels(made: Any) -> list[tuple[Any, Any]]:
    layout = made.layout
    names = sorted(key for key in layout.to_plotly_json() if re.fullmatch(r"xaxis\d*", key))
    return [(layout[name], layout[name.replace("x", "y", 1)]) for name in names]


@pytest.mark.parametrize("name", FIGURES)
def test_axes_are_named_and_variants_are_told_apart_without_colour(name: str) -> None:
    draw, study, variants = FIGURES[name]
    made = draw(study())
    assert panels(made)
    for x, y in panels(made):
        assert x.title.text
        assert y.title.text
    drawn = [trace for trace in made.data if trace.meta == "variant"]
    assert len({trace.name for trace in drawn}) == variants
    looks: dict[tuple[str, str], str] = {}
    for trace in drawn:
        look = (trace.line.dash or "", trace.marker.symbol or "")
        assert looks.setdefault(look, trace.name) == trace.name
        assert "lines" in trace.mode or trace.marker.symbol
        assert len(trace.x) == len(trace.y) > 0
    labels = " ".join(str(note.text).replace("<br>", " ") for note in made.layout.annotations)
    assert all(trace.name in labels for trace in drawn)


def test_power_laws_are_on_logarithmic_axes_with_their_exponent_and_the_theory() -> None:
    found = Table(
        "by noise", tuple({"variant": "post-norm", "depth": n, "seed": 0, "change": n**1.5} for n in (2, 4, 8))
    )
    made = plots.update(found)
    assert made.layout.xaxis.type == made.layout.yaxis.type == "log"
    labels = [note.text.replace("<br>", " ") for note in made.layout.annotations]
    assert "post-norm ∝ N<sup>1.50</sup>" in labels
    (theory,) = [trace for trace in made.data if trace.meta == "theory"]
    assert theory.y[-1] / theory.y[0] == pytest.approx(4)


def test_a_band_is_the_confidence_over_seeds() -> None:
    found = table("change", variant=("post-norm",), depth=(1, 2), seed=(0, 1, 2))
    (band,) = [trace for trace in plots.update(found).data if trace.meta == "band"]
    means = found.mean("change", "depth").rows
    assert max(band.y) == pytest.approx(max(row["change"] + row["confidence"] for row in means))
    single = table("change", variant=("post-norm",), depth=(1, 2), seed=(0,))
    assert not [trace for trace in plots.update(single).data if trace.meta == "band"]


def test_what_is_not_finite_is_said_and_not_drawn() -> None:
    found = train()
    lost = tuple(
        row | {"loss": math.nan} if row["variant"] == "post-norm" and row["step"] == 20 else row for row in found.rows
    )
    made = plots.train(Table(found.title, lost))
    assert any("post-norm<br>✕ not finite" in note.text for note in made.layout.annotations)
    assert all(math.isfinite(y) for trace in made.data for y in trace.y)
    gone = tuple(row | {"loss": math.nan} for row in found.rows)
    assert plots.train(Table(found.title, gone)).layout.annotations


def test_ablate_writes_each_number_into_its_field() -> None:
    row = {"cosine": 0.5, "vectors": 0.9, "loss": 10.25}
    parts = [
        ("block", "blocks.0"), ("residual", "blocks.0.attention"), ("norm", "blocks.0.attention.norm_out"),
        ("head", "blocks.0.attention.heads.0"), ("head", "blocks.0.attention.heads.1"),
    ]  # fmt: skip
    found = [{"kind": "intact", "where": "", "block": None, "rank": 1.0} | row]
    found += [{"kind": k, "where": w, "block": 0, "rank": 0.9 - 0.1 * i} | row for i, (k, w) in enumerate(parts)]
    made = plots.ablate(Table("", tuple(found)))
    rank = made.data[0]
    assert [trace.name for trace in made.data] == ["rank", "cosine", "loss"]
    assert dict(zip(rank.y, [line[0] for line in rank.text], strict=True)) == {
        "block": ".90", "residual of attention": ".80", "norm_out of attention": ".70", "head (worst)": ".50",
    }  # fmt: skip
    assert {line[0] for line in made.data[2].text} == {"10.25"}
    assert all(x.title.text == "block" for x, _ in panels(made))


def test_every_variant_at_once_still_has_a_look_of_its_own() -> None:
    assert len(VARIANTS) <= math.lcm(len(DASHES), len(SYMBOLS))
    made = figure([Panel("t", "x", "y", [Line(name, [0, 1], [0, 1]) for name in VARIANTS])])
    assert len({(trace.line.dash, trace.marker.symbol) for trace in made.data}) == len(VARIANTS)
    ends = sorted(note.ay for note in made.layout.annotations if note.name)
    assert min(b - a for a, b in pairwise(ends)) >= 14.9


@pytest.mark.parametrize(
    ("value", "said"), [(None, ""), (0.0, "0"), (0.5, "0.50"), (2e-8, "2·10<sup>−8</sup>"), (math.inf, "not finite")]
)
def test_short_numbers(value: float | None, said: str) -> None:
    assert short(value) == said


def test_without_plotly_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(AddnormError, match=r"pip install 'addnorm\[lab\]'"):
        plots.growth(beside())
