"""A run as tables: on a terminal, in Markdown, on a page."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from addnorm.bench.machine import without_places
from addnorm.bench.picture import picture
from addnorm.bench.results import Measured, Ratio, Result, ratio
from addnorm.bench.systems import OURS, YARDSTICK
from addnorm.lab.table import Row, Table

NOTE = (
    "`ours ×`: how many times as long as ours at the same precision a system takes; `base ×`: how many times as long "
    f"as a system the base takes, {YARDSTICK} in float32, sorted by length; each the median over the rounds of "
    "the two times' ratio in a round, in brackets the least and the most. `ceiling`: operations a second that the "
    "real tokens need, of the largest rate of matrix products found at that precision in the same run. `differs`: "
    "the largest difference of any number from the base's vectors, `cosine`: the least to them; `agreement`: the one "
    "in float32, the other elsewhere. Every system starts from text, with the same tokenizer, cut and threads, and "
    "the fastest of its ways and batch sizes; `streams`: as many batches at a time as threads."
)


def summary(result: Result) -> Table:
    """For each workload and precision: ours beside the fastest of the others."""
    rows = [
        _ours(result, found) for found in result.measured if found.system == OURS and found.precision == found.heat
    ]
    return Table(f"{result.model['name']}: ours and the fastest of the others", tuple(rows), NOTE)


def details(result: Result, workload: str) -> Table:
    """All systems on a workload, by precision, fastest first."""
    texts = result.texts(workload)
    found = [m for m in result.measured if m.workload == workload and m.precision == m.heat]
    heats = list(dict.fromkeys(m.heat for m in result.measured))
    found.sort(key=lambda m: (heats.index(m.heat), median(m.seconds)))
    how = "one at a time" if texts.single else f"of {texts.shortest} to {texts.longest} tokens"
    title = f"{workload}: {texts.texts} texts {how}, {texts.tokens} tokens, {texts.flops / 1e9:.0f} GFLOP"
    return Table(title, tuple(_row(result, m) for m in found))


def scaling(result: Result) -> Table:
    """Time a text and memory over the number of texts."""
    rows = tuple(
        {
            "system": one.system,
            "precision": one.precision,
            "texts": str(one.texts),
            "ms a text": f"{one.seconds / one.texts * 1e3:.2f}",
            "MB before": f"{one.before / 1e6:.0f}",
            "MB more, at most": f"{(one.peak - one.before) / 1e6:.0f}",
            "MB in all": f"{one.peak / 1e6:.0f}",
        }
        for one in result.scaled
    )
    weights = result.model["weights_mb"]
    return Table(f"More and more texts; the weights are {weights:.0f} MB in float32", rows)


def left_out(result: Result) -> Table:
    """What was left out, and why."""
    return Table(
        "Left out",
        tuple(
            {
                "system": left.system or "all",
                "precision": left.precision,
                "workload": left.workload,
                "why": left.reason,
            }
            for left in result.left
        ),
    )


def limits(result: Result) -> Table:
    """The machine's ceiling."""
    rows = [
        {"": precision, "rate": f"{rate / 1e9:.0f} GFLOP/s", "found with": result.ceiling.how[precision]}
        for precision, rate in result.ceiling.flops.items()
    ]
    rows.append({"": "memory", "rate": f"{result.ceiling.bytes / 1e9:.0f} GB/s", "found with": "a copy of 256 MB"})
    return Table("The machine's ceiling, found in this run", tuple(rows))


def tables(result: Result, whole: bool = True) -> list[Table]:
    """The tables that have rows; `whole`: those of every system too."""
    each = [details(result, texts.name) for texts in result.workloads] if whole else []
    found = [summary(result), *each, scaling(result), limits(result), left_out(result)]
    return [table for table in found if table.rows]


def description(result: Result) -> str:
    """The machine, the model and the settings in a few sentences."""
    machine, model, settings = result.machine, result.model, result.settings
    memory = f", {machine['memory_gb']} GB" if machine["memory_gb"] else ""
    return (
        f"{model['name']}: {model['blocks']} blocks, {model['width']} features, {model['parameters'] / 1e6:.1f} M "
        f"parameters. {settings['rounds']} rounds, {settings['threads']} threads, on {machine['processor']}, "
        f"{machine['cores']} cores ({', '.join(machine['instructions'])}){memory}, {machine['system']}, Python "
        f"{machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        + "."
    )


def markdown(results: Sequence[Result], image: str = "", command: str = "addnorm bench") -> str:
    """The whole report as Markdown. `image`: the picture's file beside it."""
    parts = ["# The benchmark", f"Made by `{without_places(command)}`.", NOTE]
    parts += [f"![Ours and the fastest of the others]({image})"] if image else []
    for result in results:
        parts += [f"## {result.model['name']}", description(result)]
        parts += [f"**{table.title}**\n\n{_grid(table)}" for table in tables(result)]
    return "\n\n".join(parts) + "\n"


def html(results: Sequence[Result], command: str) -> str:
    """The whole report as one page."""
    from html import escape

    from addnorm.lab.page import document, note, tabulate

    parts = ["<h1>The benchmark</h1>", note(NOTE), f'<div class="wide">{picture(results)}</div>']
    for result in results:
        parts += [f"<h2>{escape(str(result.model['name']))}</h2>", note(description(result))]
        for table in tables(result):
            parts += [f"<h3>{escape(table.title)}</h3>", tabulate(table)]
    parts.append(f"<footer><p>Made by <code>{escape(without_places(command))}</code>.</p></footer>")
    return document("The benchmark", parts, pictures=False)


def _ours(result: Result, found: Measured) -> Row:
    peer = next(iter(result.peers(found.workload, found.precision)), None)
    row = _row(result, found)
    return {
        "workload": found.workload,
        "precision": found.precision,
        "ours": row["speed"],
        "fastest other": "–" if peer is None else peer.system,
        "its": "–" if peer is None else _speed(result, peer),
        "ours ×": _times(ratio(peer, found)),
        "base ×": row["base ×"],
        "ceiling": row["ceiling"],
        "agreement": row["differs"] if found.precision == "float32" else row["cosine"],
    }


def _row(result: Result, found: Measured) -> Row:
    share = result.of_ceiling(found)
    return {
        "system": found.system,
        "precision": found.precision,
        "speed": _speed(result, found),
        "ours ×": _times(ratio(found, result.ours(found))),
        "base ×": _times(ratio(result.yardstick(found), found), short=True),
        "ceiling": "–" if share is None else f"{share:.0%}",
        "differs": "–" if found.difference is None else f"{found.difference:.0e}",
        "cosine": "–" if found.worst is None else f"{found.worst:.5f}",
        "way": found.choice,
    }


def _speed(result: Result, found: Measured) -> str:
    texts, seconds = result.texts(found.workload), median(found.seconds)
    return f"{seconds / texts.texts * 1e3:.2f} ms" if texts.single else f"{texts.texts / seconds:.0f} /s"


def _times(found: Ratio | None, short: bool = False) -> str:
    if found is None:
        return "–"
    spread = "" if short else f" ({found.least:.2f}–{found.most:.2f})"
    return f"{found.median:.2f}{spread}"


def _grid(table: Table) -> str:
    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    columns = table.columns
    rows = [line([row.get(column, "–") for column in columns]) for row in table.rows]
    return "\n".join([line(columns), "|" + "---|" * len(columns), *rows])
