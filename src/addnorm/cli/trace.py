"""`addnorm trace`: watch a sentence go through, Add & Norm by Add & Norm."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli import _show
from addnorm.cli._input import read_text
from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from addnorm.model import Model
    from addnorm.tokenizer import Tokens
    from addnorm.trace.record import Trace

DEFAULT_TEXT = "this is a test sentence"
FIRST = 3
STEPS = ("site", "what it is", "shape", "mean", "std", "‖row‖", "first values")


def trace(
    text: Annotated[str, typer.Argument(help="A sentence; - reads it from standard input.")] = DEFAULT_TEXT,
    model: _show.ModelOption = _show.DEFAULT_MODEL,
    block: Annotated[int | None, typer.Option(help="Show one block in full.")] = None,
    site: Annotated[str | None, typer.Option(help="Show only the sites that match this glob.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Add the difference to the twin in transformers.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the values as safetensors.")] = None,
    json: _show.JsonOption = False,
) -> None:
    """Watch a sentence go through the encoder: every site in forward order, and the proof."""
    text = read_text(text)

    from addnorm.model import load

    loaded = load(model)
    depth = len(loaded.config.blocks)
    if block is not None and not 0 <= block < depth:
        raise AddnormError(f"--block {block}: the model has blocks 0 to {depth - 1}")
    facts = walk(loaded, text, block, site, compare, save)
    if json:
        _show.print_json(facts)
    else:
        _print(facts)


def walk(
    model: "Model", text: str, block: int | None, site: str | None, compare: bool, save: Path | None
) -> dict[str, Any]:
    """Everything the command shows, as plain data."""
    from addnorm.trace.compare import compare as compare_twin
    from addnorm.trace.measure import measure_site, measure_unit
    from addnorm.trace.sites import select

    (tokens,) = model.as_tokens(text)  # once: a long text is remarked on once
    trace = model.trace(tokens)
    blocks = list(range(len(model.config.blocks))) if block is None else [block]
    names = [name for name in trace.sites if block is None or _belongs(name, block)]
    names = select(names, site)
    twin = {row.site: row.largest for row in compare_twin(model, tokens).differences} if compare else None
    facts: dict[str, Any] = {
        "model": model.name,
        "tokens": trace.tokens,
        "kernel": trace.kernel,
        "dtype": str(trace[trace.sites[0]].dtype).removeprefix("torch."),
        "sites": [
            measure_site(trace, name, FIRST) | ({"twin_difference": twin.get(name)} if twin is not None else {})
            for name in names
        ],
        "units": [
            measure_unit(model.encoder, trace, i, unit) for i in blocks for unit in ("attention", "feedforward")
        ],
        "rebuilt": _proof(model, trace, tokens, blocks),
    }
    if save is not None:
        trace.save(save)
        facts["saved"] = str(save)
    return facts


def _proof(model: "Model", trace: "Trace", tokens: "Tokens", blocks: list[int]) -> list[dict[str, Any]]:
    """Each block rebuilt by equations.py, against what was recorded, and again with the model in float64."""
    from addnorm.trace.rebuild import check_block

    recorded = [check_block(model.encoder, trace, i) for i in blocks]
    model.encoder.double()
    exact = model.trace(tokens)
    return [
        {
            "block": i,
            "steps": len(differences),
            "largest_difference": max(differences.values()),
            "at": max(differences, key=lambda name: differences[name]),
            "largest_difference_float64": max(check_block(model.encoder, exact, i).values()),
        }
        for i, differences in zip(blocks, recorded, strict=True)
    ]


def _belongs(name: str, block: int) -> bool:
    """Whether a site is part of the walk through one block: the embeddings before it, then its own."""
    own = name == f"blocks.{block}" or name.startswith(f"blocks.{block}.")
    return own or (name == f"blocks.{block - 1}" if block else name.startswith("embeddings"))


def _print(facts: dict[str, Any]) -> None:
    out = _show.console()
    out.print(f"{facts['model']}  ({facts['dtype']}, {facts['kernel']} attention)", style="bold", markup=False)
    out.print(f"{len(facts['tokens'])} tokens: {' '.join(facts['tokens'])}\n", markup=False)
    twin = [("twin Δ", "right")] if any("twin_difference" in row for row in facts["sites"]) else []
    kinds = ("left", "wrap", "left", "right", "right", "right", "left")
    for part, rows in groupby(facts["sites"], key=lambda row: _part(row["site"])):
        out.print(_show.table(part, [*zip(STEPS, kinds, strict=True), *twin], map(_step, rows)), "")
    if facts["units"]:
        columns = ("unit", "α‖x‖", "‖branch‖", "cosine", "norm", "mean", "variance")
        aligned = ("left", "right", "right", "right", "left", "left", "left")
        rows_ = [row for unit in facts["units"] for row in _unit(unit)]
        out.print(_show.table("Add & Norm", list(zip(columns, aligned, strict=True)), rows_), "")
    if "saved" in facts:
        out.print(f"Values written to {facts['saved']}\n", markup=False)
    out.print("Rebuilt by equations.py from the weights and the block's input, against the model:", markup=False)
    for row in facts["rebuilt"]:
        out.print(
            f"  block {row['block']}: {row['steps']} steps, largest difference {row['largest_difference']:.1e} "
            f"in {facts['dtype']} (at {row['at'].partition('.')[2].partition('.')[2]}), "
            f"{row['largest_difference_float64']:.1e} in float64",
            markup=False,
        )


def _part(site: str) -> str:
    """The heading a site stands under."""
    names = site.split(".")
    return names[0] if names[0] != "blocks" else ".".join(names[:2]) if len(names) == 2 else ".".join(names[:3])


def _step(row: dict[str, Any]) -> list[str]:
    name = row["site"].removeprefix(_part(row["site"]) + ".")
    cells = [
        name,
        row["meaning"],
        _shape(row["shape"]),
        *map(_show.number, (row["mean"], row["std"], row["norm"])),
    ]
    cells.append(" ".join(f"{value:7.4f}" for value in row["first"]))
    if "twin_difference" in row:
        cells.append(_difference(row["twin_difference"]))
    return cells


def _difference(value: float | None) -> str:
    return "–" if value is None else f"{value:.0e}" if value else "0"


def _shape(shape: list[int]) -> str:
    return "×".join(map(str, shape))


def _unit(unit: dict[str, Any]) -> Iterable[list[str]]:
    """A row for each norm of the unit; the first also says what was added."""
    added = [unit["unit"], *map(_show.number, (unit["alpha_x"], unit["branch"], unit["cosine"]))]
    effects = [
        [norm["norm"], *(" → ".join(map(_show.number, norm[key])) for key in ("mean", "variance"))]
        for norm in unit["norms"]
    ] or [["–", "", ""]]
    yield added + effects[0]
    for effect in effects[1:]:
        yield [""] * len(added) + effect
