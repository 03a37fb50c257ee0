"""One HTML file that needs nothing else: text, pictures with Plotly's script in it once, tables."""

import base64
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from addnorm.lab.table import Table
from addnorm.panels import plotly

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 52rem; padding: 1rem; font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto,
  sans-serif; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
code { overflow-wrap: anywhere; background: #f3f3f3; padding: .1em .3em; border-radius: 3px; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid #e6e6e6; }
td.n, th.n { text-align: right; } td.w { white-space: normal; }
.wide { overflow-x: auto; } .verdict { font-weight: 700; white-space: nowrap; } .note, footer { color: #555; }
summary { cursor: pointer; }
"""


def document(title: str, parts: Sequence[str], pictures: bool) -> str:
    """The whole file. `parts`: HTML; `pictures`: whether Plotly's script is needed. Errors: not installed."""
    script = ""
    if pictures:
        plotly()
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>{script}</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def picture(figure: Any) -> str:
    """A figure as HTML, as wide as the page; the script comes with the document."""
    return str(
        figure.to_html(full_html=False, include_plotlyjs=False, config={"responsive": True, "displayModeBar": False})
    )


def tabulate(table: Table) -> str:
    """A table's rows as HTML."""
    columns = table.columns
    numeric = {c for c in columns if all(isinstance(row.get(c), int | float | None) for row in table.rows)}
    head = "".join(f'<th class="{"n" if c in numeric else ""}">{escape(c)}</th>' for c in columns)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{"n" if c in numeric else ""}">{_cell(row.get(c))}</td>' for c in columns)
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def note(text: str) -> str:
    """What to know when reading a table; names in backquotes become code."""
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f'<p class="note">{marked}</p>' if text else ""


def download(table: Table, name: str) -> str:
    """A link to every row as CSV, inside the page."""
    data = base64.b64encode(table.to_csv().encode()).decode()
    return f'<a download="{escape(name)}.csv" href="data:text/csv;base64,{data}">every row as CSV</a>'


def study(found: Table, shown: Sequence[Table], figure: Any, command: str) -> str:
    """The page of one study: picture, summary, how it was made."""
    seeds = sorted({row["seed"] for row in found.rows if "seed" in row})
    parts = [f"<h1>{escape(found.title)}</h1>", picture(figure), note(found.note)]
    for table in shown:
        parts += [f"<h2>{escape(table.title)}</h2>", tabulate(table)]
    made = f"Made by <code>{escape(command)}</code>" + (f", seeds {', '.join(map(str, seeds))}" if seeds else "")
    parts.append(f"<footer><p>{made}; {download(found, found.title)}.</p></footer>")
    return document(found.title, parts, pictures=True)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
