"""`addnorm lab NAME`: studies of the block."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm import plots
from addnorm.cli import _lab, _show
from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from addnorm.lab.report import Part
    from addnorm.lab.table import Progress, Table

app = typer.Typer(
    name="lab",
    help="Studies of the block: vary the equation and measure what Add & Norm is for.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write every row as CSV; - for standard output.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page with picture and summary.", callback=_lab.page),
]
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
    _lab.give(table, [table], csv, json)


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
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Gradient norms by layer and depth, fresh weights."""
    from addnorm.lab.gradients import gradients as study
    from addnorm.lab.table import Table

    chosen = _lab.one_of("loss", loss, ("tokens", "first"))
    with _lab.progress() as progress:
        found = study(
            _lab.words(variants),
            _lab.numbers(depths),
            seeds,
            chosen,
            progress=progress,
            width=width,
            norm=norm,
            init=init,
        )
    last = tuple(row for row in found.rows if row["where"] == "down" and row["layer"] == row["depth"])
    ends = tuple(row for row in found.rows if row["where"] == "stream" and row["layer"] in (0, row["depth"]))
    shown = [
        Table("‖∂L/∂W₂‖ of the last block", last, "").mean("gradient", "variant", "depth"),
        Table("‖∂L/∂x‖ before the first block and after the last", ends).mean(
            "gradient", "variant", "depth", "layer"
        ),
    ]
    _lab.give(found, shown, csv, json, html, plots.gradients)


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
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """The stream by depth: norm, token cosine, rank, attention entropy."""
    from addnorm.lab import signal as study

    if model is not None and not parts:
        raise AddnormError("--model goes with --parts")
    with _lab.progress() as progress:
        if closed_form:
            found, figure = study.closed_form(seeds=seeds, progress=progress), plots.closed_form
            shown = [_lab.side_by_side(found, ("measured", "predicted"), "scale", "layer")]
        elif parts:
            found = _trained_parts(model) if model is not None else study.fresh_parts(seeds=seeds, progress=progress)
            figure = plots.parts
            shown = [found.mean("residue", "parts", "layer")]
        else:
            found = study.signal(
                _lab.words(variants),
                _lab.numbers(depths),
                seeds,
                progress=progress,
                width=width,
                norm=norm,
                init=init,
            )
            figure = plots.signal
            shown = [_lab.side_by_side(found, ("norm", "cosine", "rank"), "variant", "depth", "layer")]
    _lab.give(found, shown, csv, json, html, figure)


def _trained_parts(name: str) -> "Table":
    from addnorm.lab.report import TEXTS
    from addnorm.lab.signal import parts
    from addnorm.model import load

    loaded = load(name)
    return parts(loaded.encoder, loaded.batch(loaded.as_tokens(list(TEXTS))))


