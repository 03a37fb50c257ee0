"""How the commands print: tables that fit 100 columns, colour only on a terminal."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from addnorm.hub import DEFAULT_MODEL

WIDTH = 100

ModelOption = Annotated[str, typer.Option("--model", "-m", help="A folder or a name on the hub.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
__all__ = ["DEFAULT_MODEL", "JsonOption", "ModelOption", "console", "number", "print_json", "table"]


def console() -> Console:
    """Standard output, at most 100 columns wide, 100 where it is no terminal."""
    width = min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def table(
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[str]],
    styles: Mapping[int, Mapping[str, str]] | None = None,
) -> Table:
    """A table; each column has a header and "left", "right" or, for text that may wrap, "wrap".

    `styles`: by column, how certain cells are shown on a terminal.
    """
    made = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        show_header=any(header for header, _ in columns),
        padding=(0, 1, 0, 0),
    )
    for header, kind in columns:
        justify: JustifyMethod = "right" if kind == "right" else "left"
        made.add_column(Text(header), justify=justify, no_wrap=kind != "wrap", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, (styles or {}).get(i, {}).get(cell, "")) for i, cell in enumerate(row)))
    return made


def number(value: float) -> str:
    """About four significant digits in at most eight characters."""
    if value != value or abs(value) == float("inf"):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def print_json(data: Any) -> None:
    """Data as JSON on standard output; NaN and infinity become null."""
    print(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float) and (data != data or abs(data) == float("inf")):
        return None
    return data
