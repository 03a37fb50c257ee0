"""MPNet (Song et al. 2020): RoBERTa's positions, and one term of the scores by distance that all blocks share."""

from dataclasses import replace

from addnorm.families import bert, roberta
from addnorm.families._rows import HF, At, HeadRows, amend, architectures, num_labels, without

# The reference always counts 32 buckets; transformers reads the field for the size of the table alone.
BUCKETS = 32


def classify(hf: HF) -> dict[str, object]:
    """RoBERTa's head, with the dropout of the blocks."""
    dropout = hf["hidden_dropout_prob"]
    return roberta.classify(hf) | {"dropout_in": dropout, "dropout": dropout}


TASKS = {
    "MaskedLM": roberta.TASKS["MaskedLM"],
    "SequenceClassification": HeadRows(classify, roberta.CLASSIFIER),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": hf["hidden_dropout_prob"]}, bert.CLASSIFIER
    ),
    "QuestionAnswering": bert.TASKS["QuestionAnswering"],
}

MPNET = replace(
    bert.BERT,
    name="mpnet",
    architecture="MPNetModel",
    prefix="mpnet",
    fields=without(amend(bert.FIELDS, vocab_size={"default": 30527}), "type_vocab_size"),
    fixed={
        **bert.FIXED,
        # The id that has no position is 1, whatever the config calls padding.
        "embeddings.pad": 1,
        "embeddings.position_offset": 2,
        "position_bias": {"kind": "buckets", "buckets": BUCKETS, "max_distance": 128},
    },
    only={**bert.BERT.only, "relative_attention_num_buckets": BUCKETS},
    ignored=bert.BERT.ignored | {"classifier_dropout"},
    exports={},
    modules={
        **bert.EMBEDDINGS,
        "encoder.relative_attention_bias": "position_bias.table",
        "encoder.layer.{i}.attention.attn.q|k|v|o": "blocks.{i}.attention.query|key|value|output",
        "encoder.layer.{i}.attention.LayerNorm": "blocks.{i}.attention.norm_out",
        "encoder.layer.{i}.intermediate.dense": "blocks.{i}.feedforward.up",
        "encoder.layer.{i}.output.dense|LayerNorm": "blocks.{i}.feedforward.down|norm_out",
        **bert.POOLER,
    },
    heads=architectures("MPNet", TASKS),
    carried=roberta.ROBERTA.carried,
    sites={
        **bert.SITES,
        "blocks.{i}.attention.mix": At("encoder.layer.{i}.attention.attn.o", input=True),
        "blocks.{i}.attention.weights": At("encoder.layer.{i}.attention.attn", 1),
        "blocks.{i}.attention.branch": At("encoder.layer.{i}.attention.dropout"),
        "blocks.{i}.attention.add": At("encoder.layer.{i}.attention.LayerNorm", input=True),
    },
)

FAMILIES = (MPNET,)
