"""DeBERTa (He et al. 2021): scores between contents and distances, query, key and value in one matrix by head."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import bert
from addnorm.families._rows import (
    ACTIVATIONS,
    HF,
    HeadRows,
    SplitHeads,
    amend,
    architectures,
    head_dropout,
    head_width,
    num_labels,
)

TERMS = {"c2p": "content_to_position", "p2c": "position_to_content"}


def terms(hf: HF) -> list[str]:
    """The terms of the scores, `c2p|p2c` or a list. Errors: others, or one twice."""
    said = hf.get("pos_att_type") or []
    names = [name.strip() for name in said.lower().split("|")] if isinstance(said, str) else list(said)
    if len(TERMS.keys() & set(names)) != len(names):
        raise AddnormError(f"config.json: 'pos_att_type' is {said!r}; understood: {', '.join(TERMS)}")
    return names


def scale(hf: HF) -> float:
    """1/√K, and as if there were a K for each term."""
    return float((head_width(hf) * (1 + len(terms(hf)))) ** -0.5)


def table(hf: HF) -> dict[str, Any] | None:
    """A row for each distance up to `max_relative_positions`, or to the longest text."""
    if not hf.get("relative_attention"):
        return None
    longest = hf.get("max_relative_positions", -1)
    return {"span": longest if longest > 0 else hf["max_position_embeddings"]}


def disentangled(hf: HF) -> dict[str, Any] | None:
    """Which terms there are."""
    names = terms(hf) if hf.get("relative_attention") else []
    asked = {ours: theirs in names for theirs, ours in TERMS.items()}
    return asked | {"key_bias": False, "dropout": hf["hidden_dropout_prob"]} if names else None


def same_width(hf: HF) -> None:
    """Tables as wide as the stream. Errors: others, whose projection comes before the norm."""
    if hf.get("embedding_size", hf["hidden_size"]) != hf["hidden_size"]:
        raise AddnormError(f"config.json: 'embedding_size' is {hf['embedding_size']!r}; understood: hidden_size only")


def used_terms(config: EncoderConfig) -> list[str]:
    """`pos_att_type` of a config of ours."""
    own = config.blocks[0].attention.disentangled if config.blocks else None
    return [theirs for theirs, ours in TERMS.items() if own and getattr(own, ours)]


def hf_activation(ours: str) -> str:
    """An activation as Hugging Face spells it."""
    return "gelu_new" if ours == "gelu_tanh" else ours


def head_activation(config: EncoderConfig) -> str:
    """`pooler_hidden_act` of a config of ours."""
    head = config.head
    return hf_activation(head.activation if head and head.task == "classify" and head.activation else "gelu")


def classify(hf: HF) -> dict[str, object]:
    """The first token, dense, GELU: the context pooler."""
    own = hf.get("cls_dropout")
    head = {"task": "classify", "outputs": num_labels(hf), "pool": "first", "dense": hf["hidden_size"]}
    return head | {
        "activation": ACTIVATIONS[hf.get("pooler_hidden_act", "gelu")],
        "dropout_in": hf.get("pooler_dropout", 0.0),
        "dropout": hf["hidden_dropout_prob"] if own is None else own,
    }


# `legacy` says which of two spellings the masked-LM head has; the second knows no matrix but the token table.
FILL: Mapping[str, str] = {
    **bert.FILL.modules,  # type: ignore[dict-item]
    "lm_predictions.lm_head.dense|LayerNorm": "head.dense|norm",
    "lm_predictions.lm_head.bias": "head.logits.bias",
}
TASKS = {
    "MaskedLM": HeadRows(
        lambda hf: bert.fill(hf) | ({} if hf.get("legacy", True) else {"tied": True}), FILL, bert.FILL.tied
    ),
    "SequenceClassification": HeadRows(classify, {"pooler.dense": "head.dense", "classifier": "head.logits"}),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": hf["hidden_dropout_prob"]}, bert.CLASSIFIER
    ),
    "QuestionAnswering": bert.TASKS["QuestionAnswering"],
}

# What follows the scores is BERT's.
REST = {name: row for name, row in bert.BLOCKS.items() if ".self." not in name}
MODULES = {**bert.EMBEDDINGS, "encoder.rel_embeddings": "relative.table", **REST}

DEBERTA = replace(
    bert.BERT,
    name="deberta",
    architecture="DebertaModel",
    prefix="deberta",
    fields=amend(
        bert.FIELDS,
        vocab_size={"default": 50265},
        type_vocab_size={"default": 0, "least": 0},
        layer_norm_eps={"default": 1e-7},
    ),
    fixed={**bert.FIXED, "block.attention.key_bias": False},
    derived={
        "block.attention.head_width": head_width,
        "block.attention.scale": scale,
        "block.attention.disentangled": disentangled,
        "relative": table,
        "embeddings.positions": lambda hf: "learned" if hf.get("position_biased_input", True) else None,
        "embeddings.width": same_width,
    },
    only={**bert.BERT.only, "talking_head": False},
    ignored=bert.BERT.ignored | {"classifier_dropout", "padding_idx", "pooler_hidden_size"},
    reads=frozenset({"embedding_size"}),
    present={},
    exports={
        "relative_attention": lambda config: config.relative is not None,
        "max_relative_positions": lambda config: config.relative.span if config.relative else -1,
        "pos_att_type": used_terms,
        "position_biased_input": lambda config: config.embeddings.positions is not None,
        "legacy": lambda config: True,
        "pooler_hidden_act": head_activation,
        "pooler_dropout": lambda config: config.head.dropout_in if config.head else 0.0,
        "cls_dropout": lambda config: head_dropout(config, ("classify",)),
    },
    modules={
        **MODULES,
        "encoder.layer.{i}.attention.self.in_proj": SplitHeads("blocks.{i}.attention.query|key|value"),
        "encoder.layer.{i}.attention.self.q_bias": "blocks.{i}.attention.query.bias",
        "encoder.layer.{i}.attention.self.v_bias": "blocks.{i}.attention.value.bias",
        "encoder.layer.{i}.attention.self.pos_proj|pos_q_proj": (
            "blocks.{i}.attention.disentangled.position_key|position_query"
        ),
    },
    heads=architectures("Deberta", TASKS),
    # Published files keep the positions and heads that only pre-training had a use for.
    carried=(
        *("embeddings.position_embeddings.", "cls.", "lm_predictions.", "mask_predictions.", "pooler."),
        *("classifier.", "qa_outputs."),
    ),
)

FAMILIES = (DEBERTA,)
