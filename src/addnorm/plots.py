"""Every picture, made once, with Plotly: for the command line, notebooks and the page.

One function a study; each takes the study's `Table` and gives a `plotly.graph_objects.Figure`: panels below each
other, so that they can be read on a phone. Lines are told apart by dash, symbol and a label at their end, and only
then by colour; the band around a line is the 95 % confidence of its mean over seeds. Where the claim is a power law
both axes are logarithmic. Values that are not finite are left out, and the label says so.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from addnorm.lab.table import Row, Table, slope
from addnorm.panels import BOTTOM, COLOURS, GAP, TOP, Line, Panel, axis, blank, figure, place, plotly, short

# --- one function a study -----------------------------------------------------------------------------


def gradients(table: Table) -> Any:
    """Gradient norms: of the last W₂ over depth, and layer by layer in the deepest stack."""
    depth = max(table.values("depth"))
    last = table.where(where="down")
    last = Table(last.title, tuple(row for row in last.rows if row["layer"] == row["depth"]))
    over_depth = _lines(last, "gradient", "depth", exponent=True)
    panels = []
    depths = sorted(set(table.values("depth")))
    if len(depths) > 1:
        theory = [_power(over_depth, "pre-norm", -0.5, "∝ N<sup>−½</sup> (Xiong 2020)")]
        panels.append(
            Panel("Last block's W₂", "blocks N", "‖∂L/∂W₂‖", [*over_depth, *_given(theory)], "xy", ticks=depths)
        )
    for title, where, x in (("Stream", "stream", "blocks below"), ("Queries, W<sub>Q</sub>", "query", "block")):
        rows = table.where(where=where, depth=depth)
        y = "‖∂L/∂x‖" if where == "stream" else "‖∂L/∂W<sub>Q</sub>‖"
        panels.append(Panel(f"{title}, {depth} blocks", x, y, _lines(rows, "gradient", "layer"), "y"))
    return figure(panels)


def signal(table: Table) -> Any:
    """The stream of the deepest stack: size, likeness, rank, and how evenly attention looks."""
    depth = max(table.values("depth"))
    rows = table.where(depth=depth)
    panels = [
        Panel(f"Size, {depth} blocks", "blocks below", "‖x‖/√D", _lines(rows, "norm", "layer"), "y"),
        Panel("Likeness of tokens", "blocks below", "cosine", _lines(rows, "cosine", "layer"), limits=(-0.05, 1.05)),
        Panel("Directions in use", "blocks below", "effective rank", _lines(rows, "rank", "layer"), "y"),
    ]
    attention = _lines(Table("", tuple(row for row in rows.rows if row["layer"])), "entropy", "layer")
    panels.append(Panel("Attention (1: uniform)", "block", "entropy ÷ ln T", attention))
    return figure(panels)


def parts(table: Table) -> Any:
    """Distance of tokens from being equal, with and without residuals and feed-forwards."""
    lines = _lines(table, "residue", "layer", ("parts",), floor=1e-8)
    return figure([Panel("Tokens apart (0: all equal)", "blocks below", "‖x − mean‖ ÷ ‖x‖", lines, "y")])


def closed_form(table: Table) -> Any:
    """Likeness of tokens, measured and by Noci's formula."""
    lines = _beside(table, ("scale",), lambda row: f"branch × {row['scale']:.2g}")
    title = "Symbols: measured. Lines: Noci 2022"
    return figure([Panel(title, "blocks below", "‖mean‖² ÷ mean ‖x‖²", lines, limits=(0, 1.05))])


def update(table: Table) -> Any:
    """Change of the output over depth."""
    noise = "by noise" in table.title
    y = "mean ‖ΔF‖² ÷ D" if noise else "√(mean ‖ΔF‖² ÷ D) ÷ learning rate"
    depths = sorted(set(table.values("depth")))
    lines = _lines(table, "change", "depth", exponent=True)
    theory = [_power(lines, next((line.name for line in lines), ""), 1, "∝ N")] if len(depths) > 1 else []
    return figure([Panel(table.title, "blocks N", y, [*lines, *_given(theory)], "xy", ticks=depths)])


def train(table: Table) -> Any:
    """Where the loss ends, over depth, and the curves of each depth."""
    by = ["variant", *(key for key in ("rate", "warmup") if len(set(table.values(key))) > 1)]
    depths = sorted(set(table.values("depth")))
    ends = {tuple(row[key] for key in (*by, "depth", "seed")): row for row in table.rows}
    panels = []
    if len(depths) > 1:
        lines = _lines(Table("", tuple(ends.values())), "loss", "depth", by)
        lines.append(_level(lines, table.rows[0]["chance"], "chance"))
        panels.append(Panel("Loss at the end", "blocks N", "nats", lines, "x", _from_zero(lines), depths))
    for depth in depths:
        lines = _lines(table.where(depth=depth), "loss", "step", by)
        lines.append(_level(lines, table.rows[0]["chance"], "chance"))
        panels.append(Panel(f"{table.title}, {depth} blocks", "steps", "nats", lines, limits=_from_zero(lines)))
    return figure(panels)


