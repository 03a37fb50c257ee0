"""`addnorm bench`: how fast encoding is here, beside other systems and the machine's ceiling."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli import _lab, _show
from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from addnorm.bench.plan import Plan

Names = Annotated[
    str, typer.Option(help="With commas: mixed, short, long, single, or single 8 …; none with --scaling.")
]


def bench(
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    workloads: Names = "mixed,short,long,single",
    systems: Annotated[
        str, typer.Option(help="Beginnings of names with commas, or none: ours and transformers' sdpa always run.")
    ] = "all",
    precisions: Annotated[str, typer.Option(help="With commas, of float32, bfloat16, int8, auto.")] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Each system runs so many times, in turn.")] = 3,
    texts: Annotated[
        int | None, typer.Option(min=1, help="In each workload; else as many as make a few seconds.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of each system; else as many as there are cores.")
    ] = None,
    scaling: Annotated[str, typer.Option(help="Numbers of texts with commas: time a text and memory, once.")] = "",
    json: Annotated[Path | None, typer.Option(help="A file for all that was measured.")] = None,
    html: Annotated[Path | None, typer.Option(help="A file for a page with tables and picture.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="A file for the tables as Markdown, a picture beside it.")
    ] = None,
) -> None:
    """Encode the same texts with each system that is installed, in turn, and compare."""
    from addnorm.bench import report, results
    from addnorm.bench.picture import picture
    from addnorm.bench.run import run

    for file in (json, html, markdown):
        if file is not None and file.is_dir():
            raise AddnormError(f"'{file}' is a folder; give a file name to write to")
    chosen = plan(workloads, systems, precisions, rounds, texts, threads, scaling)
    with _lab.progress() as progress:
        found = run(model, chosen, (lambda text: progress(0, 0, text)) if progress else lambda text: None)
    out = _show.console()
    for table in report.tables(found):
        shown = [column for column in table.columns if column != "way"]
        kinds = ["wrap" if column in ("why", "system", "fastest other") else "right" for column in shown]
        rows = [[str(row.get(column, "–")) for column in shown] for row in table.rows]
        out.print(_show.table(table.title, list(zip(shown, kinds, strict=True)), rows), "")
    out.print(report.description(found), markup=False)
    out.print(report.NOTE, markup=False)
    if json is not None:
        _lab.write(json, results.to_json([found]))
    if html is not None:
        _lab.write(html, report.html([found], _lab.command()))
    if markdown is not None:
        image = markdown.with_suffix(".svg")
        _lab.write(image, picture([found]))
        _lab.write(markdown, report.markdown([found], image.name, _lab.command()))


def plan(
    workloads: str, systems: str, precisions: str, rounds: int, texts: int | None, threads: int | None, scaling: str
) -> "Plan":
    """What the options ask for. Errors: a name that is unknown, no number."""
    from addnorm.bench.machine import cores
    from addnorm.bench.plan import Plan

    return Plan(
        workloads=() if workloads == "none" else _workloads(workloads),
        systems=_systems(systems),
        precisions=_precisions(precisions),
        rounds=rounds,
        texts=texts,
        threads=threads or cores(),
        scaling=_lab.numbers(scaling) if scaling else (),
    )


def _workloads(text: str) -> list[str]:
    from addnorm.bench.texts import KINDS

    found: dict[str, None] = {}
    for word in _lab.words(text):
        names = [name for name in KINDS if name == word or name.startswith(f"{word} ")]
        if not names:
            raise AddnormError(f"workload '{word}' is unknown; choose {', '.join(KINDS)} or single")
        found |= dict.fromkeys(names)
    return list(found)


def _systems(text: str) -> list[str]:
    from addnorm.bench.systems import SYSTEMS

    if text in ("all", "none"):
        return [""] if text == "all" else []
    names = list(dict.fromkeys(system.name for system in SYSTEMS))
    words = [word.lower() for word in _lab.words(text)]
    for word in words:
        if not any(name.lower().startswith(word) for name in names):
            raise AddnormError(f"no system begins with '{word}'; there are {'; '.join(names)}")
    return words


def _precisions(text: str) -> list[str]:
    from addnorm.bench.systems import PRECISIONS

    return list(PRECISIONS) if text == "all" else [_lab.one_of("precisions", w, PRECISIONS) for w in _lab.words(text)]
