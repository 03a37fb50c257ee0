"""GTE (Zhang et al. 2024, mGTE): post-norm, gated GELU, rotary positions; its own code calls it `new`."""

from dataclasses import replace
from functools import partial

from addnorm.families import _rope, bert, nomic_bert, roberta
from addnorm.families._rows import COMMON, HeadRows, Split, amend, architectures, head_dropout

FILL = HeadRows(
    roberta.TASKS["MaskedLM"].config,
    {"lm_head.dense": "head.dense", "lm_head.norm": "head.norm", "lm_head.layer_norm": "head.norm"}
    | {"lm_head.decoder": "head.logits"},
    tied=roberta.TASKS["MaskedLM"].tied,
)
TASKS = {
    "MaskedLM": FILL,
    "SequenceClassification": bert.TASKS["SequenceClassification"],
    "TokenClassification": bert.TASKS["TokenClassification"],
}
DROPOUTS = "embeddings.dropout block.attention.dropout block.feedforward.dropout block.feedforward.inner_dropout"

GTE = replace(
    bert.BERT,
    name="gte",
    architecture="GteModel",
    prefix="gte|new",
    fields=amend(
        bert.FIELDS,
        vocab_size={"default": 250048},
        type_vocab_size={"default": 1, "least": 0},
        hidden_dropout_prob={"paths": DROPOUTS},
        attention_probs_dropout_prob={"default": 0.0},
        max_position_embeddings={"default": 8192},
    ),
    fixed={
        **bert.FIXED,
        "embeddings.positions": None,
        "block.feedforward.gated": True,
        "block.feedforward.bias": False,
    },
    derived={**bert.BERT.derived, "block.attention.rotary": partial(_rope.rotary, 160000.0)},
    only={
        "position_embedding_type": "rope",
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "pack_qkv": True,
    },
    ignored=COMMON - {"classifier_dropout"}
    | {"auto_map", "logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"},
    exports={"classifier_dropout": head_dropout, "rope_parameters": _rope.parameters},
    reads=_rope.SPELLINGS,
    also=({"model_type": "new"},),
    aliases={f"NewFor{task}": f"GteFor{task}" for task in TASKS},
    modules={
        **nomic_bert.EMBEDDINGS,
        "embeddings.LayerNorm": "embeddings.norm",
        "encoder.layer.{i}.attention.qkv_proj": Split("blocks.{i}.attention.query|key|value"),
        "encoder.layer.{i}.attention.o_proj": "blocks.{i}.attention.output",
        "encoder.layer.{i}.attn_ln": "blocks.{i}.attention.norm_out",
        "encoder.layer.{i}.mlp.up_gate_proj": Split("blocks.{i}.feedforward.up|gate"),
        "encoder.layer.{i}.mlp.down_proj": "blocks.{i}.feedforward.down",
        "encoder.layer.{i}.mlp_ln": "blocks.{i}.feedforward.norm_out",
        **bert.POOLER,
    },
    heads=architectures("Gte", TASKS),
    buffers={},
    carried=("lm_head.", "classifier."),
    twin=nomic_bert.TWIN,
    sites=nomic_bert.SITES,
)

FAMILIES = (GTE,)
