"""Nomic BERT (Nussbaum et al. 2024): post-norm, SwiGLU, rotary positions, no biases but in norms.

Published files spell their config as GPT-2 does. With `rotary_scaling_factor` longer texts than those of the
training turn by other angles, which is not computed: such texts are refused.
"""

from dataclasses import replace
from typing import Any

from addnorm.families import _rope, bert, eurobert
from addnorm.families._rows import (
    COMMON,
    HF,
    At,
    Field,
    HeadRows,
    Split,
    amend,
    architectures,
    head_dropout,
    head_width,
)

NORMS = {
    "layers.{i}.post_attention_layernorm": "blocks.{i}.attention.norm_out",
    "layers.{i}.post_mlp_layernorm": "blocks.{i}.feedforward.norm_out",
}
EMBEDDINGS = {"embeddings.word_embeddings|token_type_embeddings": "embeddings.tokens|types"}
# The twin of this family and of those that transformers built like it.
TWIN = {
    **EMBEDDINGS,
    "embeddings.LayerNorm": "embeddings.norm",
    **eurobert.BLOCKS,
    **NORMS,
    **bert.POOLER,
}
SITES = eurobert.SITES | {
    "embeddings.sum": At("embeddings.LayerNorm", input=True),
    "embeddings": At("embeddings"),
    "blocks.{i}.attention.branch": At("layers.{i}.post_attention_dropout"),
    "blocks.{i}.attention.add": At("layers.{i}.post_attention_layernorm", input=True),
    "blocks.{i}.feedforward.branch": At("layers.{i}.post_mlp_dropout"),
    "blocks.{i}.feedforward.add": At("layers.{i}.post_mlp_layernorm", input=True),
    "pooler": At("pooler"),
}
OLDER = (
    Field("n_embd", "hidden_size", None),
    Field("n_layer", "num_hidden_layers", None),
    Field("n_head", "num_attention_heads", None),
    Field("n_inner", "intermediate_size", None),
    Field("n_positions", "max_position_embeddings", None),
    Field("activation_function", "hidden_act", None, {"swiglu": "silu", "geglu": "gelu"}),
    Field("resid_pdrop", "hidden_dropout_prob", None),
    Field("embd_pdrop", "hidden_dropout_prob", None),
    Field("attn_pdrop", "attention_probs_dropout_prob", None),
    Field("layer_norm_epsilon", "layer_norm_eps", None),
    Field("rotary_emb_base", "rope_theta", None),
)


def rotary(hf: HF) -> dict[str, Any]:
    """Rotation, with a limit where longer texts are scaled."""
    scaled = hf.get("rotary_scaling_factor") is not None
    return _rope.rotary(1000.0, hf) | {"limit": hf.get("max_trained_positions", 2048) if scaled else None}


def fill(hf: HF) -> dict[str, object]:
    """BERT's, without biases where the original code made it."""
    biased = hf.get("mlp_fc1_bias", True)
    return bert.fill(hf) | {"dense_bias": biased, "bias": biased}


FILL = {
    "cls.predictions.transform.dense|layer_norm": "head.dense|norm",
    "cls.predictions.bias": "head.logits.bias",
    "cls.predictions.decoder": "head.logits",
}

NOMIC_BERT = replace(
    bert.BERT,
    name="nomic_bert",
    architecture="NomicBertModel",
    prefix="nomic_bert|bert",
    fields=amend(
        bert.FIELDS,
        vocab_size={"default": 30528},
        hidden_act={"default": "silu"},
        hidden_dropout_prob={"default": 0.0},
        attention_probs_dropout_prob={"default": 0.0},
        max_position_embeddings={"default": 2048},
    ),
    fixed={
        **bert.FIXED,
        "embeddings.positions": None,
        "block.attention.bias": False,
        "block.attention.output_bias": False,
        "block.feedforward.gated": True,
        "block.feedforward.bias": False,
        "block.feedforward.output_bias": False,
    },
    derived={
        "block.attention.head_width": lambda hf: hf.get("head_dim") or head_width(hf),
        "block.attention.rotary": rotary,
    },
    only={
        "prenorm": False,
        "parallel_block": False,
        "causal": False,
        "use_rms_norm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    ignored=COMMON - {"classifier_dropout"}
    | {
        "auto_map",
        "parallel_block_tied_norm",
        "reorder_and_upcast_attn",
        "dense_seq_output",
        "pad_vocab_size_multiple",
    }
    | {"fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy", "last_layer_subset"}
    | {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"},
    exports={
        "classifier_dropout": head_dropout,
        "head_dim": eurobert.head_dim,
        "rope_parameters": _rope.parameters,
    },
    reads=_rope.SPELLINGS | {"rotary_scaling_factor", "max_trained_positions"},
    older=OLDER,
    aliases={"NomicBertForPreTraining": "NomicBertForMaskedLM"},
    modules={
        **EMBEDDINGS,
        "emb_ln": "embeddings.norm",
        "encoder.layers.{i}.attn.Wqkv": Split("blocks.{i}.attention.query|key|value"),
        "encoder.layers.{i}.attn.out_proj": "blocks.{i}.attention.output",
        "encoder.layers.{i}.norm1": "blocks.{i}.attention.norm_out",
        "encoder.layers.{i}.mlp.fc11|fc12|fc2": "blocks.{i}.feedforward.up|gate|down",
        "encoder.layers.{i}.norm2": "blocks.{i}.feedforward.norm_out",
        **bert.POOLER,
    },
    heads=architectures(
        "NomicBert",
        {
            "MaskedLM": HeadRows(fill, FILL, tied=bert.FILL.tied, sites=bert.FILL.sites),
            "SequenceClassification": bert.TASKS["SequenceClassification"],
            "TokenClassification": bert.TASKS["TokenClassification"],
        },
    ),
    buffers={},
    twin=TWIN,
    sites=SITES,
)

FAMILIES = (NOMIC_BERT,)
