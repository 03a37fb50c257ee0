"""RoBERTa (Liu et al. 2019) and those built like it: positions are counted from the padding id.

XLM-RoBERTa (Conneau et al. 2020), CamemBERT (Martin et al. 2020) and data2vec for text (Baevski et al. 2022)
differ from it in nothing but names and defaults.
"""

from dataclasses import replace

from addnorm.families import bert
from addnorm.families._rows import HF, At, Field, HeadRows, amend, architectures, num_labels

PAD = Field("pad_token_id", "embeddings.pad", 1, least=0)
COUNTED = {"embeddings.position_offset": lambda hf: hf["pad_token_id"] + 1}


def classify(hf: HF) -> dict[str, object]:
    """The first token, dense, tanh, with dropout before and after."""
    head = {"task": "classify", "outputs": num_labels(hf), "pool": "first", "dense": hf["hidden_size"]}
    return head | {"activation": "tanh", "dropout_in": bert.dropout(hf), "dropout": bert.dropout(hf)}


CLASSIFIER = {"classifier.dense|out_proj": "head.dense|logits"}
TASKS = {
    "TokenClassification": bert.TASKS["TokenClassification"],
    "QuestionAnswering": bert.TASKS["QuestionAnswering"],
    "MaskedLM": HeadRows(
        lambda hf: bert.fill(hf) | {"activation": "gelu"},
        {"lm_head.dense|layer_norm": "head.dense|norm", "lm_head.decoder": "head.logits"},
        tied={"lm_head.decoder.weight": "embeddings.tokens.weight", "lm_head.bias": "head.logits.bias"},
        spare={"lm_head.bias": "head.logits.bias"},
        sites={"head.activation": At("lm_head.layer_norm", input=True)},
    ),
    "SequenceClassification": HeadRows(
        classify, CLASSIFIER, sites={"head.activation": At("classifier.out_proj", input=True)}
    ),
}

ROBERTA = replace(
    bert.BERT,
    name="roberta",
    architecture="RobertaModel",
    prefix="roberta",
    fields=(*amend(bert.FIELDS, vocab_size={"default": 50265}), PAD),
    derived={**bert.BERT.derived, **COUNTED},
    ignored=bert.BERT.ignored - {"pad_token_id"},
    heads=architectures("Roberta", TASKS),
    carried=("lm_head.", "classifier.", "qa_outputs."),
)
SIBLING = replace(ROBERTA, fields=(*bert.FIELDS, PAD))

FAMILIES = (
    ROBERTA,
    replace(SIBLING, name="xlm-roberta", architecture="XLMRobertaModel", heads=architectures("XLMRoberta", TASKS)),
    replace(SIBLING, name="camembert", architecture="CamembertModel", heads=architectures("Camembert", TASKS)),
    replace(
        SIBLING,
        name="data2vec-text",
        architecture="Data2VecTextModel",
        prefix="data2vec_text",
        heads=architectures("Data2VecText", TASKS),
    ),
)
