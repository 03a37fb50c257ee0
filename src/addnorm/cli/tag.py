"""`addnorm tag`: the labelled pieces of a text."""

from enum import StrEnum
from typing import Annotated

import typer

from addnorm.cli import _show
from addnorm.cli._input import read_text


class Merge(StrEnum):
    """The ways in which the tokens of a word agree on its label."""

    FIRST = "first"
    MAX = "max"
    AVERAGE = "average"
    SIMPLE = "simple"


def tag(
    text: Annotated[str, typer.Argument(help="A text; - reads it from standard input.")],
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    merge: Annotated[
        Merge, typer.Option(help="How the tokens of a word agree; simple: they need not.")
    ] = Merge.FIRST,
    json: _show.JsonOption = False,
) -> None:
    """The labelled pieces of a text: names, places, parts of speech."""
    text = read_text(text)

    from addnorm.model import load

    entities = load(model).tag(text, merge.value)
    if json:
        _show.print_json(entities)
        return
    columns = [("score", "right"), ("label", "left"), ("characters", "left"), ("text", "wrap")]
    rows = [
        (f"{row['score']:.4f}", row["entity_group"], f"{row['start']}–{row['end']}", row["word"]) for row in entities
    ]
    _show.console().print(_show.table("Entities", columns, rows))
