"""DistilBERT (Sanh et al. 2019): half of BERT's blocks, no token types, no pooler."""

from addnorm.families import bert
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

NORM = {**bert.NORM, "eps": 1e-12}


def fill(hf: HF) -> dict[str, object]:
    """BERT's head, by these fields."""
    return bert.fill({**hf, "hidden_size": hf["dim"], "hidden_act": hf["activation"], "layer_norm_eps": NORM["eps"]})


def classify(hf: HF) -> dict[str, object]:
    """The first token, dense, ReLU."""
    head = {"task": "classify", "outputs": num_labels(hf), "pool": "first", "dense": hf["dim"]}
    return head | {"activation": "relu", "dropout": hf.get("seq_classif_dropout", 0.2)}


TASKS = {
    "MaskedLM": HeadRows(
        fill,
        {"vocab_transform": "head.dense", "vocab_layer_norm": "head.norm", "vocab_projector": "head.logits"},
        tied={"vocab_projector.weight": "embeddings.tokens.weight"},
        sites={"head.activation": At("vocab_layer_norm", input=True)},
    ),
    "SequenceClassification": HeadRows(
        classify,
        {"pre_classifier": "head.dense", "classifier": "head.logits"},
        sites={"head.activation": At("classifier", input=True)},
    ),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": hf["dropout"]}, bert.CLASSIFIER
    ),
    "QuestionAnswering": HeadRows(
        lambda hf: {"task": "answer", "outputs": 2, "dropout": hf.get("qa_dropout", 0.1)},
        {"qa_outputs": "head.logits"},
    ),
}

DISTILBERT = Family(
    name="distilbert",
    architecture="DistilBertModel",
    prefix="distilbert",
    fields=(
        Field("vocab_size", "embeddings.vocabulary", 30522),
        Field("dim", "width", 768),
        Field("n_layers", "depth", 6),
        Field("n_heads", "block.attention.heads", 12),
        Field("hidden_dim", "block.feedforward.width", 3072),
        Field("activation", "block.feedforward.activation", "gelu", ACTIVATIONS),
        Field("dropout", "embeddings.dropout block.feedforward.dropout", 0.1),
        Field("attention_dropout", "block.attention.weights_dropout", 0.1),
        Field("max_position_embeddings", "embeddings.max_positions", 512),
        Field("initializer_range", "init.std", 0.02),
    ),
    fixed={
        "embeddings.positions": "learned",
        "embeddings.norm": NORM,
        "block.attention.norm_out": NORM,
        "block.feedforward.norm_out": NORM,
    },
    derived={"block.attention.head_width": lambda hf: head_width(hf, "dim", "n_heads")},
    only=ENCODER_ONLY,
    # Positions are a table of the file, whichever way it was drawn.
    ignored=COMMON | {"sinusoidal_pos_embds", "tie_weights_"},
    exports={
        "seq_classif_dropout": lambda config: head_dropout(config, ("classify",), 0.2),
        "qa_dropout": lambda config: head_dropout(config, ("answer",), 0.1),
    },
    modules={
        "embeddings.word_embeddings": "embeddings.tokens",
        "embeddings.position_embeddings": "embeddings.positions",
        "embeddings.LayerNorm": "embeddings.norm",
        "transformer.layer.{i}.attention.q_lin|k_lin|v_lin|out_lin": "blocks.{i}.attention.query|key|value|output",
        "transformer.layer.{i}.sa_layer_norm": "blocks.{i}.attention.norm_out",
        "transformer.layer.{i}.ffn.lin1|lin2": "blocks.{i}.feedforward.up|down",
        "transformer.layer.{i}.output_layer_norm": "blocks.{i}.feedforward.norm_out",
    },
    heads=architectures("DistilBert", TASKS),
    buffers=bert.BERT.buffers,
    carried=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
    sites={
        "embeddings.sum": At("embeddings.LayerNorm", input=True),
        "embeddings": At("embeddings"),
        "blocks.{i}.attention.weights": At("transformer.layer.{i}.attention", 1),
        "blocks.{i}.attention.mix": At("transformer.layer.{i}.attention.out_lin", input=True),
        "blocks.{i}.attention.branch": At("transformer.layer.{i}.attention", 0),
        "blocks.{i}.attention.add": At("transformer.layer.{i}.sa_layer_norm", input=True),
        "blocks.{i}.feedforward.activation": At("transformer.layer.{i}.ffn.activation"),
        "blocks.{i}.feedforward.branch": At("transformer.layer.{i}.ffn"),
        "blocks.{i}.feedforward.add": At("transformer.layer.{i}.output_layer_norm", input=True),
        "blocks.{i}": At("transformer.layer.{i}"),
    },
)

FAMILIES = (DISTILBERT,)