@app.command()
def update(
    variants: VariantsOption = "post-norm,pre-norm,admin,deepnorm",
    depths: DepthsOption = "6,12,24,48",
    seeds: SeedsOption = 3,
    width: WidthOption = 64,
    how: Annotated[str, typer.Option(help="noise, sgd or adam.")] = "noise",
    what: Annotated[str, typer.Option(help="matrices, or all (biases and norms too).")] = "matrices",
    csv: CsvOption = None,
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Change of the output after a small change of the weights, by depth."""
    from addnorm.lab.table import Table
    from addnorm.lab.update import exponents
    from addnorm.lab.update import update as study

    with _lab.progress() as progress:
        found = study(
            _lab.words(variants), _lab.numbers(depths), seeds, how, what, progress=progress, width=width  # type: ignore[arg-type]
        )  # fmt: skip
    shown = [found.mean("change", "variant", "depth")]
    if len(_lab.numbers(depths)) > 1:
        rows = tuple({"variant": name, "exponent": value} for name, value in exponents(found).items())
        shown.append(Table("Exponent of the change over depth", rows))
    _lab.give(found, shown, csv, json, html, plots.update)


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
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Who learns, by variant, depth, learning rate and warm-up."""
    from addnorm.lab import train as study

    with _lab.progress() as progress:
        found = study.train(
            _lab.words(variants), _lab.numbers(depths), _lab.decimals(rates), _lab.numbers(warmups), seeds, task,
            steps, file=file, processes=processes, progress=progress, width=width,
        )  # fmt: skip
    _lab.give(
        found,
        [study.finals(found).mean("loss", "variant", "depth", "rate", "warmup", "chance")],
        csv,
        json,
        html,
        plots.train,
    )


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
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Token cosine from the config alone, against a random pass."""
    from addnorm.lab import predict as study

    if growth:
        with _lab.progress() as progress:
            found = study.growth(depth, width, seeds, progress)
        shown = _lab.side_by_side(found, ("lower", "measured", "upper"), "layer")
        _lab.give(found, [shown], csv, json, html, plots.growth)
        return
    if diagram:
        found = study.diagram(depth=depth, width=width)
        _lab.give(found, [found], csv, json, html, plots.diagram)
        return
    with _lab.progress() as progress:
        found = study.predict(
            _lab.decimals(betas), _lab.words(variants), depth, seeds, progress=progress, width=width
        )
    shown = _lab.side_by_side(found, ("measured", "predicted"), "variant", "beta", "layer")
    _lab.give(found, [shown], csv, json, html, plots.predict)


@app.command()
def norms(
    kinds: Annotated[str, typer.Option(help="Kinds of norm, with commas.")] = "layer,rms,batch,dyt",
    depth: Annotated[int, typer.Option(min=1)] = 12,
    seeds: SeedsOption = 3,
    csv: CsvOption = None,
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """The same text in other company: LayerNorm against BatchNorm."""
    from addnorm.lab.norms import norms as study

    with _lab.progress() as progress:
        found = study(_lab.words(kinds), depth, seeds=seeds, progress=progress)
    _lab.give(found, [found.where(layer=depth).mean("change", "norm", "company")], csv, json, html, plots.norms)


@app.command()
def position(
    variants: VariantsOption = "post-norm,pre-norm,no-residual",
    depth: Annotated[int, typer.Option(min=1)] = 12,
    seeds: SeedsOption = 3,
    csv: CsvOption = None,
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """How much of position and token can still be read at each depth."""
    from addnorm.lab.position import position as study

    with _lab.progress() as progress:
        found = study(_lab.words(variants), depth, seeds, progress=progress)
    _lab.give(found, [found.mean("accuracy", "what", "variant", "layer")], csv, json, html, plots.position)


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
    html: HtmlOption = None,
    json: _show.JsonOption = False,
) -> None:
    """Switch one part of a trained model off at a time."""
    from addnorm.lab.ablate import ablate as study
    from addnorm.lab.report import TEXTS
    from addnorm.model import load

    if texts is not None and not texts.is_file():
        raise AddnormError(f"no file '{texts}'; check the path")
    lines = list(TEXTS) if texts is None else [line for line in texts.read_text("utf-8").splitlines() if line.strip()]
    with _lab.progress() as progress:
        found = study(load(model), lines, _lab.words(kinds), progress=progress)
    _lab.give(found, [found], csv, json, html, plots.ablate)


@app.command()
def mixing(
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    texts: Annotated[
        Path | None, typer.Option(help="A text a line; the standard library's docstrings if not given.")
    ] = None,
    csv: CsvOption = None,
    json: _show.JsonOption = False,
) -> None:
    """How much of a token comes from the others, and how much it keeps."""
    from addnorm.lab.mixing import mixing as study
    from addnorm.lab.mixing import summary
    from addnorm.model import load

    if texts is not None and not texts.is_file():
        raise AddnormError(f"no file '{texts}'; check the path")
    lines = None if texts is None else [line for line in texts.read_text("utf-8").splitlines() if line.strip()]
    with _lab.progress() as progress:
        found = study(load(model), lines, progress=progress)
    _lab.give(found, summary(found), csv, json)


@app.command()
def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", callback=_lab.page)],
    only: Annotated[str | None, typer.Option(help="Parts of the report, with commas; all if not given.")] = None,
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    json: _show.JsonOption = False,
) -> None:
    """All studies at small size, and what they say about what is said: a page of a few minutes."""
    from addnorm.lab import report as study

    parts = {part.name: part for part in study.PARTS}
    chosen = list(parts) if only is None else [_lab.one_of("only", name, list(parts)) for name in _lab.words(only)]
    with _lab.progress() as bar:
        begin = _announced([parts[name] for name in chosen], bar)
        outcomes = study.report([parts[name] for name in chosen], model, begin)
    _lab.write(output, study.html(outcomes, _lab.command()))
    found = study.verdicts(outcomes)
    if json:
        print(found.to_json())
        return
    rows = [[str(row["claim"]), str(row["verdict"])] for row in found.rows]
    _show.console().print(_show.table(found.title, [("claim", "wrap"), ("verdict", "wrap")], rows))


def _announced(parts: "list[Part]", bar: "Progress | None") -> "Callable[[Part], Progress]":
    """Progress of each part on standard error: a bar's label, or a line when it begins."""

    def begin(part: "Part") -> "Progress":
        at = f"{parts.index(part) + 1}/{len(parts)} {part.title}"
        if bar is None:
            print(at, file=sys.stderr, flush=True)
            return lambda done, total, label: None
        return lambda done, total, label: bar(done, total, f"{at}: {label}")

    return begin