def predict(table: Table) -> Any:
    """Token cosine by layer, measured and by the recursion."""
    several = len(set(table.values("variant"))) > 1
    lines = _beside(
        table, ("variant", "beta"), lambda row: (f"{row['variant']}, " if several else "") + f"β = {row['beta']:g}"
    )
    return figure([Panel("Symbols: measured. Lines: predicted", "blocks below", "cosine", lines, limits=(0, 1.05))])


def growth(table: Table) -> Any:
    """The size of a pre-norm stream between Xiong's lines."""
    measured = _named(_lines(table, "measured", "layer", ()), "measured")
    bounds = [
        _theory(table, column, formula)
        for column, formula in (("lower", "1 + l/2 (Xiong 2020)"), ("upper", "1 + 3l/2"))
    ]
    return figure([Panel("Size of a pre-norm stream", "blocks below, l", "mean ‖x‖² ÷ D", [*measured, *bounds])])


def squashed(table: Table) -> Any:
    """The size of a stream that norms without statistics read, measured and by recursion."""
    lines = _beside(table, ("kind", "slope"), lambda row: f"{row['kind']}, a = {row['slope']:g}")
    return figure([Panel("Symbols: measured. Lines: predicted", "blocks below", "mean ‖x‖² ÷ D", lines)])


def diagram(table: Table) -> Any:
    """Where a post-norm stack can be trained: one symbol a phase, with its name in the middle."""
    made, layout = plotly().Figure(), blank(420, 20)
    looks = {"trainable": "circle-open", "rank collapse": "square", "entropy collapse": "x-thin"}
    x, y = axis("β, spread of attention scores (√ln T)"), axis("α, weight of the skip")
    place(layout, 0, [420 - TOP - BOTTOM], table.title, x, y)
    for (phase, symbol), colour in zip(looks.items(), COLOURS[2:], strict=False):
        rows = table.where(phase=phase).rows
        if not rows:
            continue
        xs, ys = [row["beta"] for row in rows], [row["skip"] for row in rows]
        made.add_scatter(
            x=xs,
            y=ys,
            mode="markers",
            name=phase,
            marker={"symbol": symbol, "size": 10, "color": colour, "line": {"width": 1.5, "color": colour}},
            text=[f"token cosine {row['cosine']:.2f}" for row in rows],
            meta="variant",
        )
        middle = {"x": sum(xs) / len(xs), "y": sum(ys) / len(ys), "bgcolor": "white", "borderpad": 4}
        label = {"text": f"<b>{phase}</b>", "showarrow": False, "font": {"size": 13, "color": colour}}
        layout["annotations"].append(middle | label)
    made.update_layout(**layout)
    return made


def norms(table: Table) -> Any:
    """How far a text's stream moves when the rest of its batch changes."""
    depth = max(table.values("layer"))
    last = table.where(layer=depth)
    ends = _lines(last, "change", "company", ("norm",), values=True)
    company = max(table.values("company"))
    layers = _lines(table.where(company=company), "change", "layer", ("norm",))
    ticks = sorted(set(table.values("company")))
    y = "‖change‖ ÷ ‖alone‖"
    return figure(
        [
            Panel(f"After block {depth}", "other texts in the batch", y, ends, "x", _from_zero(ends), ticks),
            Panel(f"With {company} other texts", "blocks below", y, layers, limits=_from_zero(layers)),
        ]
    )


def position(table: Table) -> Any:
    """Accuracy of the probes by layer."""
    panels = []
    for what, title in (("position", "Which position?"), ("token", "Which token?")):
        rows = table.where(what=what)
        lines = _lines(rows, "accuracy", "layer")
        lines.append(_level(lines, rows.rows[0]["chance"], "chance"))
        panels.append(Panel(title, "blocks below", "accuracy of a probe", lines, limits=(0, 1.05)))
    return figure(panels)


