"""`addnorm answer`: the piece of a text that answers a question."""

from typing import Annotated

import typer

from addnorm.cli import _show
from addnorm.cli._input import read_text


def answer(
    question: Annotated[str, typer.Argument(help="A question.")],
    context: Annotated[str, typer.Argument(help="The text that holds the answer; - reads it from standard input.")],
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    no_answer: Annotated[bool, typer.Option("--no-answer", help="The text may hold no answer.")] = False,
    json: _show.JsonOption = False,
) -> None:
    """The piece of a text that answers a question; a long text is read in windows."""
    context = read_text(context)

    from addnorm.model import load

    found = load(model).answer(question, context, no_answer)
    if json:
        _show.print_json(found)
        return
    columns = [("score", "right"), ("characters", "left"), ("answer", "wrap")]
    place = f"{found['start']}–{found['end']}"
    row = (
        (f"{found['score']:.4f}", place, found["answer"]) if found["answer"] else (f"{found['score']:.4f}", "–", "–")
    )
    _show.console().print(_show.table("Answer", columns, [row]))
