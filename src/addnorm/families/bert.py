"""BERT (Devlin et al. 2019): post-norm, learned positions, token types, exact GELU."""

import torch

from addnorm.families._family import Family
from addnorm.families._rows import (
    ACTIVATIONS,
    COMMON,
    ENCODER_ONLY,
    HF,
    At,
    Field,
    HeadRows,
    architectures,
    head_dropout,
    head_width,
    num_labels,
)

NORM = {"kind": "layer", "bias": True}

FIELDS = (
    Field("vocab_size", "embeddings.vocabulary", 30522),
    Field("hidden_size", "width", 768),
    Field("num_hidden_layers", "depth", 12),
    Field("num_attention_heads", "block.attention.heads", 12),
    Field("intermediate_size", "block.feedforward.width", 3072),
    Field("hidden_act", "block.feedforward.activation", "gelu", ACTIVATIONS),
    Field("hidden_dropout_prob", "embeddings.dropout block.attention.dropout block.feedforward.dropout", 0.1),
    Field("attention_probs_dropout_prob", "block.attention.weights_dropout", 0.1),
    Field("max_position_embeddings", "embeddings.max_positions", 512),
    Field("type_vocab_size", "embeddings.types", 2, least=1),
    Field("initializer_range", "init.std", 0.02),
    Field(
        "layer_norm_eps",
        "embeddings.norm.eps block.attention.norm_out.eps block.feedforward.norm_out.eps",
        1e-12,
    ),
)
FIXED = {
    "embeddings.positions": "learned",
    "embeddings.norm": NORM,
    "block.attention.norm_out": NORM,
    "block.feedforward.norm_out": NORM,
}
# The blocks as many families name them.
EMBEDDINGS = {
    "embeddings.word_embeddings": "embeddings.tokens",
    "embeddings.token_type_embeddings": "embeddings.types",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.LayerNorm": "embeddings.norm",
}
BLOCKS = {
    "encoder.layer.{i}.attention.self.query|key|value": "blocks.{i}.attention.query|key|value",
    "encoder.layer.{i}.attention.output.dense|LayerNorm": "blocks.{i}.attention.output|norm_out",
    "encoder.layer.{i}.intermediate.dense": "blocks.{i}.feedforward.up",
    "encoder.layer.{i}.output.dense|LayerNorm": "blocks.{i}.feedforward.down|norm_out",
}
POOLER = {"pooler.dense": "pooler.dense"}
SITES = {
    "embeddings.sum": At("embeddings.LayerNorm", input=True),
    "embeddings": At("embeddings"),
    "blocks.{i}.attention.mix": At("encoder.layer.{i}.attention.self", 0),
    "blocks.{i}.attention.weights": At("encoder.layer.{i}.attention.self", 1),
    "blocks.{i}.attention.branch": At("encoder.layer.{i}.attention.output.dropout"),
    "blocks.{i}.attention.add": At("encoder.layer.{i}.attention.output.LayerNorm", input=True),
    "blocks.{i}.feedforward.activation": At("encoder.layer.{i}.intermediate"),
    "blocks.{i}.feedforward.branch": At("encoder.layer.{i}.output.dropout"),
    "blocks.{i}.feedforward.add": At("encoder.layer.{i}.output.LayerNorm", input=True),
    "blocks.{i}": At("encoder.layer.{i}"),
    "pooler": At("pooler"),
}


def dropout(hf: HF) -> float:
    """Before a classifier: its own, or the hidden one."""
    own = hf.get("classifier_dropout")
    return hf["hidden_dropout_prob"] if own is None else own


def fill(hf: HF) -> dict[str, object]:
    """Dense, activation, norm, and the token table as output."""
    return {
        "task": "fill",
        "outputs": hf["vocab_size"],
        "dense": hf["hidden_size"],
        "activation": ACTIVATIONS[hf["hidden_act"]],
        "norm": NORM | {"eps": hf["layer_norm_eps"]},
        "tied": hf.get("tie_word_embeddings", True),
    }


FILL = HeadRows(
    fill,
    {
        "cls.predictions.transform.dense|LayerNorm": "head.dense|norm",
        "cls.predictions.decoder": "head.logits",
    },
    tied={
        "cls.predictions.decoder.weight": "embeddings.tokens.weight",
        "cls.predictions.bias": "head.logits.bias",
    },
    # A matrix of its own brings its own bias; this one was the same until transformers 5.
    spare={"cls.predictions.bias": "head.logits.bias"},
    sites={"head.activation": At("cls.predictions.transform.LayerNorm", input=True)},
)
CLASSIFIER = {"classifier": "head.logits"}
TASKS = {
    "MaskedLM": FILL,
    "PreTraining": FILL,
    "SequenceClassification": HeadRows(
        lambda hf: {"task": "classify", "outputs": num_labels(hf), "pool": "pooler", "dropout": dropout(hf)},
        CLASSIFIER,
    ),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": dropout(hf)}, CLASSIFIER
    ),
    "QuestionAnswering": HeadRows(lambda hf: {"task": "answer", "outputs": 2}, {"qa_outputs": "head.logits"}),
}
HEADS = architectures("Bert", TASKS)

BERT = Family(
    name="bert",
    architecture="BertModel",
    prefix="bert",
    fields=FIELDS,
    fixed=FIXED,
    derived={"block.attention.head_width": head_width},
    only={"position_embedding_type": "absolute", **ENCODER_ONLY},
    ignored=COMMON - {"classifier_dropout"}
    | {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"}
    | {"pooler_size_per_head", "pooler_type"},
    present={"pooler": "pooler.dense.weight"},
    exports={"classifier_dropout": head_dropout},
    modules={**EMBEDDINGS, **BLOCKS, **POOLER},
    heads=HEADS,
    buffers={"embeddings.position_ids": lambda config: torch.arange(config.embeddings.max_positions)[None]},
    carried=("cls.", "classifier.", "qa_outputs."),
    sites=SITES,
)

FAMILIES = (BERT,)
