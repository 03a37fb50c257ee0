"""What the studies' commands share: reading lists of options, progress, and giving the result."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addnorm.cli import _show
from addnorm.errors import AddnormError
from addnorm.files import writing_file

if TYPE_CHECKING:
    from addnorm.lab.table import Progress, Table


def words(text: str) -> list[str]:
    """Words with commas between them."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise AddnormError("an empty list; give names with commas between them")
    return found


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return _read(text, int, "whole numbers")


def decimals(text: str) -> list[float]:
    """Numbers with commas between them."""
    return _read(text, float, "numbers")


def _read(text: str, kind: Callable[[str], Any], what: str) -> list[Any]:
    try:
        return [kind(word) for word in words(text)]
    except ValueError:
        raise AddnormError(f"'{text}': expected {what} with commas between them") from None


def one_of(name: str, value: str, known: Sequence[str]) -> Any:
    """The value of an option, one of those that are known."""
    if value not in known:
        raise AddnormError(f"--{name} '{value}' is unknown; choose {' or '.join(known)}")
    return value


def page(file: Path | None) -> Path | None:
    """A page to write, looked at before a study runs. Errors: Plotly is not installed, a folder is there."""
    if file is not None:
        from addnorm.panels import plotly

        plotly()
        if file.is_dir():
            raise AddnormError(f"'{file}' is a folder; give a file name to write to")
    return file


def command() -> str:
    """What was typed."""
    return shlex.join(["addnorm", *sys.argv[1:]])


def side_by_side(found: "Table", columns: tuple[str, ...], *by: str) -> "Table":
    """The means of several columns in one table, without their confidence."""
    from addnorm.lab.table import Table

    means = [found.mean(column, *by).rows for column in columns]
    rows = [
        {key: row[key] for row in same for key in (*by, *columns) if key in row} for same in zip(*means, strict=True)
    ]
    return Table(found.title, tuple(rows), found.note)


@contextmanager
def progress() -> "Iterator[Progress | None]":
    """A bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=label)


def write(target: Path, text: str) -> None:
    """A file, whole or not at all."""
    with writing_file(target) as file:
        Path(file).write_text(text, encoding="utf-8")


def give(
    found: "Table",
    shown: "list[Table]",
    csv: Path | None,
    json: bool,
    html: Path | None = None,
    figure: "Callable[[Table], Any] | None" = None,
) -> None:
    """Every row as CSV or JSON, a page; or the tables that sum them up, and what to know when reading them."""
    if csv is not None:
        if str(csv) == "-":
            print(found.to_csv(), end="")
        else:
            write(csv, found.to_csv())
    if html is not None and figure is not None:
        from addnorm.lab.page import study

        write(html, study(found, shown, figure(found), command()))
    if json:
        print(found.to_json())
    if json or str(csv) == "-":
        return
    out = _show.console()
    for table in shown:
        kinds = ["wrap" if any(isinstance(row.get(c), str) for row in table.rows) else "right" for c in table.columns]
        rows = [[_cell(row.get(column)) for column in table.columns] for row in table.rows]
        out.print(_show.table(table.title, list(zip(table.columns, kinds, strict=True)), rows), "")
    if found.note:
        out.print(found.note, markup=False)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return _show.number(value) if isinstance(value, float) else str(value)
