"""The conversion engine: rows of data that read a checkpoint strictly and write it back.

A family holds two tables. Config rows (`Field`) map fields of a Hugging Face config.json to paths of ours;
`block.` in a path stands for every block. Module rows map module names of the file to ours; placeholders
are named ({i} block) and siblings are separated by `|`. Rows are expanded into the names that must be
there and looked up, so a name is explained exactly once or not at all.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError

# Fields every Hugging Face config may carry that do not change what an encoder computes.
COMMON = frozenset(
    "_name_or_path _commit_hash _attn_implementation_autoset architectures transformers_version model_type dtype "
    "torch_dtype return_dict output_hidden_states output_attentions use_cache torchscript gradient_checkpointing "
    "chunk_size_feed_forward tokenizer_class prefix finetuning_task task_specific_params problem_type id2label "
    "label2id num_labels bos_token_id eos_token_id sep_token_id pad_token_id decoder_start_token_id "
    "tie_word_embeddings classifier_dropout model_max_length sentence_transformers output_past use_bfloat16".split()
)
# Fields whose every other value changes what is computed.
ENCODER_ONLY: Mapping[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
}


@dataclass(frozen=True)
class Field:
    """A config row: an HF field, our path or paths (separated by spaces), HF's default, HF's values → ours."""

    name: str
    paths: str
    default: Any
    values: Mapping[Any, Any] | None = None


@dataclass(frozen=True)
class At:
    """Where the twin shows a site's value: a module's output (or one item of it), or its input."""

    module: str
    item: int = 0
    input: bool = False


@dataclass(frozen=True)
class Entry:
    """One row applied: tensors of the file ↔ parameters of ours; the two functions undo each other.

    `carried`: kept for saving, not computed.
    """

    files: tuple[str, ...]
    ours: tuple[str, ...]
    carried: bool = False
    load: Callable[[list[Tensor]], list[Tensor]] = list
    save: Callable[[list[Tensor]], list[Tensor]] = list


@dataclass(frozen=True, kw_only=True)
class Family:
    """One dialect of checkpoint, as data.

    `fixed`: what the family always is, by our path; `derived`: our path from the whole HF config;
    `only`: HF fields with the one value understood; `ignored`: HF fields without effect;
    `present`: our boolean paths that are true when a tensor of the file is there;
    `buffers`: tensors of the file that a formula gives; `carried`: module names that are kept for saving
    and not computed; `sites`: where the twin shows what module rows do not.
    """

    name: str
    architecture: str
    prefix: str
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any]
    derived: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    only: Mapping[str, Any]
    ignored: frozenset[str]
    present: Mapping[str, str]
    modules: Mapping[str, str]
    buffers: Mapping[str, Callable[[EncoderConfig], Tensor]] = field(default_factory=dict)
    carried: tuple[str, ...] = ()
    sites: Mapping[str, At] = field(default_factory=dict)

    # --- config ---------------------------------------------------------------------------------------

    def from_hf(self, hf: Mapping[str, Any], present: Iterable[str] = ()) -> EncoderConfig:
        """The config of a Hugging Face config; `present`: the tensors of the file.

        Errors: a field unknown to the family, or one whose value it does not understand.
        """
        for name, value in hf.items():
            if name in self.only and value != self.only[name] and value is not None:
                raise AddnormError(
                    f"config.json: '{name}' is {value!r}; family {self.name} computes only {self.only[name]!r}"
                )
        known = self.ignored | self.only.keys() | {row.name for row in self.fields}
        if unknown := sorted(name for name in hf if name not in known):
            raise AddnormError(
                f"config.json: field '{unknown[0]}' ({hf[unknown[0]]!r}) is unknown to family {self.name}, and it "
                "may change what the model computes; remove it if it does not"
            )
        full = {row.name: hf.get(row.name, row.default) for row in self.fields}
        tree: dict[str, Any] = {}
        for path, value in self.fixed.items():
            _put(tree, path, copy.deepcopy(value))
        for row in self.fields:
            for path in row.paths.split():
                _put(tree, path, _translate(row, full[row.name]))
        names = set(present)
        for path, function in self.derived.items():
            _put(tree, path, function(full))
        for path, tensor in self.present.items():
            _put(tree, path, tensor in names)
        depth, block = tree.pop("depth"), tree.pop("block")
        if type(depth) is not int or depth < 0:
            raise AddnormError(f"config.json: the number of blocks is {depth!r}; expected a whole number")
        return EncoderConfig.from_dict(tree | {"blocks": [block] * depth})

    def to_hf(self, config: EncoderConfig) -> dict[str, Any]:
        """The Hugging Face config of ours. Errors: the family cannot express it."""
        tree = config.to_dict()
        tree |= {"depth": len(config.blocks), "block": tree["blocks"][0] if config.blocks else {}}
        hf: dict[str, Any] = {"model_type": self.name, "architectures": [self.architecture]}
        for row in self.fields:
            value = _get(tree, row.paths.split()[0])
            back = {ours: theirs for theirs, ours in (row.values or {}).items()}
            hf[row.name] = back.get(value, value) if row.values else value
        present = [tensor for path, tensor in self.present.items() if _get(tree, path)]
        for path, ours, theirs in _differences(config.to_dict(), self._reread(hf, present)):
            raise AddnormError(f"family {self.name} has {path} {theirs!r}, this config {ours!r}")
        return hf

    def _reread(self, hf: Mapping[str, Any], present: Iterable[str]) -> dict[str, Any]:
        return self.from_hf(hf, present).to_dict()

    # --- tensors --------------------------------------------------------------------------------------

    def plan(self, config: EncoderConfig, ours: Iterable[str], files: Iterable[str]) -> list[Entry]:
        """Explain every tensor of `files` and fill every parameter of `ours`, each exactly once.

        Errors: a tensor that is not explained, a parameter that is not filled.
        """
        ours, spelled = set(ours), self.spellings(files)
        entries = []
        for theirs, mine in self._expanded(config):
            for name in sorted(name for name in ours if name.rpartition(".")[0] == mine):
                if (file := spelled.pop(theirs + name.removeprefix(mine), None)) is not None:
                    entries.append(Entry((file,), (name,)))
        for name, formula in self.buffers.items():
            if (file := spelled.pop(name, None)) is not None:
                entries.append(_buffer(file, formula(config)))
        for name in [name for name in spelled if name.startswith(self.carried)] if self.carried else []:
            entries.append(Entry((spelled.pop(name),), (), carried=True, load=lambda _: []))
        if spelled:
            raise AddnormError(
                f"weights: tensor '{next(iter(spelled.values()))}' is not part of a {self.name} encoder "
                f"({_count(spelled, 'tensor')} unexplained); the config may not belong to these weights"
            )
        filled = {name for entry in entries for name in entry.ours}
        if missing := sorted(ours - filled):
            wanted = {ours: theirs for theirs, ours in self._expanded(config)}
            module, _, leaf = missing[0].rpartition(".")
            theirs = f"'{wanted[module]}.{leaf}'" if module in wanted else "a tensor"
            raise AddnormError(
                f"weights: {theirs} for {missing[0]} is missing ({_count(missing, 'parameter')} not filled); "
                "the file is incomplete or the config does not belong to it"
            )
        return entries

    def fresh_plan(self, config: EncoderConfig, ours: Iterable[str]) -> list[Entry]:
        """The plan for parameters that no file has held yet."""
        wanted = {mine: theirs for theirs, mine in self._expanded(config)}
        split = [(name, *name.rpartition(".")) for name in ours]
        return [Entry((f"{wanted[module]}.{leaf}",), (name,)) for name, module, _, leaf in split]

    def spellings(self, files: Iterable[str]) -> dict[str, str]:
        """The standard spelling of each tensor name of a file: no task prefix, no legacy gamma and beta."""
        legacy = {"gamma": "weight", "beta": "bias"}
        spelled: dict[str, str] = {}
        for file in files:
            stem, _, leaf = file.removeprefix(self.prefix + ".").rpartition(".")
            name = f"{stem}.{legacy.get(leaf, leaf)}"
            if name in spelled:
                raise AddnormError(f"weights: '{spelled[name]}' and '{file}' both stand for {name}; keep one")
            spelled[name] = file
        return spelled

    def _expanded(self, config: EncoderConfig) -> Iterator[tuple[str, str]]:
        for theirs, ours in self.modules.items():
            yield from expand(theirs, ours, len(config.blocks))

    def module_names(self) -> Iterator[tuple[str, str]]:
        """Our module names beside the file's, with {i} for the number of a block."""
        for theirs, ours in self.modules.items():
            yield from zip(_siblings(ours), _siblings(theirs), strict=True)

    def twin_sites(self, config: EncoderConfig) -> dict[str, At]:
        """Each of our sites that the twin shows, and where."""
        shown = {ours: At(theirs) for theirs, ours in self._expanded(config)}
        for site, at in self.sites.items():
            for theirs, ours in expand(at.module, site, len(config.blocks)):
                shown[ours] = At(theirs, at.item, at.input)
        return shown


