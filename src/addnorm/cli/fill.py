"""`addnorm fill`: words for the masks of a text."""

from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli import _show
from addnorm.cli._input import read_text

if TYPE_CHECKING:
    from addnorm.results import Filling


def fill(
    text: Annotated[str, typer.Argument(help="A text with [MASK] or <mask> in it; - reads it from standard input.")],
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    top: Annotated[int, typer.Option(min=1, help="How many words for each mask.")] = 5,
    json: _show.JsonOption = False,
) -> None:
    """The likeliest words for each mask of a text (a masked language model)."""
    text = read_text(text)

    from addnorm.model import load

    found = load(model).fill_mask(text, top)
    if json:
        _show.print_json(found)
        return
    masks: list[list[Filling]] = [found] if isinstance(found[0], dict) else found
    for i, fillings in enumerate(masks):
        title = f"Mask {i + 1} of {len(masks)}" if len(masks) > 1 else "Mask"
        columns = [("score", "right"), ("token", "left"), ("text", "wrap")]
        rows = [(f"{row['score']:.4f}", row["token_str"], row["sequence"]) for row in fillings]
        _show.console().print(_show.table(title, columns, rows))
