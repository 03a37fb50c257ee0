"""ESM C (ESM Team 2024): proteins; pre-norm, gated, normalised queries and keys, branches scaled by depth."""

import math
from dataclasses import replace
from typing import Any

from addnorm.families import eurobert, roberta
from addnorm.families._rows import HF, At, HeadRows, amend, architectures, head_dropout, num_labels, without

NORM = {"kind": "layer", "bias": True, "eps": 1e-5}
GAIN = NORM | {"bias": False}


def beta(hf: HF) -> float:
    """Branches of a stack deeper than 36 blocks shrink, of a shallower one grow."""
    return math.sqrt(36 / hf["num_hidden_layers"]) if hf["num_hidden_layers"] else 1.0


def dropout(hf: HF) -> float:
    """Before a classifier."""
    own = hf.get("classifier_dropout", 0.1)
    return 0.1 if own is None else own


def fill(hf: HF) -> dict[str, Any]:
    """Dense, GELU, norm, and an output matrix of its own."""
    head = {"task": "fill", "outputs": hf["vocab_size"], "dense": hf["hidden_size"]}
    return head | {"activation": "gelu", "norm": NORM}


TASKS = {
    "MaskedLM": HeadRows(
        fill,
        {"lm_head.dense|layer_norm|decoder": "head.dense|norm|logits"},
        sites={"head.activation": At("lm_head.layer_norm", input=True)},
    ),
    "SequenceClassification": replace(
        roberta.TASKS["SequenceClassification"],
        config=lambda hf: roberta.classify({**hf, "classifier_dropout": dropout(hf)}),
    ),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": dropout(hf)}, {"score": "head.logits"}
    ),
}

ESMC = replace(
    eurobert.EUROBERT,
    name="esmc",
    architecture="EsmcModel",
    prefix="esmc",
    fields=amend(
        without(eurobert.FIELDS, "rms_norm_eps"),
        vocab_size={"default": 64},
        hidden_size={"default": 2560},
        num_hidden_layers={"default": 80},
        num_attention_heads={"default": 40},
        intermediate_size={"default": 6912},
        max_position_embeddings={"default": 2048},
    ),
    fixed={
        **eurobert.EUROBERT.fixed,
        "block.attention.norm_in": NORM,
        "block.attention.query_norm": GAIN,
        "block.attention.key_norm": GAIN,
        "block.attention.norm_heads": False,
        "block.feedforward.norm_in": NORM,
        "norm": GAIN,
    },
    derived={**eurobert.EUROBERT.derived, "block.attention.beta": beta, "block.feedforward.beta": beta},
    ignored=eurobert.EUROBERT.ignored - {"classifier_dropout"},
    exports={
        **{name: eurobert.EUROBERT.exports[name] for name in ("head_dim", "rope_parameters")},
        "classifier_dropout": lambda config: head_dropout(config, default=0.1),
    },
    older=(),
    modules={
        **eurobert.EUROBERT.modules,
        "layers.{i}.self_attn.q_norm|k_norm": "blocks.{i}.attention.query_norm|key_norm",
    },
    heads=architectures("Esmc", TASKS),
    carried=("lm_head.", "classifier.", "score."),
    # The branches are not shown: the twin scales them outside any module.
    sites=eurobert.SITES
    | {
        "embeddings": At("embed_tokens"),
        "blocks.{i}.attention.add": At("layers.{i}.post_attention_layernorm", input=True),
        "blocks.{i}.feedforward.add": At("layers.{i}"),
    },
)

FAMILIES = (ESMC,)
