"""Rows: the data a family is made of.

A config row (`Field`) maps a field of a Hugging Face config.json to paths of ours; `block.` in a path stands
for every block. A module row maps a module name of the file to ours (or a full parameter name to a full
parameter name); placeholders are named ({i} block), siblings are separated by `|`. Rows are expanded into the
names that must be there and looked up, so a name is explained exactly once or not at all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    "tie_word_embeddings classifier_dropout model_max_length sentence_transformers output_past use_bfloat16 "
    "sbert_ce_default_activation_function "
    # Notes and the settings of text generation that older versions wrote into every config.
    "_num_labels language name eos_token_ids xla_device tf_legacy_loss tie_encoder_decoder output_scores do_sample "
    "early_stopping length_penalty max_length min_length no_repeat_ngram_size encoder_no_repeat_ngram_size num_beams "
    "num_beam_groups num_return_sequences repetition_penalty diversity_penalty temperature top_k top_p typical_p "
    "bad_words_ids suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id "
    "return_dict_in_generate remove_invalid_values exponential_decay_length_penalty".split()
)
# Fields whose every other value changes what is computed.
ENCODER_ONLY: Mapping[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
}
# Activations as Hugging Face spells them.
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

HF = Mapping[str, Any]
# What stands in the placeholders of a row: {i} block, and what a family has besides.
Numbers = Mapping[str, int | str]


@dataclass(frozen=True)
class Field:
    """A config row: an HF field, our path or paths (separated by spaces), HF's default, HF's values → ours.

    `least`: the smallest value that transformers can build a model of.
    """

    name: str
    paths: str
    default: Any
    values: Mapping[Any, Any] | None = None
    least: int | None = None


@dataclass(frozen=True)
class Split:
    """A fused tensor: its rows, laid end to end, are several of ours (`ours`: siblings)."""

    ours: str

    def divide(self, tensor: Tensor, rows: Sequence[int], config: EncoderConfig) -> list[Tensor]:
        """The parts, of so many rows each."""
        return list(tensor.split(list(rows)))  # type: ignore[no-untyped-call]

    def join(self, parts: Sequence[Tensor], config: EncoderConfig) -> Tensor:
        """What `divide` took apart."""
        return torch.cat(list(parts))


@dataclass(frozen=True)
class SplitHeads(Split):
    """A fused tensor whose rows go head by head, each head holding its share of every part."""

    def divide(self, tensor: Tensor, rows: Sequence[int], config: EncoderConfig) -> list[Tensor]:
        """The parts, their heads together again."""
        heads = config.blocks[0].attention.heads
        return [part.flatten(0, 1) for part in tensor.unflatten(0, (heads, len(rows), -1)).unbind(1)]  # type: ignore[no-untyped-call]

    def join(self, parts: Sequence[Tensor], config: EncoderConfig) -> Tensor:
        """What `divide` took apart."""
        heads = config.blocks[0].attention.heads
        shaped = [part.unflatten(0, (heads, -1)) for part in parts]  # type: ignore[no-untyped-call]
        return torch.stack(shaped, dim=1).flatten(0, 2)


Modules = Mapping[str, str | Split]


@dataclass(frozen=True)
class At:
    """Where the twin shows a site's value: a module's output (or one item of it), or its input.

    `part`: (k, n), the k-th of n equal pieces along the features; `call`: which time, where it runs several.
    """

    module: str
    item: int = 0
    input: bool = False
    part: tuple[int, int] | None = None
    call: int = 0


@dataclass(frozen=True)
class HeadRows:
    """The head of one architecture: its `HeadConfig` as plain data from the HF config, and its module rows.

    `tied`: rows that hold only while the output matrix is the token table; `spare`: rows for what no other row
    fills; `sites`: where the twin shows what module rows do not.
    """

    config: Callable[[HF], dict[str, Any]]
    modules: Modules
    tied: Modules = field(default_factory=dict)
    spare: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[str, At] = field(default_factory=dict)


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


def same(files: tuple[str, ...], name: str) -> Entry:
    """One parameter that the file holds once or, tied, several times over."""

    def load(tensors: list[Tensor]) -> list[Tensor]:
        for file, tensor in zip(files[1:], tensors[1:], strict=True):
            if not torch.equal(tensor, tensors[0]):
                raise AddnormError(f"weights: '{file}' should be the same as '{files[0]}', but differs; untie them")
        return tensors[:1]

    # Copies, because a safetensors file holds no tensor twice.
    return Entry(files, (name,), load=load, save=lambda ours: [*ours, *(ours[0].clone() for _ in files[1:])])


def fused(file: str, names: tuple[str, ...], split: Split, rows: Sequence[int], config: EncoderConfig) -> Entry:
    """Several parameters that the file holds as one tensor."""

    def load(tensors: list[Tensor]) -> list[Tensor]:
        if len(tensors[0]) != sum(rows):
            raise AddnormError(f"weights: '{file}' has {len(tensors[0])} rows; the config asks for {sum(rows)}")
        return split.divide(tensors[0], rows, config)

    return Entry((file,), names, load=load, save=lambda ours: [split.join(ours, config)])


def buffer(file: str, expected: Tensor) -> Entry:
    """A tensor of the file that a formula gives; its last bits, which a library's sin may round, are kept."""
    held = [expected]

    def load(tensors: list[Tensor]) -> list[Tensor]:
        tensor = held[0] = tensors[0]
        slack = 4 * torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0
        if tensor.shape != expected.shape or not (tensor.double() - expected.double()).abs().le(slack).all():
            raise AddnormError(f"weights: buffer '{file}' differs from its formula; the file is damaged")
        return []

    return Entry((file,), (), load=load, save=lambda _: held)