def head_width(hf: Mapping[str, Any]) -> int:
    """hidden_size / num_attention_heads. Errors: not whole."""
    width, heads = hf["hidden_size"], hf["num_attention_heads"]
    if not (type(width) is type(heads) is int and heads > 0 and width % heads == 0):
        raise AddnormError(
            f"config.json: 'hidden_size' is {width!r}, 'num_attention_heads' {heads!r}; "
            "expected whole numbers, the first a multiple of the second"
        )
    return width // heads


def expand(theirs: str, ours: str, depth: int) -> Iterator[tuple[str, str]]:
    """A row for every block and sibling: `a.{i}.q|k` and `b.{i}.query|key` → (a.0.q, b.0.query), …"""
    if "{i}" in ours:
        for i in range(depth):
            yield from expand(theirs.replace("{i}", str(i)), ours.replace("{i}", str(i)), depth)
        return
    yield from zip(_siblings(theirs), _siblings(ours), strict=True)


def _siblings(name: str) -> list[str]:
    stem, dot, leaves = name.rpartition(".")
    return [f"{stem}{dot}{leaf}" for leaf in leaves.split("|")]


def _buffer(file: str, expected: Tensor) -> Entry:
    def load(tensors: list[Tensor]) -> list[Tensor]:
        if not torch.equal(tensors[0], expected.to(tensors[0].dtype)):
            raise AddnormError(f"weights: buffer '{file}' differs from its formula; the file is damaged")
        return []

    return Entry((file,), (), load=load, save=lambda _: [expected])


def _translate(row: Field, value: Any) -> Any:
    if row.values is None:
        return value
    if value not in row.values:
        raise AddnormError(f"config.json: '{row.name}' is {value!r}; understood: {', '.join(map(str, row.values))}")
    return row.values[value]


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def _get(tree: Mapping[str, Any], path: str) -> Any:
    value: Any = tree
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted(a.keys() | b.keys()):
            yield from _differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _differences(left, right, f"{path}.{i}")
    elif a != b:
        yield path, a, b


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'s' if len(things) != 1 else ''}"
