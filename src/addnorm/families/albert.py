"""ALBERT (Lan et al. 2020): narrow tables, and groups of blocks that share their parameters."""

from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import bert
from addnorm.families._rows import HF, At, HeadRows, amend, architectures, head_dropout, num_labels, without

LAYER = "encoder.albert_layer_groups.{g}.albert_layers.{k}"


def counts(hf: HF) -> tuple[int, int, int]:
    """How often the stream runs through a group, the groups, and the blocks of a group."""
    return hf.get("num_hidden_layers", 12), hf.get("num_hidden_groups", 1), hf.get("inner_group_num", 1)


def shared(hf: HF) -> tuple[int, ...]:
    """For each block the first one with its parameters."""
    layers, groups, inner = counts(hf)
    if not 0 < groups <= layers or (groups == layers and inner > 1):
        raise AddnormError(
            f"config.json: {groups} num_hidden_groups of inner_group_num {inner} for {layers} num_hidden_layers; "
            "expected fewer groups than layers, or as many with one block each"
        )
    group = [int(layer / (layers / groups)) for layer in range(layers)]
    return tuple(group.index(group[layer]) * inner + k for layer in range(layers) for k in range(inner))


def counted(config: EncoderConfig) -> tuple[int, int, int]:
    """`counts`, read from which blocks share parameters."""
    owner = config.shared or tuple(range(len(config.blocks)))
    inner = owner.index(0, 1) if 0 in owner[1:] else 1
    return len(owner) // inner, len(config.owners) // inner, inner


def numbers(config: EncoderConfig) -> list[dict[str, int]]:
    """{g}: the group, {k}: the block within it."""
    inner = counted(config)[2]
    return [{"i": i, "g": n // inner, "k": n % inner} for n, i in enumerate(config.owners)]


def classify(hf: HF, **head: Any) -> dict[str, Any]:
    """A classifier with the dropout that only ALBERT calls so."""
    own = hf.get("classifier_dropout_prob", 0.1)
    return {"outputs": num_labels(hf), "dropout": hf["hidden_dropout_prob"] if own is None else own} | head


FILL = HeadRows(
    lambda hf: bert.fill(hf) | {"dense": hf["embedding_size"]},
    {"predictions.dense|LayerNorm|decoder": "head.dense|norm|logits"},
    tied={"predictions.decoder.weight": "embeddings.tokens.weight", "predictions.bias": "head.logits.bias"},
    spare={"predictions.bias": "head.logits.bias"},
    sites={"head.activation": At("predictions.LayerNorm", input=True)},
)
TASKS = bert.TASKS | {
    "MaskedLM": FILL,
    "PreTraining": FILL,
    "SequenceClassification": HeadRows(lambda hf: classify(hf, task="classify", pool="pooler"), bert.CLASSIFIER),
    "TokenClassification": HeadRows(lambda hf: classify(hf, task="tag"), bert.CLASSIFIER),
}

ALBERT = replace(
    bert.BERT,
    name="albert",
    architecture="AlbertModel",
    prefix="albert",
    fields=(
        *amend(
            without(bert.FIELDS, "num_hidden_layers"),
            vocab_size={"default": 30000},
            hidden_size={"default": 4096},
            num_attention_heads={"default": 64},
            intermediate_size={"default": 16384},
            hidden_act={"default": "gelu_new"},
            # There is a dropout after the feed-forward too, but it is never called.
            hidden_dropout_prob={"default": 0.0, "paths": "embeddings.dropout block.attention.dropout"},
            attention_probs_dropout_prob={"default": 0.0},
        ),
        replace(bert.FIELDS[1], name="embedding_size", paths="embeddings.width", default=128),
    ),
    derived={**bert.BERT.derived, "depth": lambda hf: counts(hf)[0] * counts(hf)[2], "shared": shared},
    ignored=bert.BERT.ignored
    | {"down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"},
    present={"pooler": "pooler.weight"},
    exports={
        "num_hidden_layers": lambda config: counted(config)[0],
        "num_hidden_groups": lambda config: counted(config)[1],
        "inner_group_num": lambda config: counted(config)[2],
        "classifier_dropout_prob": lambda config: head_dropout(config, default=0.1),
    },
    modules={
        **bert.EMBEDDINGS,
        "encoder.embedding_hidden_mapping_in": "embeddings.projection",
        f"{LAYER}.attention.query|key|value": "blocks.{i}.attention.query|key|value",
        f"{LAYER}.attention.dense|LayerNorm": "blocks.{i}.attention.output|norm_out",
        f"{LAYER}.ffn|ffn_output|full_layer_layer_norm": "blocks.{i}.feedforward.up|down|norm_out",
        "pooler": "pooler.dense",
    },
    numbers=numbers,
    heads=architectures("Albert", TASKS),
    carried=("predictions.", "sop_classifier.", "classifier.", "qa_outputs."),
    sites={
        "embeddings.sum": bert.SITES["embeddings.sum"],
        "embeddings": At("encoder.embedding_hidden_mapping_in"),
        "blocks.{i}.attention.mix": At(f"{LAYER}.attention.dense", input=True),
        "blocks.{i}.attention.weights": At(f"{LAYER}.attention", 1),
        "blocks.{i}.attention.branch": At(f"{LAYER}.attention.output_dropout"),
        "blocks.{i}.attention.add": At(f"{LAYER}.attention.LayerNorm", input=True),
        "blocks.{i}.feedforward.activation": At(f"{LAYER}.activation"),
        "blocks.{i}.feedforward.branch": At(f"{LAYER}.ffn_output"),
        "blocks.{i}.feedforward.add": At(f"{LAYER}.full_layer_layer_norm", input=True),
        "blocks.{i}": At(LAYER),
        "pooler": At("pooler_activation"),
    },
)

FAMILIES = (ALBERT,)