def carry(file: str) -> Entry:
    """A tensor that is kept for saving and not computed."""
    return Entry((file,), (), carried=True, load=lambda _: [])


def head_width(hf: HF, of: str = "hidden_size", by: str = "num_attention_heads") -> int:
    """hidden_size / num_attention_heads, or what a family calls them. Errors: not whole."""
    width, heads = hf[of], hf[by]
    if not (type(width) is type(heads) is int and heads > 0 and width % heads == 0):
        raise AddnormError(
            f"config.json: '{of}' is {width!r}, '{by}' {heads!r}; "
            "expected whole numbers, the first a multiple of the second"
        )
    return width // heads


def num_labels(hf: HF) -> int:
    """How many labels a classifier has: by their names, their number, or Hugging Face's default of 2."""
    labels = hf.get("id2label") or hf.get("label2id")
    return len(labels) if labels else hf.get("num_labels") or 2


def choice(hf: HF, name: str, default: str, values: Mapping[str, str]) -> str:
    """The value of a field in our words. Errors: not understood."""
    value = hf.get(name, default)
    if value not in values:
        raise AddnormError(f"config.json: '{name}' is {value!r}; understood: {', '.join(values)}")
    return values[value]


def head_dropout(
    config: EncoderConfig, tasks: Sequence[str] = ("classify", "tag"), default: float | None = None
) -> float | None:
    """The dropout before the outputs of a head for one of `tasks`, as HF's `classifier_dropout`."""
    head = config.head
    return head.dropout if head is not None and head.task in tasks else default


def amend(fields: Sequence[Field], **changes: Mapping[str, Any]) -> tuple[Field, ...]:
    """The rows of a related family with changes, by HF field: another default, other paths."""
    assert changes.keys() <= {row.name for row in fields}
    return tuple(replace(row, **changes.get(row.name, {})) for row in fields)


def without(fields: Sequence[Field], *names: str) -> tuple[Field, ...]:
    """The rows of a related family less some HF fields."""
    return tuple(row for row in fields if row.name not in names)


def architectures(stem: str, tasks: Mapping[str, HeadRows]) -> dict[str, HeadRows]:
    """Heads by architecture: the stem, `For`, and the task."""
    return {f"{stem}For{task}": head for task, head in tasks.items()}


def expand(theirs: str, ours: str, numbers: Sequence[Numbers]) -> Iterator[tuple[str, str]]:
    """A row for every block and sibling: `a.{i}.q|k` and `b.{i}.query|key` → (a.0.q, b.0.query), …"""
    for their_names, our_names in filled(theirs, ours, numbers):
        yield from zip(siblings(their_names), siblings(our_names), strict=True)


def filled(theirs: str, ours: str, numbers: Sequence[Numbers]) -> list[tuple[str, str]]:
    """A row with its placeholders filled, once for each set of numbers that fills them all."""
    pairs = dict.fromkeys((fill(theirs, number), fill(ours, number)) for number in numbers)
    return [(their_names, our_names) for their_names, our_names in pairs if "{" not in their_names + our_names]


def fill(name: str, number: Numbers) -> str:
    """A name with the numbers of a block in its placeholders."""
    for placeholder, value in number.items():
        name = name.replace(f"{{{placeholder}}}", str(value))
    return name


def siblings(name: str) -> list[str]:
    """`a.b|c` → a.b, a.c."""
    stem, dot, leaves = name.rpartition(".")
    return [f"{stem}{dot}{leaf}" for leaf in leaves.split("|")]


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, making what is missing on the way."""
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def get(tree: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    value: Any = tree
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two nested plain values differ: path, left, right."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted(a.keys() | b.keys()):
            yield from differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from differences(left, right, f"{path}.{i}")
    elif a != b:
        yield path, a, b
