"""Ours and the fastest of the others as bars: an SVG that needs nothing else, for a page and for a README.

Not Plotly: a file of its own, as a report in Markdown shows it, would need a browser to be made.
"""

from collections.abc import Sequence
from html import escape

from addnorm.bench.results import Measured, Result, ratio
from addnorm.bench.systems import OURS
from addnorm.panels import COLOURS, FONT, GREY

ROW, HEAD, COLUMN, LABEL, BAR, TOP = 17, 30, 430, 150, 210, 56  # pixels


def picture(results: Sequence[Result]) -> str:
    """A column a model; in it, for each workload and precision, ours and the fastest of the others."""
    columns = [_column(result, COLUMN * i) for i, result in enumerate(results)]
    width, height = COLUMN * len(results), max((bottom for _, bottom in columns), default=TOP) + 10
    title = "How many times as fast as transformers (sdpa, sorted by length, float32)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{escape(FONT)}" font-size="12" role="img" aria-label="{title}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        f"{_text(8, 18, title, weight=700)}\n"
        + "\n".join(part for parts, _ in columns for part in parts)
        + "\n</svg>\n"
    )


def _column(result: Result, left: int) -> tuple[list[str], int]:
    """The parts of a model's column, and where it ends."""
    shown = [(texts.name, _pairs(result, texts.name)) for texts in result.workloads]
    speeds = [speed for _, rows in shown for _, speed in rows]
    longest = max(speeds, default=1.0)
    parts, y = [_text(left + 8, 42, str(result.model["name"]), weight=700)], TOP
    heats = list(dict.fromkeys(m.heat for m in result.measured))
    for workload, rows in shown:
        if not rows:
            continue
        parts.append(_text(left + 8, y + 18, workload, weight=700))
        y += HEAD
        for found, speed in rows:
            colour = COLOURS[heats.index(found.heat) % len(COLOURS)]
            length = max(1.0, BAR * speed / longest)
            solid = 1.0 if found.system == OURS else 0.4
            parts += [
                _text(left + LABEL - 6, y + 11, f"{found.system} {found.precision}", anchor="end", size=11),
                f'<rect x="{left + LABEL}" y="{y}" width="{length:.1f}" height="{ROW - 4}" fill="{colour}" '
                f'fill-opacity="{solid}"/>',
                _text(left + LABEL + length + 4, y + 11, f"{speed:.2f}×", size=11),
            ]
            y += ROW
    return parts, y


def _pairs(result: Result, workload: str) -> list[tuple[Measured, float]]:
    """Ours and the fastest other at each precision, with their speed beside transformers'."""
    found = []
    for heat in dict.fromkeys(m.heat for m in result.measured):
        ours = [m for m in result.measured if (m.workload, m.heat, m.system) == (workload, heat, OURS)]
        found += [*ours, *result.peers(workload, heat)[:1]]
    speeds = [(one, ratio(result.yardstick(one), one)) for one in found]
    return [(one, speed.median) for one, speed in speeds if speed is not None]


def _text(x: float, y: float, text: str, weight: int = 400, anchor: str = "start", size: int = 12) -> str:
    colour = "#1a1a1a" if weight > 400 else GREY
    return (
        f'<text x="{x:.1f}" y="{y}" font-weight="{weight}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
