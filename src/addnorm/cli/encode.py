"""`addnorm encode`: the vectors of a file of texts."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from addnorm.cli import _show


class Precision(StrEnum):
    """The precisions of the engine."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    AUTO = "auto"


def encode(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A file: text with one a line, .csv, .jsonl, .parquet.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="A file: .npy, or .parquet with the other columns.")],
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    column: Annotated[str, typer.Option(help="Where the texts are, in a csv, jsonl or parquet file.")] = "text",
    precision: Annotated[
        Precision, typer.Option(help="Of the computation; auto: float32 or bfloat16, the faster one here.")
    ] = Precision.FLOAT32,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run that ended early stopped.")] = False,
) -> None:
    """One vector a text, streamed; the output is there when all of it is."""
    from addnorm.engine.files import encode_file

    count, width = encode_file(source, output, model, column, precision.value, resume)
    typer.echo(f"{output}: {count} vectors of {width} features")
