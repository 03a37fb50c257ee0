"""What the sentence-transformers files of a folder say about turning a text into one vector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from addnorm.config import Activation
from addnorm.errors import AddnormError
from addnorm.files import expect, read_json, read_object
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
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
DIMENSIONS = {"word_embedding_dimension", "embedding_dimension"}


ACTIVATIONS: dict[str, Activation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}


@dataclass(frozen=True)
class Dense:
    """A map after the pooling: its folder, its activation."""

    folder: str
    activation: Activation | None


@dataclass(frozen=True)
class Sentence:
    """How texts become vectors.

    `dense`: maps after the pooling; `normalize`: to length 1 at the end;
    `stated`: whether the folder says so (mean pooling is the guess where it does not);
    `transformer`: the sub-folder of the encoder, `folders`: of all modules;
    `max_tokens`, `lowercase`, `prompt`: what happens to texts first.
    """

    modes: tuple[str, ...] = ("mean",)
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    stated: bool = False
    transformer: str = ""
    folders: tuple[str, ...] = ("",)
    max_tokens: int | None = None
    lowercase: bool = False
    prompt: str = ""


def read(folder: Path, task: str | None = None) -> Sentence:
    """Read modules.json and what it names; a prompt called as the task is takes the place of the default one.

    Errors: a module or a setting that is not understood.
    """
    if not (folder / "modules.json").is_file():
        return Sentence()
    paths: dict[str, str] = {}
    dense: list[Dense] = []
    for module in expect(read_json(folder / "modules.json"), list, "modules.json"):
        entry = expect(module, dict, "modules.json: a module")
        kind = expect(entry.get("type"), str, "modules.json: 'type'").rpartition(".")[2]
        if kind not in KINDS:
            raise AddnormError(f"modules.json: module '{kind}' is not supported; known: {', '.join(KINDS)}")
        if (paths and kind == "Transformer") or (kind == "Dense" and "Normalize" in paths):
            raise AddnormError(f"modules.json: '{kind}' after {', '.join(paths)} is not supported")
        path = expect(entry.get("path"), str, "modules.json: 'path'")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise AddnormError(f"modules.json: path '{path}' leaves the folder; expected a sub-folder")
        paths[kind] = path
        if kind == "Dense":
            dense.append(_dense(path, read_object(folder / path / "config.json")))
    if "Transformer" not in paths or ("Pooling" not in paths and len(paths) > 1):
        raise AddnormError("modules.json: expected a Transformer and a Pooling module, or a Transformer alone")
    pooled = "Pooling" in paths  # not so in a cross-encoder
    modes, include_prompt = (
        _pooling(read_object(folder / paths["Pooling"] / "config.json")) if pooled else (Sentence().modes, True)
    )
    settings = _optional(folder / paths["Transformer"] / "sentence_bert_config.json")
    prompts = _optional(folder / "config_sentence_transformers.json")
    name = task if task in prompts.get("prompts", {}) else prompts.get("default_prompt_name")
    prompt = prompts.get("prompts", {}).get(name, "") if name else ""
    if prompt and not include_prompt:
        raise AddnormError(
            "1_Pooling/config.json: 'include_prompt' false together with a default prompt is not supported"
        )
    return Sentence(
        modes=modes,
        dense=tuple(dense),
        normalize="Normalize" in paths,
        stated=pooled,
        transformer=paths["Transformer"],
        folders=("", *paths.values(), *(own.folder for own in dense)),
        max_tokens=settings.get("max_seq_length"),
        lowercase=settings.get("do_lower_case", False),
        prompt=prompt,
    )


def _dense(folder: str, config: dict[str, Any]) -> Dense:
    vector = "sentence_embedding"
    plain = {"use_residual": False, "module_input_name": vector, "module_output_name": vector}
    known = {"in_features", "out_features", "bias", "activation_function", *plain}
    for name, value in config.items():
        if name not in known or (name in plain and value not in (plain[name], None)):
            raise AddnormError(f"{folder}/config.json: '{name}' {value!r} is not supported")
    activation = str(config.get("activation_function") or "Identity").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        known_activations = ", ".join(ACTIVATIONS)
        raise AddnormError(f"{folder}/config.json: activation '{activation}' is unknown; known: {known_activations}")
    return Dense(folder, ACTIVATIONS[activation])


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
