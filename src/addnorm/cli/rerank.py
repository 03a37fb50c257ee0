"""`addnorm rerank`: texts by how well they fit a query."""

from typing import Annotated

import typer

from addnorm.cli import _show
from addnorm.cli._input import read_text


def rerank(
    query: Annotated[str, typer.Argument(help="What is sought.")],
    texts: Annotated[list[str], typer.Argument(help="The texts; - reads them from standard input, one a line.")],
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    top: Annotated[int | None, typer.Option(min=1, help="Only so many texts.")] = None,
    json: _show.JsonOption = False,
) -> None:
    """Texts by how well they fit a query, each read together with it (a cross-encoder)."""
    if texts == ["-"]:
        read = read_text("-")
        texts = [line.rstrip("\r") for line in read.split("\n")] if read else []

    from addnorm.model import load

    ranks = load(model).rerank(query, texts, top)
    if json:
        _show.print_json(ranks)
        return
    columns = [("score", "right"), ("number", "right"), ("text", "wrap")]
    rows = [(_show.number(row["score"]), str(row["corpus_id"]), row["text"]) for row in ranks]
    _show.console().print(_show.table("Ranks", columns, rows))
