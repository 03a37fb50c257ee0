"""EuroBERT (Boizard et al. 2025): pre-norm with RMSNorm, SwiGLU, grouped heads, rotary positions, no biases."""

from functools import partial

from addnorm.config import EncoderConfig
from addnorm.families import _rope
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
    choice,
    head_width,
    num_labels,
)

RMS = {"kind": "rms"}
POOLINGS = {"late": "late", "bos": "first", "mean": "mean"}

FIELDS = (
    Field("vocab_size", "embeddings.vocabulary", 128256),
    Field("hidden_size", "width", 768),
    Field("num_hidden_layers", "depth", 12),
    Field("num_attention_heads", "block.attention.heads", 12),
    Field("num_key_value_heads", "block.attention.kv_heads", None),
    Field("intermediate_size", "block.feedforward.width", 3072),
    Field("hidden_act", "block.feedforward.activation", "silu", ACTIVATIONS),
    Field("max_position_embeddings", "embeddings.max_positions", 8192),
    Field("initializer_range", "init.std", 0.02),
    Field("rms_norm_eps", "norm.eps block.attention.norm_in.eps block.feedforward.norm_in.eps", 1e-5),
    Field("attention_bias", "block.attention.bias block.attention.output_bias", False),
    Field("attention_dropout", "block.attention.weights_dropout", 0.0),
    Field("mlp_bias", "block.feedforward.bias block.feedforward.output_bias", False),
)
# The blocks as Llama and what follows its names call them.
BLOCKS = {
    "layers.{i}.self_attn.q_proj|k_proj|v_proj|o_proj": "blocks.{i}.attention.query|key|value|output",
    "layers.{i}.mlp.up_proj|gate_proj|down_proj": "blocks.{i}.feedforward.up|gate|down",
}
SITES = {
    "blocks.{i}.attention.weights": At("layers.{i}.self_attn", 1),
    "blocks.{i}.attention.mix": At("layers.{i}.self_attn.o_proj", input=True),
    "blocks.{i}.feedforward.activation": At("layers.{i}.mlp.act_fn"),
    "blocks.{i}.feedforward.product": At("layers.{i}.mlp.down_proj", input=True),
    "blocks.{i}": At("layers.{i}"),
}


def head_dim(config: EncoderConfig) -> int | None:
    """HF's field for the width of a head, which need not be a share of the stream's."""
    return config.blocks[0].attention.head_width if config.blocks else None


def classify(hf: HF) -> dict[str, object]:
    """Dense and GELU for each token, then their mean; or of one vector a text."""
    pool = choice(hf, "classifier_pooling", "late", POOLINGS)
    head = {"task": "classify", "outputs": num_labels(hf), "pool": pool, "dense": hf["hidden_size"]}
    return head | {"activation": "gelu"}


def pooling(config: EncoderConfig) -> str:
    """How the classifier pools, as HF says it."""
    pool = config.head.pool if config.head else None
    return {ours: theirs for theirs, ours in POOLINGS.items()}.get(str(pool), "late")


TASKS = {
    "MaskedLM": HeadRows(
        lambda hf: {
            "task": "fill",
            "outputs": hf["vocab_size"],
            "tied": hf.get("tie_word_embeddings", False),
            "bias": hf["mlp_bias"],
        },
        {"lm_head": "head.logits"},
        tied={"lm_head.weight": "embeddings.tokens.weight"},
    ),
    "SequenceClassification": HeadRows(
        classify,
        {"dense": "head.dense", "classifier": "head.logits"},
        # Where pooling comes last the classifier shows a row a token, the model itself the logits.
        sites={"head.activation": At("activation"), "head.logits": At("")},
    ),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf)}, {"classifier": "head.logits"}
    ),
}

EUROBERT = Family(
    name="eurobert",
    architecture="EuroBertModel",
    prefix="model",
    fields=FIELDS,
    fixed={
        "embeddings.positions": None,
        "block.attention.norm_in": RMS,
        "block.feedforward.norm_in": RMS,
        "block.feedforward.gated": True,
        "norm": RMS,
    },
    derived={
        "block.attention.head_width": lambda hf: hf.get("head_dim") or head_width(hf),
        "block.attention.rotary": partial(_rope.rotary, 10000.0),
    },
    only={"is_causal": False, "pretraining_tp": 1, **ENCODER_ONLY},
    ignored=COMMON
    | {"auto_map", "bos_token", "eos_token", "pad_token", "mask_token", "mask_token_id", "hidden_dropout"},
    exports={
        "head_dim": head_dim,
        "rope_parameters": _rope.parameters,
        "classifier_pooling": pooling,
    },
    reads=_rope.SPELLINGS,
    older=(Field("clf_pooling", "classifier_pooling", None),),
    modules={
        "embed_tokens": "embeddings.tokens",
        "layers.{i}.input_layernorm": "blocks.{i}.attention.norm_in",
        "layers.{i}.post_attention_layernorm": "blocks.{i}.feedforward.norm_in",
        **BLOCKS,
        "norm": "norm",
    },
    heads=architectures("EuroBert", TASKS),
    carried=("lm_head.", "dense.", "classifier."),
    sites=SITES
    | {
        "embeddings.sum": At("embed_tokens"),
        "embeddings": At("embed_tokens"),
        "blocks.{i}.attention.branch": At("layers.{i}.self_attn", 0),
        "blocks.{i}.attention.add": At("layers.{i}.post_attention_layernorm", input=True),
        "blocks.{i}.feedforward.branch": At("layers.{i}.mlp"),
        "blocks.{i}.feedforward.add": At("layers.{i}"),
    },
)

FAMILIES = (EUROBERT,)
