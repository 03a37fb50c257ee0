"""What the sentence-transformers files of a folder say about turning a text into one vector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from addnorm.errors import AddnormError
from addnorm.files import read_json, read_object
from addnorm.nn.heads import POOLINGS

# The older spelling of a pooling config: one switch a mode, in the order in which the vectors are joined.
SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
DIMENSIONS = {"word_embedding_dimension", "embedding_dimension"}


@dataclass(frozen=True)
class Sentence:
    """How texts become vectors.

    `stated`: whether the folder says so (mean pooling is the guess where it does not);
    `transformer`: the sub-folder of the encoder, `folders`: of all modules;
    `max_tokens`, `lowercase`, `prompt`: what happens to texts first.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    stated: bool = False
    transformer: str = ""
    folders: tuple[str, ...] = ("",)
    max_tokens: int | None = None
    lowercase: bool = False
    prompt: str = ""


def read(folder: Path) -> Sentence:
    """Read modules.json and what it names. Errors: a module or a setting that is not understood."""
    if not (folder / "modules.json").is_file():
        return Sentence()
    paths: dict[str, str] = {}
    for module in read_json(folder / "modules.json"):
        kind = str(module["type"]).rpartition(".")[2]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise AddnormError(
                f"modules.json: module '{kind}' is not supported; known: Transformer, Pooling, Normalize"
            )
        paths[kind] = str(module["path"])
        if Path(paths[kind]).is_absolute() or ".." in Path(paths[kind]).parts:
            raise AddnormError(f"modules.json: path '{paths[kind]}' leaves the folder; expected a sub-folder")
    if "Transformer" not in paths or "Pooling" not in paths:
        raise AddnormError("modules.json: expected a Transformer and a Pooling module")
    modes, include_prompt = _pooling(read_object(folder / paths["Pooling"] / "config.json"))
    settings = _optional(folder / paths["Transformer"] / "sentence_bert_config.json")
    prompts = _optional(folder / "config_sentence_transformers.json")
    name = prompts.get("default_prompt_name")
    prompt = prompts.get("prompts", {}).get(name, "") if name else ""
    if prompt and not include_prompt:
        raise AddnormError(
            "1_Pooling/config.json: 'include_prompt' false together with a default prompt is not supported"
        )
    return Sentence(
        modes=modes,
        normalize="Normalize" in paths,
        stated=True,
        transformer=paths["Transformer"],
        folders=("", *paths.values()),
        max_tokens=settings.get("max_seq_length"),
        lowercase=settings.get("do_lower_case", False),
        prompt=prompt,
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _pooling(config: dict[str, Any]) -> tuple[tuple[str, ...], bool]:
    known = SWITCHES.keys() | DIMENSIONS | {"pooling_mode", "include_prompt"}
    if unknown := sorted(config.keys() - known):
        raise AddnormError(f"pooling config: unknown key '{unknown[0]}'; known: {', '.join(sorted(known))}")
    mode = config.get("pooling_mode") or [mode for switch, mode in SWITCHES.items() if config.get(switch)] or "mean"
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    if strange := [mode for mode in modes if mode not in POOLINGS]:
        raise AddnormError(f"pooling config: unknown mode '{strange[0]}'; known: {', '.join(POOLINGS)}")
    return modes, config.get("include_prompt", True)
