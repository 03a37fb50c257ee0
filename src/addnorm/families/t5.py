"""The encoders of T5 (Raffel et al. 2020), mT5 (Xue et al. 2021) and UMT5 (Chung et al. 2023).

Pre-norm without biases, scores without 1/√K, no positions but a term of the scores by distance: one table for
all blocks, in UMT5 one for each. A whole T5 is read as its encoder; what is the decoder's is kept for saving.
"""

from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.families import bert
from addnorm.families._family import Family
from addnorm.families._rows import (
    ACTIVATIONS,
    COMMON,
    HF,
    At,
    Field,
    HeadRows,
    amend,
    architectures,
    head_dropout,
    num_labels,
)

NORM = {"kind": "rms", "bias": False}
TABLE = "encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias"
DISTANCE = "position_bias.buckets", "position_bias.max_distance"


def feed_forward(default: str) -> dict[str, Any]:
    """`gated-gelu`, `relu` … as gated or not, activation and names; fields of their own, where given, decide."""

    def gated(hf: HF) -> bool:
        said = str(hf.get("feed_forward_proj", default)).startswith("gated-")
        return bool(hf.get("is_gated_act", said))

    def activation(hf: HF) -> str:
        said = str(hf.get("feed_forward_proj", default))
        name = hf.get("dense_act_fn") or ("gelu_new" if said == "gated-gelu" else said.removeprefix("gated-"))
        return ACTIVATIONS.get(name, name)

    return {
        "derived": {"block.feedforward.gated": gated, "block.feedforward.activation": activation},
        "names": lambda hf: {"up": "wi_1" if gated(hf) else "wi"},
    }


def hf_name(config: EncoderConfig) -> str:
    """The activation as Hugging Face spells it."""
    ours = config.blocks[0].feedforward.activation if config.blocks else "relu"
    return "gelu_new" if ours == "gelu_tanh" else ours


def is_gated(config: EncoderConfig) -> bool:
    """Whether the feed-forward is."""
    return bool(config.blocks) and config.blocks[0].feedforward.gated


def head_tag(hf: HF) -> dict[str, object]:
    """Dropout and logits for each token."""
    return {"task": "tag", "outputs": num_labels(hf), "dropout": hf.get("classifier_dropout", 0.0)}


T5 = Family(
    name="t5",
    architecture="T5EncoderModel",
    prefix="transformer",
    fields=(
        Field("vocab_size", "embeddings.vocabulary", 32128),
        Field("d_model", "width", 512),
        Field("d_kv", "block.attention.head_width", 64),
        Field("d_ff", "block.feedforward.width", 2048),
        Field("num_layers", "depth", 6),
        Field("num_heads", "block.attention.heads", 8),
        Field("relative_attention_num_buckets", "position_bias.buckets", 32, least=4),
        Field("relative_attention_max_distance", "position_bias.max_distance", 128),
        Field(
            "dropout_rate",
            "embeddings.dropout block.attention.dropout block.attention.weights_dropout block.feedforward.dropout",
            0.1,
        ),
        Field("layer_norm_epsilon", "block.attention.norm_in.eps block.feedforward.norm_in.eps norm.eps", 1e-6),
    ),
    fixed={
        "embeddings.positions": None,
        "embeddings.max_positions": 512,
        "block.attention.norm_in": NORM,
        "block.feedforward.norm_in": NORM,
        "norm": NORM,
        "block.attention.scale": 1.0,
        "block.attention.bias": False,
        "block.attention.output_bias": False,
        "block.feedforward.bias": False,
        "block.feedforward.output_bias": False,
        "position_bias": {"kind": "buckets"},
    },
    **feed_forward("relu"),
    only={"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}},
    ignored=COMMON - {"classifier_dropout"}
    | {"is_encoder_decoder", "num_decoder_layers", "scale_decoder_outputs", "initializer_factor", "n_positions"}
    | {"scalable_attention"},
    exports={
        "feed_forward_proj": lambda config: "gated-" * is_gated(config) + hf_name(config),
        "is_gated_act": is_gated,
        "dense_act_fn": hf_name,
        "classifier_dropout": lambda config: head_dropout(config, default=0.0),
    },
    modules={
        "shared": "embeddings.tokens",
        "encoder.embed_tokens": "embeddings.tokens",
        TABLE.replace("{i}", "0"): "position_bias.table",
        "encoder.block.{i}.layer.0.SelfAttention.q|k|v|o": "blocks.{i}.attention.query|key|value|output",
        "encoder.block.{i}.layer.0.layer_norm": "blocks.{i}.attention.norm_in",
        "encoder.block.{i}.layer.1.layer_norm": "blocks.{i}.feedforward.norm_in",
        "encoder.block.{i}.layer.1.DenseReluDense.{up}|wo": "blocks.{i}.feedforward.up|down",
        "encoder.block.{i}.layer.1.DenseReluDense.wi_0": "blocks.{i}.feedforward.gate",
        "encoder.final_layer_norm": "norm",
    },
    heads=architectures("T5", {"TokenClassification": HeadRows(head_tag, bert.CLASSIFIER)}),
    carried=("decoder.", "lm_head.", "classification_head.", "qa_outputs.", "classifier."),
    sites={
        "embeddings": At("encoder.block.0", input=True),
        "blocks.{i}.attention.mix": At("encoder.block.{i}.layer.0.SelfAttention.o", input=True),
        "blocks.{i}.attention.weights": At("encoder.block.{i}.layer.0.SelfAttention", -1),
        "blocks.{i}.attention.branch": At("encoder.block.{i}.layer.0.dropout"),
        "blocks.{i}.attention.add": At("encoder.block.{i}.layer.0"),
        "blocks.{i}.feedforward.activation": At("encoder.block.{i}.layer.1.DenseReluDense.act"),
        "blocks.{i}.feedforward.product": At("encoder.block.{i}.layer.1.DenseReluDense.wo", input=True),
        "blocks.{i}.feedforward.branch": At("encoder.block.{i}.layer.1.dropout"),
        "blocks.{i}.feedforward.add": At("encoder.block.{i}.layer.1"),
        "blocks.{i}": At("encoder.block.{i}"),
    },
)
MT5 = replace(
    T5,
    name="mt5",
    architecture="MT5EncoderModel",
    fields=amend(
        T5.fields,
        vocab_size={"default": 250112},
        d_ff={"default": 1024},
        num_layers={"default": 8},
        num_heads={"default": 6},
    ),
    **feed_forward("gated-gelu"),
    heads=architectures("MT5", {"TokenClassification": HeadRows(head_tag, bert.CLASSIFIER)}),
)
UMT5 = replace(
    MT5,
    name="umt5",
    architecture="UMT5EncoderModel",
    fields=amend(
        MT5.fields,
        relative_attention_num_buckets={"paths": "block.attention.position_bias.buckets"},
        relative_attention_max_distance={"paths": "block.attention.position_bias.max_distance"},
    ),
    fixed={
        **{path: value for path, value in T5.fixed.items() if path != "position_bias"},
        "block.attention.position_bias": {"kind": "buckets"},
    },
    modules={
        **{name: row for name, row in T5.modules.items() if row != "position_bias.table"},
        TABLE: "blocks.{i}.attention.position_bias.table",
    },
    heads=architectures("UMT5", {"TokenClassification": HeadRows(head_tag, bert.CLASSIFIER)}),
)

FAMILIES = (T5, MT5, UMT5)
