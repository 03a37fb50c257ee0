"""`addnorm check`: what a checkpoint is, and whether it can be trusted."""

from typing import Annotated

import typer

from addnorm.cli import _show

SIGNS = {"ok": "green", "warning": "yellow", "wrong": "bold red", "skipped": "dim"}


def check(
    model: Annotated[str, typer.Argument(help="A folder or a name on the hub.")] = _show.DEFAULT_MODEL,
    json: _show.JsonOption = False,
) -> None:
    """The check-up: config, tensors, positions, tokenizer, pooling, and the numbers themselves."""
    from addnorm.checkup import check as run

    result = run(model)
    if json:
        _show.print_json(result.to_dict())
    else:
        out = _show.console()
        rows = [(row.name, row.status, row.figure, row.advice) for row in result.checks]
        columns = (("check", "left"), ("", "left"), ("measured", "wrap"), ("what to do", "wrap"))
        out.print(_show.table(result.model, columns, rows, styles={1: SIGNS}))
    if result.wrong:
        raise typer.Exit(1)
