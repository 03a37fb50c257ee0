"""ELECTRA (Clark et al. 2020): BERT with narrower tables; a generator, and a discriminator of replaced tokens."""

from dataclasses import replace

from addnorm.families import bert, roberta
from addnorm.families._rows import ACTIVATIONS, HF, At, HeadRows, amend, architectures


def table_width(hf: HF) -> int:
    """The width of the tables and of the generator's head."""
    width: int = hf.get("embedding_size", 128)
    return width


def generate(hf: HF) -> dict[str, object]:
    """BERT's head, as narrow as the tables."""
    return bert.fill(hf) | {"dense": table_width(hf), "activation": "gelu"}


def discriminate(hf: HF) -> dict[str, object]:
    """One logit a token: was it replaced?"""
    activation = ACTIVATIONS[hf["hidden_act"]]
    return {"task": "detect", "outputs": 1, "dense": hf["hidden_size"], "activation": activation}


TASKS = bert.TASKS | {
    "MaskedLM": HeadRows(
        generate,
        {"generator_predictions.dense|LayerNorm": "head.dense|norm", "generator_lm_head": "head.logits"},
        tied={"generator_lm_head.weight": "embeddings.tokens.weight"},
        sites={"head.activation": At("generator_predictions.LayerNorm", input=True)},
    ),
    "PreTraining": HeadRows(
        discriminate,
        {"discriminator_predictions.dense|dense_prediction": "head.dense|logits"},
        sites={"head.activation": At("discriminator_predictions.dense_prediction", input=True)},
    ),
    "SequenceClassification": replace(
        roberta.TASKS["SequenceClassification"], config=lambda hf: roberta.classify(hf) | {"activation": "gelu"}
    ),
}

ELECTRA = replace(
    bert.BERT,
    name="electra",
    architecture="ElectraModel",
    prefix="electra",
    fields=amend(
        bert.FIELDS,
        hidden_size={"default": 256},
        num_attention_heads={"default": 4},
        intermediate_size={"default": 1024},
    ),
    derived={
        **bert.BERT.derived,
        "embeddings.width": lambda hf: None if table_width(hf) == hf["hidden_size"] else table_width(hf),
    },
    # The summary belongs to multiple choice; the generator's sizes are notes about the pair.
    ignored=bert.BERT.ignored
    | {"summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"}
    | {"generator_size", "generator_hidden_size"},
    present={},
    exports={**bert.BERT.exports, "embedding_size": lambda config: config.embeddings.width or config.width},
    modules={**bert.EMBEDDINGS, "embeddings_project": "embeddings.projection", **bert.BLOCKS},
    heads=architectures("Electra", TASKS),
    carried=("generator_", "discriminator_predictions.", "classifier.", "qa_outputs.", "sequence_summary."),
    sites={**bert.SITES, "embeddings": At("encoder", input=True)},
)

FAMILIES = (ELECTRA,)
