"""JinaBERT (Günther et al. 2023): BERT with ALiBi and gated feed-forwards; its files say `bert`."""

from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.families import bert
from addnorm.families._rows import ACTIVATIONS, HF, Field, Split, architectures, without

BACK = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}


def fill(hf: HF) -> dict[str, Any]:
    """BERT's head; only there `hidden_act` counts."""
    return bert.fill({**hf, "hidden_act": hf.get("hidden_act", "gelu")})


def activation(config: EncoderConfig) -> str:
    """Of that head."""
    head = config.head
    return BACK[head.activation] if head is not None and head.activation else "gelu"


JINA_BERT = replace(
    bert.BERT,
    name="jina_bert",
    architecture="JinaBertModel",
    fields=(
        *without(bert.FIELDS, "hidden_act"),
        Field("feed_forward_type", "block.feedforward.activation", "original", {"geglu": "gelu", "reglu": "relu"}),
    ),
    fixed={
        **bert.FIXED,
        "embeddings.positions": None,
        "position_bias": {"kind": "alibi"},
        "block.feedforward.gated": True,
        "block.feedforward.bias": False,
    },
    only={**bert.BERT.only, "position_embedding_type": "alibi"},
    ignored=bert.BERT.ignored - {"model_type"} | {"auto_map", "emb_pooler", "attn_implementation"},
    exports={
        **bert.BERT.exports,
        "model_type": lambda config: "bert",
        "position_embedding_type": lambda config: "alibi",
        "hidden_act": activation,
    },
    also=({"model_type": "bert", "position_embedding_type": "alibi"},),
    modules={
        **{theirs: ours for theirs, ours in bert.EMBEDDINGS.items() if ours != "embeddings.positions"},
        "encoder.layer.{i}.attention.self.query|key|value": "blocks.{i}.attention.query|key|value",
        "encoder.layer.{i}.attention.output.dense|LayerNorm": "blocks.{i}.attention.output|norm_out",
        "encoder.layer.{i}.mlp.gated_layers": Split("blocks.{i}.feedforward.gate|up"),
        "encoder.layer.{i}.mlp.wo|layernorm": "blocks.{i}.feedforward.down|norm_out",
        **bert.POOLER,
    },
    heads=architectures(
        "JinaBert",
        {**bert.TASKS, "MaskedLM": replace(bert.FILL, config=fill), "PreTraining": replace(bert.FILL, config=fill)},
    ),
    sites={},
)

FAMILIES = (JINA_BERT,)
