"""Panels of lines, drawn with Plotly: what `plots` builds its pictures from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from addnorm.errors import AddnormError

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
COLOURS = ("#0072B2", "#C44E00", "#007A58", "#A83C81", "#333333", "#8A6A00", "#4B3FA7")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")
GREY = "#666666"
# These look the same in every picture; others take the next free look.
USUAL = ("post-norm", "pre-norm", "deepnorm", "no-residual", "admin", "rezero")
HEIGHT, GAP, TOP, BOTTOM, LEFT = 250, 100, 40, 60, 64  # of a panel and between panels, in pixels
LABEL = 15  # a line of a label, in pixels


def plotly() -> Any:
    """plotly.graph_objects. Errors: Plotly is not installed."""
    try:
        import plotly.graph_objects
    except ImportError:
        raise AddnormError("pictures need Plotly, which is not installed: pip install 'addnorm[lab]'") from None
    return plotly.graph_objects


@dataclass(frozen=True)
class Line:
    """One line: `spread` is half the height of its band; `theory`: grey, without symbols; `mode` as in Plotly."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float | None] = ()
    label: str | None = None
    theory: bool = False
    mode: str = "lines+markers"


@dataclass(frozen=True)
class Panel:
    """A pair of axes. `log`: "", "y" or "xy"; `limits`: of y, else those of the data."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()


def figure(panels: Sequence[Panel]) -> Any:
    """The panels below each other. Traces of variants have the meta "variant", those of theory "theory"."""
    go = plotly()
    looks = _looks(dict.fromkeys(line.name for panel in panels for line in panel.lines if not line.theory))
    heights = [max(HEIGHT, LABEL * sum(_lines(_label(line)) for line in panel.lines)) for panel in panels]
    longest = max((_length(_label(line)) for panel in panels for line in panel.lines), default=0)
    layout = blank(sum(heights) + GAP * (len(panels) - 1) + TOP + BOTTOM, 26 + 6.6 * longest)
    made = go.Figure()
    for i, panel in enumerate(panels):
        span = _span(panel)
        for line in panel.lines:
            for trace in _traces(line, panel, looks.get(line.name)):
                made.add_trace(trace | {"xaxis": f"x{i + 1}", "yaxis": f"y{i + 1}"})
        # The range is given: else Plotly makes room for the labels inside the axes.
        x = axis(panel.x) | {"range": _reach(panel)}
        if "x" in panel.log:
            x |= {"type": "log"}
        if panel.ticks:
            x |= {"tickvals": list(panel.ticks), "ticktext": [f"{tick:g}" for tick in panel.ticks]}
        y = axis(panel.y) | {"range": list(span)}
        if "y" in panel.log:
            y |= {"type": "log"} | _decades(*span)
        place(layout, i, heights, panel.title, x, y)
        layout["annotations"] += _labels(panel, span, heights[i], looks, i)
    made.update_layout(**layout)
    return made


def short(value: float | None) -> str:
    """A number in a few characters."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if not 1e-2 <= abs(value) < 1e4:
        mantissa, power = f"{value:.0e}".split("e")
        return f"{mantissa}·10<sup>{int(power)}</sup>".replace("-", "−")
    return f"{value:.2f}".replace("-", "−")


# --- looks --------------------------------------------------------------------------------------------


def _looks(names: Iterable[str]) -> dict[str, int]:
    """A number for each name, by which colour, dash and symbol are chosen."""
    listed = list(names)
    looks = {name: USUAL.index(name) for name in listed if name in USUAL}
    free = (i for i in count() if i not in looks.values())
    for name in listed:
        if name not in looks:
            looks[name] = next(free)
    return looks