def ablate(table: Table) -> Any:
    """What is left without each part: a field for each part and block, with its number in it."""
    go = plotly()
    intact, rows = table.rows[0], table.rows[1:]
    shown = [("rank", "Order of likeness among texts, intact 1", True)]
    shown.append(("cosine", f"Token cosine, intact {short(intact['cosine'])}", False))
    if intact.get("loss") is not None:
        shown.append(("loss", f"Masked-LM loss (nats), intact {short(intact['loss'])}", False))
    names = list(dict.fromkeys(map(_part, rows)))[::-1]
    blocks = sorted({row["block"] for row in rows})
    height = 36 * len(names)
    made, layout = go.Figure(), blank(TOP + BOTTOM + len(shown) * (height + GAP) - GAP, 16)
    layout["margin"]["l"] = 100
    rows_named = {"tickvals": names, "ticktext": [name.replace(" of ", "<br>of ") for name in names]}
    for i, (column, title, falling) in enumerate(shown):
        worst = min if falling else max
        cells = [
            [worst((row[column] for row in rows if _part(row) == name and row["block"] == k), default=None,
                   key=lambda value: value if math.isfinite(value) else math.inf) for k in blocks]
            for name in names
        ]  # fmt: skip
        made.add_heatmap(
            x=[str(k) for k in blocks],
            y=names,
            z=cells,
            text=[[re.sub(r"^(−?)0\.", r"\1.", short(value)) for value in line] for line in cells],
            texttemplate="%{text}",
            textfont={"size": 11 if len(blocks) <= 8 else 9},
            colorscale="Blues",
            reversescale=falling,
            zmin=intact[column] if not falling else -0.2,
            zmax=intact[column] if falling else None,
            showscale=False,
            xgap=2,
            ygap=2,
            name=column,
            xaxis=f"x{i + 1}",
            yaxis=f"y{i + 1}",
        )
        place(layout, i, [height] * len(shown), title, axis("block") | {"type": "category"}, rows_named)
        layout["annotations"][-1]["xshift"] = -90  # above the names too: a phone leaves the fields little room
    made.update_layout(**layout)
    return made


def _part(row: Row) -> str:
    """A row's part without its block: "norm_out of feedforward"."""
    _, _, *path = row["where"].split(".")
    if row["kind"] == "head":
        return "head (worst)"
    if row["kind"] in ("residual", "norm"):
        return f"{path[-1] if row['kind'] == 'norm' else 'residual'} of {path[0]}"
    return str(row["kind"])


# --- lines from tables --------------------------------------------------------------------------------


def _lines(
    table: Table,
    value: str,
    x: str,
    by: Sequence[str] = ("variant",),
    exponent: bool = False,
    values: bool = False,
    floor: float | None = None,
) -> list[Line]:
    """A line for each value of `by`: means over seeds. `exponent`, `values`: what its label says beside the name;
    `floor`: smaller values are drawn there, so that what is 0 up to rounding keeps its place on a logarithmic axis.
    """
    means = table.mean(value, *by, x)
    lines = []
    for key in dict.fromkeys(tuple(row[name] for name in by) for row in means.rows):
        rows = sorted(means.where(**dict(zip(by, key, strict=True))).rows, key=lambda row: row[x])
        y = [row[value] if floor is None else max(row[value], floor) for row in rows]
        xs = [row[x] for row in rows]
        name = ", ".join(_worded(column, part) for column, part in zip(by, key, strict=True))
        label = name
        if exponent and len(y) > 1 and all(0 < v < math.inf for v in y):
            label += f" ∝ N<sup>{slope(xs, y):.2f}</sup>".replace("-", "−")
        if values and y:
            label += f": {short(y[-1])}"
        lines.append(Line(name, xs, y, [row["confidence"] for row in rows], label))
    return lines


def _worded(column: str, value: Any) -> str:
    return {"rate": f"lr {value}", "warmup": f"warm-up {value}"}.get(column, str(value))


def _named(lines: list[Line], name: str) -> list[Line]:
    return [Line(name, line.x, line.y, line.spread, name, line.theory, line.mode) for line in lines]


def _beside(table: Table, by: Sequence[str], label: Any) -> list[Line]:
    """For each value of `by` what was measured, as symbols, and what was predicted, as a line."""
    found: list[Line] = []
    for key in dict.fromkeys(tuple(row[name] for name in by) for row in table.rows):
        rows = table.where(**dict(zip(by, key, strict=True)))
        name = label(rows.rows[0])
        for column, mode in (("measured", "markers"), ("predicted", "lines")):
            (line,) = _lines(rows, column, "layer", ())
            spread = line.spread if column == "measured" else ()
            found.append(Line(name, line.x, line.y, spread, name if mode == "markers" else "", mode=mode))
    return found


def _theory(table: Table, column: str, label: str) -> Line:
    (line,) = _lines(table, column, "layer", ())
    return Line(label, line.x, line.y, (), label, theory=True)


def _level(lines: Iterable[Line], y: float, label: str) -> Line:
    xs = [x for line in lines for x in line.x]
    return Line(label, [min(xs), max(xs)], [y, y], (), f"{label} {short(y)}", theory=True)


def _power(lines: Iterable[Line], name: str, exponent: float, label: str) -> Line | None:
    """A power law through the first point of a line."""
    for line in lines:
        if line.name == name and line.y and 0 < line.y[0] < math.inf:
            return Line(label, line.x, [line.y[0] * (x / line.x[0]) ** exponent for x in line.x], (), label, True)
    return None


def _given(lines: Iterable[Line | None]) -> list[Line]:
    return [line for line in lines if line is not None]


def _from_zero(lines: Iterable[Line]) -> tuple[float, float]:
    top = max((y for line in lines for y in line.y if math.isfinite(y)), default=1.0)
    return (-0.03 * (top or 1), 1.1 * (top or 1))
