"""`addnorm info`: what block is this."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli import _show
from addnorm.config import PRESETS, BlockConfig, EncoderConfig, Learned, NormConfig, UnitConfig

if TYPE_CHECKING:
    from addnorm.model import Model

EQUATION = "x ← N_out( α·x + β·N_branch( F( N_in(x) ) ) )"
NAMES = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "batch": "BatchNorm",
    "dyt": "DyT",
    "derf": "Derf",
    "affine": "gain and shift",
}


def info(
    model: Annotated[
        str, typer.Argument(help=f"A folder, a name on the hub, or {' or '.join(PRESETS)}.")
    ] = _show.DEFAULT_MODEL,
    json: _show.JsonOption = False,
) -> None:
    """What block is this: the equation's slots, sizes, parameters by part, names of the modules."""
    if model in PRESETS:
        facts = describe(model, PRESETS[model]())
    else:
        from addnorm.model import load

        loaded = load(model)
        facts = describe(model, loaded.config) | _describe_source(loaded)
    if json:
        _show.print_json(facts)
    else:
        _print(facts)


def describe(name: str, config: EncoderConfig) -> dict[str, Any]:
    """What a config alone says, as plain data."""
    parts = config.num_params_by_part()
    units = [
        {"blocks": blocks, "unit": unit, "F": what} | _slots(slots)
        for blocks, block in _distinct(config.blocks)
        for unit, slots, what in (
            ("attention", block.attention, _attention(block)),
            ("feed-forward", block.feedforward, _feedforward(block, config.width)),
        )
    ]
    inner = parts["attention"] + parts["feedforward"]
    return {
        "model": name,
        "units": units,
        "sizes": {
            "blocks": len(config.blocks),
            "width": config.width,
            "feed-forward": sorted({block.feedforward.width for block in config.blocks}),
            "vocabulary": config.embeddings.vocabulary,
            "positions": f"{config.embeddings.positions or 'none'}, {config.embeddings.max_positions}",
            "token types": config.embeddings.types,
            "embedding norm": _norm(config.embeddings.norm),
            "final norm": _norm(config.norm),
        },
        "parameters": {"total": config.num_params(), **parts},
        "feed-forward share of the blocks": parts["feedforward"] / inner if inner else 0.0,
    }


def _describe_source(model: "Model") -> dict[str, Any]:
    from addnorm.nn.encoder import named_parts
    from addnorm.trace.sites import SITES

    assert model.origin is not None
    meanings = {site.name: site.meaning for site in SITES}
    parts = named_parts(model.encoder)
    return {
        "family": model.origin.family.name,
        "folder": str(model.origin.folder),
        "stored as": ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in model.origin.dtypes.values()})),
        "computed in": str(next(model.encoder.parameters()).dtype).removeprefix("torch."),
        "pooling": " + ".join(model.settings.modes)
        + (", normalised" if model.settings.normalize else "")
        + ("" if model.settings.stated else " (a guess: the folder does not say)"),
        "max tokens": model.max_tokens,
        "modules": [
            {
                "ours": ours,
                "theirs": theirs,
                "meaning": meanings.get(ours, meanings.get(ours.rpartition(".")[0], "")),
            }
            for ours, theirs in model.origin.family.module_names(model.origin.hf)
            if ours.replace("{i}", "0") in parts
        ],
        "carried": sorted(model.origin.carried),
    }


def _distinct(blocks: tuple[BlockConfig, ...]) -> list[tuple[str, BlockConfig]]:
    """Each different block with the numbers of the blocks that are like it."""
    numbers: dict[BlockConfig, list[int]] = {}
    for i, block in enumerate(blocks):
        numbers.setdefault(block, []).append(i)
    return [(_ranges(like), block) for block, like in numbers.items()]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _slots(unit: UnitConfig) -> dict[str, str]:
    return {
        "N_in": _norm(unit.norm_in),
        "N_branch": _norm(unit.norm_branch),
        "N_out": _norm(unit.norm_out),
        "α": _scale(unit.alpha),
        "β": _scale(unit.beta),
    }


def _norm(norm: NormConfig | None) -> str:
    return f"{NAMES[norm.kind]} (eps {norm.eps:g})" if norm else "–"


def _scale(scale: float | Learned) -> str:
    return f"learned {scale.shape}, from {scale.init:g}" if isinstance(scale, Learned) else f"{scale:g}"


def _attention(block: BlockConfig) -> str:
    return f"{block.attention.heads} heads × {block.attention.head_width}"


def _feedforward(block: BlockConfig, width: int) -> str:
    inner = block.feedforward
    gated = "gated " if inner.gated else ""
    return f"{width} → {inner.width} → {width} (×{inner.width / width:.3g}), {gated}{inner.activation}"


def _print(facts: dict[str, Any]) -> None:
    out = _show.console()
    out.print(facts["model"], style="bold", markup=False)
    for key in ("family", "folder", "stored as", "computed in", "pooling", "max tokens"):
        if key in facts:
            out.print(f"  {key:<12} {facts[key]}", markup=False)
    out.print(f"\n  {EQUATION}\n", markup=False)
    slots = ("blocks", "unit", "N_in", "N_branch", "N_out", "α", "β", "F")
    rows = [[unit[slot] for slot in slots] for unit in facts["units"]]
    out.print(_show.table("Slots of the equation", [(slot, "wrap") for slot in slots], rows), "")
    out.print(
        _show.table(
            "Sizes",
            [("", "left"), ("", "left")],
            [(key, _list(value)) for key, value in facts["sizes"].items()],
        ),
        "",
    )
    total = facts["parameters"]["total"]
    counts = [(part, f"{count:,}", f"{count / total:.1%}") for part, count in facts["parameters"].items() if count]
    out.print(_show.table("Parameters", [("part", "left"), ("number", "right"), ("share", "right")], counts))
    share = facts["feed-forward share of the blocks"]
    out.print(f"  Within the blocks the feed-forward holds {share:.1%} of the weights.\n", markup=False)
    if "modules" in facts:
        rows = [[row["ours"], row["theirs"], row["meaning"]] for row in facts["modules"]]
        out.print(
            _show.table("Modules", [("here", "left"), ("in the file", "left"), ("what it gives", "wrap")], rows),
            "",
        )
    if facts.get("carried"):
        out.print(f"  Kept for saving, not computed: {', '.join(facts['carried'])}", markup=False)


def _list(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
