"""`addnorm lab NAME`: studies of the block."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli import _show
from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from addnorm.lab.table import Progress, Table

app = typer.Typer(
    name="lab",
    help="Studies of the block: vary the equation and measure what Add & Norm is for.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write every row as CSV; - for standard output.")]
VariantsOption = Annotated[
    str, typer.Option("--variants", "-v", help="Names with commas; `lab variants` lists them.")
]
DepthsOption = Annotated[str, typer.Option("--depths", help="Numbers of blocks, with commas.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Repetitions, each from its own random weights.")]
WidthOption = Annotated[int, typer.Option(min=1, help="Width of the stream.")]
NormOption = Annotated[str | None, typer.Option("--norm", help="One kind of norm in all slots.")]
InitOption = Annotated[str | None, typer.Option("--init", help="A recipe for fresh weights instead of the paper's.")]


@app.command()
def variants(
    depth: Annotated[int, typer.Option(min=1, help="The depth N that constants are for.")] = 12,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Every variant with formula, constants and source."""
    from addnorm.lab.table import Table
    from addnorm.lab.variants import VARIANTS

    rows = tuple(
        {
            "variant": variant.name,
            "formula": variant.formula,
            "constants": ", ".join(f"{name} = {value:.4g}" for name, value in variant.constants(depth).items()),
            "source": variant.source,
        }
        for variant in VARIANTS.values()
    )
    table = Table(f"Variants, constants for {depth} blocks", rows)
    _give(table, [table], csv, json)