def _traces(line: Line, panel: Panel, look: int | None) -> list[dict[str, Any]]:
    xs, ys = zip(*_finite(line), strict=True) if _finite(line) else ((), ())
    base = {"type": "scatter", "x": xs, "y": ys, "name": line.name}
    if look is None:
        return [base | {"mode": "lines", "line": {"color": GREY, "width": 1.5, "dash": "2px,4px"}, "meta": "theory"}]
    colour = COLOURS[look % len(COLOURS)]
    drawn = base | {
        "mode": line.mode,
        "line": {"color": colour, "width": 2, "dash": DASHES[look % len(DASHES)]},
        "marker": {"color": colour, "symbol": SYMBOLS[look % len(SYMBOLS)], "size": 7},
        "meta": "variant",
    }
    return [*_band(line, panel, colour), drawn]


def _band(line: Line, panel: Panel, colour: str) -> list[dict[str, Any]]:
    points = [
        (x, y, s) for x, y, s in zip(line.x, line.y, line.spread, strict=False) if s is not None and math.isfinite(y)
    ]
    if len(points) < 2:
        return []
    # On a logarithmic axis a band that reaches 0 has no lower edge: it ends a decade below the line.
    low = [max(y - s, y / 10) if "y" in panel.log else y - s for _, y, s in points]
    xs, high = [x for x, _, _ in points], [y + s for _, y, s in points]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return [
        {
            "type": "scatter", "x": xs + xs[::-1], "y": high + low[::-1], "fill": "toself", "mode": "lines",
            "fillcolor": f"rgba({red},{green},{blue},0.13)", "line": {"width": 0}, "hoverinfo": "skip",
            "name": f"{line.name}, 95 %", "meta": "band",
        }
    ]  # fmt: skip


def _finite(line: Line) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]


# --- axes ---------------------------------------------------------------------------------------------


