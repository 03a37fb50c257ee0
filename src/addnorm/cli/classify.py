"""`addnorm classify`: the labels of a text."""

from typing import Annotated

import typer

from addnorm.cli import _show
from addnorm.cli._input import read_text


def classify(
    text: Annotated[str, typer.Argument(help="A text; - reads it from standard input.")],
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    pair: Annotated[str | None, typer.Option(help="A second text, where the model reads two.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only so many labels.")] = None,
    json: _show.JsonOption = False,
) -> None:
    """The labels of a text, or of two together, with their scores."""
    text = read_text(text)

    from addnorm.model import load

    labels = load(model).classify(text if pair is None else (text, pair), top)
    if json:
        _show.print_json(labels)
        return
    rows = [(f"{row['score']:.4f}", row["label"]) for row in labels]
    _show.console().print(_show.table("Labels", [("score", "right"), ("label", "wrap")], rows))
