"""The command line: one file a command, heavy imports only inside a command."""

import sys
import warnings
from typing import TextIO

import typer

from addnorm.cli import answer, bench, check, classify, encode, fill, info, lab, rerank, tag, trace
from addnorm.errors import AddnormError, Remark

app = typer.Typer(
    name="addnorm",
    help="Transformer encoders, open at every sub-layer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(info.info)
app.command()(trace.trace)
app.command()(encode.encode)
app.command()(check.check)
app.command()(bench.bench)
app.command()(fill.fill)
app.command()(classify.classify)
app.command()(tag.tag)
app.command()(answer.answer)
app.command()(rerank.rerank)
app.add_typer(lab.app)


def main() -> None:
    """Entry point: errors are one line on stderr and exit status 1, remarks go to stderr."""
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", Remark)
    try:
        app()
    except AddnormError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has gone
        sys.stderr.close()
        sys.exit(1)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, Remark):
        print(f"note: {message}", file=sys.stderr)