@app.command()
def gradients(
    variants: VariantsOption = "post-norm,pre-norm,deepnorm,no-residual",
    depths: DepthsOption = "6,12,24",
    seeds: SeedsOption = 3,
    width: WidthOption = 128,
    loss: Annotated[str, typer.Option(help="tokens (all of them) or first (of each text).")] = "tokens",
    norm: NormOption = None,
    init: InitOption = None,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Gradient norms by layer and depth, fresh weights."""
    from addnorm.lab.gradients import gradients as study
    from addnorm.lab.table import Table

    chosen = _one_of("loss", loss, ("tokens", "first"))
    with _progress() as progress:
        found = study(
            _words(variants), _numbers(depths), seeds, chosen, progress=progress, width=width, norm=norm, init=init
        )
    last = tuple(row for row in found.rows if row["where"] == "down" and row["layer"] == row["depth"])
    ends = tuple(row for row in found.rows if row["where"] == "stream" and row["layer"] in (0, row["depth"]))
    shown = [
        Table("‖∂L/∂W₂‖ of the last block", last, "").mean("gradient", "variant", "depth"),
        Table("‖∂L/∂x‖ before the first block and after the last", ends).mean(
            "gradient", "variant", "depth", "layer"
        ),
    ]
    _give(found, shown, csv, json)


@app.command()
def signal(
    variants: VariantsOption = "post-norm,pre-norm,deepnorm,no-residual",
    depths: DepthsOption = "24",
    seeds: SeedsOption = 3,
    width: WidthOption = 128,
    parts: Annotated[bool, typer.Option("--parts", help="Which part keeps tokens apart (Dong 2021).")] = False,
    closed_form: Annotated[bool, typer.Option("--closed-form", help="Noci's formula beside it.")] = False,
    model: Annotated[str | None, typer.Option("--model", "-m", help="With --parts: a trained model.")] = None,
    norm: NormOption = None,
    init: InitOption = None,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """The stream by depth: norm, token cosine, rank, attention entropy."""
    from addnorm.lab import signal as study

    if model is not None and not parts:
        raise AddnormError("--model goes with --parts")
    with _progress() as progress:
        if closed_form:
            found = study.closed_form(seeds=seeds, progress=progress)
            shown = [_side_by_side(found, ("measured", "predicted"), "scale", "layer")]
        elif parts:
            found = _trained_parts(model) if model is not None else study.fresh_parts(seeds=seeds, progress=progress)
            shown = [found.mean("residue", "parts", "layer")]
        else:
            found = study.signal(
                _words(variants), _numbers(depths), seeds, progress=progress, width=width, norm=norm, init=init
            )
            shown = [_side_by_side(found, ("norm", "cosine", "rank"), "variant", "depth", "layer")]
    _give(found, shown, csv, json)


def _trained_parts(name: str) -> "Table":
    from addnorm.lab.signal import parts
    from addnorm.model import load

    loaded = load(name)
    return parts(loaded.encoder, loaded.batch(loaded.as_tokens(TEXTS)))


@app.command()
def update(
    variants: VariantsOption = "post-norm,pre-norm,admin,deepnorm",
    depths: DepthsOption = "6,12,24,48",
    seeds: SeedsOption = 3,
    width: WidthOption = 64,
    how: Annotated[str, typer.Option(help="noise, sgd or adam.")] = "noise",
    what: Annotated[str, typer.Option(help="matrices, or all (biases and norms too).")] = "matrices",
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Change of the output after a small change of the weights, by depth."""
    from addnorm.lab.table import Table
    from addnorm.lab.update import exponents
    from addnorm.lab.update import update as study

    with _progress() as progress:
        found = study(
            _words(variants), _numbers(depths), seeds, how, what, progress=progress, width=width  # type: ignore[arg-type]
        )  # fmt: skip
    shown = [found.mean("change", "variant", "depth")]
    if len(_numbers(depths)) > 1:
        rows = tuple({"variant": name, "exponent": value} for name, value in exponents(found).items())
        shown.append(Table("Exponent of the change over depth", rows))
    _give(found, shown, csv, json)


@app.command()
def train(
    variants: VariantsOption = "post-norm,pre-norm,deepnorm,rezero",
    depths: DepthsOption = "4,12,24",
    rates: Annotated[str, typer.Option(help="Learning rates, with commas.")] = "1e-3",
    warmups: Annotated[str, typer.Option(help="Steps of warm-up, with commas.")] = "0",
    seeds: SeedsOption = 1,
    task: Annotated[str, typer.Option(help="'masked copy' or 'masked language'.")] = "masked copy",
    steps: Annotated[int, typer.Option(min=1)] = 150,
    width: WidthOption = 64,
    file: Annotated[Path | None, typer.Option(help="Finished runs; an interrupted study goes on from it.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one a core if not given.")] = None,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Who learns, by variant, depth, learning rate and warm-up."""
    from addnorm.lab import train as study

    with _progress() as progress:
        found = study.train(
            _words(variants), _numbers(depths), _decimals(rates), _numbers(warmups), seeds, task, steps,
            file=file, processes=processes, progress=progress, width=width,
        )  # fmt: skip
    _give(found, [study.finals(found).mean("loss", "variant", "depth", "rate", "warmup", "chance")], csv, json)


@app.command()
def predict(
    variants: VariantsOption = "post-norm",
    betas: Annotated[str, typer.Option(help="Spreads of the scores in units of √ln T, with commas.")] = "0.5,3",
    depth: Annotated[int, typer.Option(min=1)] = 24,
    seeds: SeedsOption = 2,
    width: WidthOption = 256,
    diagram: Annotated[
        bool, typer.Option("--diagram", help="Where a post-norm stack trains; nothing is run.")
    ] = False,
    growth: Annotated[bool, typer.Option("--growth", help="A pre-norm stream between Xiong's lines.")] = False,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Token cosine from the config alone, against a random pass."""
    from addnorm.lab import predict as study

    if growth:
        with _progress() as progress:
            found = study.growth(depth, width, seeds, progress)
        _give(found, [_side_by_side(found, ("lower", "measured", "upper"), "layer")], csv, json)
        return
    if diagram:
        found = study.diagram(depth=depth, width=width)
        _give(found, [found], csv, json)
        return
    with _progress() as progress:
        found = study.predict(_decimals(betas), _words(variants), depth, seeds, progress=progress, width=width)
    _give(found, [_side_by_side(found, ("measured", "predicted"), "variant", "beta", "layer")], csv, json)


@app.command()
def norms(
    kinds: Annotated[str, typer.Option(help="Kinds of norm, with commas.")] = "layer,rms,batch,dyt",
    depth: Annotated[int, typer.Option(min=1)] = 12,
    seeds: SeedsOption = 3,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """The same text in other company: LayerNorm against BatchNorm."""
    from addnorm.lab.norms import norms as study

    with _progress() as progress:
        found = study(_words(kinds), depth, seeds=seeds, progress=progress)
    _give(found, [found.where(layer=depth).mean("change", "norm", "company")], csv, json)


@app.command()
def position(
    variants: VariantsOption = "post-norm,pre-norm,no-residual",
    depth: Annotated[int, typer.Option(min=1)] = 12,
    seeds: SeedsOption = 3,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """How much of position and token can still be read at each depth."""
    from addnorm.lab.position import position as study

    with _progress() as progress:
        found = study(_words(variants), depth, seeds, progress=progress)
    _give(found, [found.mean("accuracy", "what", "variant", "layer")], csv, json)


@app.command()
def ablate(
    model: Annotated[str, typer.Argument(help="A folder or a name on the hub.")] = _show.DEFAULT_MODEL,
    texts: Annotated[
        Path | None, typer.Option(help="A text a line; a few sentences of its own if not given.")
    ] = None,
    kinds: Annotated[
        str, typer.Option(help="What is switched off, with commas.")
    ] = "residual,norm,attention,feedforward,block",
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Switch one part of a trained model off at a time."""
    from addnorm.lab.ablate import ablate as study
    from addnorm.model import load

    if texts is not None and not texts.is_file():
        raise AddnormError(f"no file '{texts}'; check the path")
    lines = TEXTS if texts is None else [line for line in texts.read_text("utf-8").splitlines() if line.strip()]
    with _progress() as progress:
        found = study(load(model), lines, _words(kinds), progress=progress)
    _give(found, [found], csv, json)


TEXTS = [
    "A cat sleeps on the sofa.",
    "The kitten naps on a couch.",
    "Stock markets fell sharply today.",
    "Shares dropped on Wall Street.",
    "How do I bake bread at home?",
    "A recipe for sourdough loaves.",
    "The train to Berlin leaves at noon.",
    "When is the next departure for Hamburg?",
]


# --- reading and showing ------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise AddnormError("an empty list; give names with commas between them")
    return words


def _numbers(text: str) -> list[int]:
    return _read(text, int, "whole numbers")


def _decimals(text: str) -> list[float]:
    return _read(text, float, "numbers")


def _read(text: str, kind: Callable[[str], Any], what: str) -> list[Any]:
    try:
        return [kind(word) for word in _words(text)]
    except ValueError:
        raise AddnormError(f"'{text}': expected {what} with commas between them") from None


def _one_of(name: str, value: str, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise AddnormError(f"--{name} '{value}' is unknown; choose {' or '.join(known)}")
    return value


def _side_by_side(found: "Table", columns: tuple[str, ...], *by: str) -> "Table":
    """The means of several columns in one table, without their confidence."""
    from addnorm.lab.table import Table

    means = [found.mean(column, *by).rows for column in columns]
    rows = [
        {key: row[key] for row in same for key in (*by, *columns) if key in row} for same in zip(*means, strict=True)
    ]
    return Table(found.title, tuple(rows), found.note)


@contextmanager
def _progress() -> "Iterator[Progress | None]":
    """A bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=label)


def _give(found: "Table", shown: "list[Table]", csv: Path | None, json: bool) -> None:
    """Every row as CSV or JSON; or the tables that sum them up, and what to know when reading them."""
    if csv is not None:
        if str(csv) == "-":
            print(found.to_csv(), end="")
        else:
            from addnorm.files import writing_file

            with writing_file(csv) as file:
                Path(file).write_text(found.to_csv(), encoding="utf-8")
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