def blank(height: float, right: float) -> dict[str, Any]:
    """The layout that every picture starts from. `right`: room for labels, in pixels."""
    return {
        "height": height,
        "margin": {"l": LEFT, "r": right, "t": TOP, "b": BOTTOM},
        "font": {"family": FONT, "size": 13, "color": "#1a1a1a"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "showlegend": False,
        "dragmode": False,  # a finger on the picture moves the page
        "hovermode": "closest",
        "annotations": [],
    }


def axis(title: str) -> dict[str, Any]:
    """An axis with a title, a line and a light grid."""
    line = {"showline": True, "linecolor": "#888888", "gridcolor": "#e6e6e6", "zeroline": False, "ticks": "outside"}
    return line | {
        "title": {"text": title, "standoff": 8, "font": {"size": 13}},
        "tickcolor": "#888888",
        "fixedrange": True,
    }


def place(
    layout: dict[str, Any], i: int, heights: Sequence[float], title: str, x: dict[str, Any], y: dict[str, Any]
) -> None:
    """Give panel `i` its axes and title in a layout of panels below each other."""
    inside = sum(heights) + GAP * (len(heights) - 1)
    top = inside - sum(heights[:i]) - GAP * i
    number = "" if i == 0 else str(i + 1)
    layout[f"yaxis{number}"] = y | {"domain": [(top - heights[i]) / inside, top / inside], "anchor": f"x{i + 1}"}
    layout[f"xaxis{number}"] = x | {"domain": [0, 1], "anchor": f"y{i + 1}"}
    layout["annotations"] = [
        *layout["annotations"],
        {
            "text": f"<b>{title}</b>", "xref": "paper", "yref": "paper", "x": 0, "y": top / inside, "yshift": 6,
            "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 14},
        },
    ]  # fmt: skip


def _reach(panel: Panel) -> list[float]:
    """The range of x, in decades where it is logarithmic."""
    xs = [math.log10(x) if "x" in panel.log else x for line in panel.lines for x in line.x]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    room = 0.03 * (high - low) or 0.1
    return [low - room, high + room]


def _span(panel: Panel) -> tuple[float, float]:
    """The range of y, in decades where it is logarithmic: that of the means, a wide band may leave it."""
    if panel.limits is not None:
        return panel.limits
    ys = [y for line in panel.lines for _, y in _finite(line)]
    if "y" in panel.log:
        decades = [math.log10(y) for y in ys if y > 0] or [0.0]
        low, high = min(decades), max(decades)
        return (low - 0.06 * (high - low) - 0.05, high + 0.06 * (high - low) + 0.05)
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    room = 0.08 * (high - low) or 0.1 * (abs(high) or 1)
    return (low - room, high + room)


def _decades(low: float, high: float) -> dict[str, Any]:
    """Ticks of a logarithmic axis: powers of ten, or 1, 2 and 5 where there are few."""
    few = high - low < 2.2
    powers = range(math.floor(low), math.ceil(high) + 1)
    step = max(1, round((high - low) / 6))
    values = [m * 10.0**p for p in powers for m in ((1, 2, 5) if few else (1,)) if few or p % step == 0]
    shown = [v for v in values if low <= math.log10(v) <= high]
    return {"tickvals": shown, "ticktext": [_power_of_ten(v) for v in shown]}


def _power_of_ten(value: float) -> str:
    if 1e-3 <= value <= 1e3:
        return f"{value:g}"
    mantissa, power = f"{value:.0e}".split("e")
    return ("" if mantissa == "1" else f"{mantissa}·") + f"10<sup>{int(power)}</sup>".replace("-", "−")


# --- labels at the end of lines -----------------------------------------------------------------------


def _label(line: Line) -> str:
    label = line.name if line.label is None else line.label
    if label and any(not math.isfinite(y) for y in line.y):
        label += " ✕ not finite"
    if _length(label) > 20:  # two lines leave a phone more of the picture
        for sign in (" ✕", " ∝", ", ", " ("):
            head, found, tail = label.rpartition(sign)
            if found:
                return f"{head},<br>{tail}" if sign == ", " else f"{head}<br>{sign[1:]}{tail}"
    return label


def _length(label: str) -> int:
    return max(map(len, label.replace("<sup>", "").replace("</sup>", "").split("<br>")))


def _lines(label: str) -> int:
    return 1 + label.count("<br>")


def _labels(
    panel: Panel, span: tuple[float, float], height: float, looks: dict[str, int], i: int
) -> list[dict[str, Any]]:
    """Each label beside the last point of its line, moved up or down where two would meet."""

    def place(value: float, log: bool) -> float:
        return math.log10(value) if log else value

    ends = []
    for line in panel.lines:
        points = [(x, y) for x, y in _finite(line) if "y" not in panel.log or y > 0]
        if not _label(line):
            continue
        x, y = points[-1] if points else (line.x[0] if line.x else 1.0, math.nan)
        py = place(y, "y" in panel.log) if points else span[0]
        wanted = (span[1] - py) / (span[1] - span[0]) * height
        ends.append((wanted, place(x, "x" in panel.log), py, line))
    ends.sort(key=lambda end: end[0])
    at = _apart([end[0] for end in ends], [LABEL * _lines(_label(end[3])) for end in ends], height)
    made = []
    for (wanted, x, y, line), pixel in zip(ends, at, strict=True):
        look = looks.get(line.name)
        colour = GREY if line.theory or look is None else COLOURS[look % len(COLOURS)]
        text = f"<i>{_label(line)}</i>" if line.theory else _label(line)
        made.append(
            {
                "text": text, "x": x, "y": y, "xref": f"x{i + 1}", "yref": f"y{i + 1}", "ax": 16,
                "ay": pixel - wanted,
                "xanchor": "left", "yanchor": "middle", "showarrow": True, "arrowhead": 0, "arrowwidth": 1,
                "arrowcolor": colour, "font": {"color": colour, "size": 12}, "startstandoff": 2, "standoff": 5,
                "align": "left", "name": line.name,
            }
        )  # fmt: skip
    return made


def _apart(wanted: Sequence[float], sizes: Sequence[float], height: float) -> list[float]:
    """Sorted middles of labels moved as little as needed to be apart by their sizes and inside the panel."""
    at: list[float] = []
    for k, place in enumerate(wanted):
        at.append(max(place, at[-1] + (sizes[k - 1] + sizes[k]) / 2) if k else max(place, 0.0))
    limit = height
    for k in reversed(range(len(at))):
        at[k] = min(at[k], limit - sizes[k] / 2)
        limit = at[k] - sizes[k] / 2
    return at
