"""NeoBERT (Le Breton et al. 2025): pre-RMSNorm, SwiGLU, rotary positions of neighbouring features, deep and slim."""

from typing import Any

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import roberta
from addnorm.families._family import Family
from addnorm.families._rows import COMMON, HF, Field, HeadRows, Split, SplitHeads, head_dropout, head_width

NORM = {"kind": "rms", "bias": False}


def inner_width(hf: HF) -> int:
    """Two thirds of `intermediate_size`, rounded up to a multiple of 8."""
    return -(-int(2 * hf.get("intermediate_size", 3072) / 3) // 8) * 8


def intermediate_size(config: EncoderConfig) -> int:
    """`inner_width` back."""
    return config.blocks[0].feedforward.width * 3 // 2 if config.blocks else 3072


def width_of_heads(hf: HF) -> int:
    """Errors: a `dim_head` that contradicts the others."""
    width = head_width(hf)
    if hf.get("dim_head", width) != width:
        raise AddnormError(f"config.json: 'dim_head' is {hf['dim_head']!r}; family neobert computes only {width}")
    return width


def rotary(hf: HF) -> dict[str, Any]:
    """Turned by neighbours; a longer text than `max_length` is an error of the original, too."""
    return {"theta": 10000.0, "interleaved": True, "limit": hf["max_length"]}


def fill(hf: HF) -> dict[str, Any]:
    """An output matrix and nothing before it."""
    return {"task": "fill", "outputs": hf["vocab_size"]}


def classify(hf: HF) -> dict[str, Any]:
    """RoBERTa's head with a default of its own."""
    own = hf.get("classifier_dropout")
    return roberta.classify({**hf, "classifier_dropout": 0.1 if own is None else own})


NEOBERT = Family(
    name="neobert",
    architecture="NeoBERT",
    prefix="model",
    fields=(
        Field("vocab_size", "embeddings.vocabulary", 30522),
        Field("hidden_size", "width", 768),
        Field("num_hidden_layers", "depth", 28),
        Field("num_attention_heads", "block.attention.heads", 12),
        Field("norm_eps", "norm.eps block.attention.norm_in.eps block.feedforward.norm_in.eps", 1e-6),
        Field("max_length", "embeddings.max_positions", 1024),
    ),
    fixed={
        "embeddings.positions": None,
        "block.attention.norm_in": NORM,
        "block.attention.bias": False,
        "block.attention.output_bias": False,
        "block.feedforward.norm_in": NORM,
        "block.feedforward.activation": "silu",
        "block.feedforward.gated": True,
        "block.feedforward.bias": False,
        "block.feedforward.output_bias": False,
        "norm": NORM,
    },
    derived={
        "block.attention.head_width": width_of_heads,
        "block.attention.rotary": rotary,
        "block.feedforward.width": inner_width,
    },
    # How weights were drawn, and what was passed to the tokenizer.
    ignored=COMMON - {"max_length", "classifier_dropout"}
    | {"auto_map", "embedding_init_range", "decoder_init_range", "classifier_init_range", "kwargs"}
    | {"pretrained_model_name_or_path", "trust_remote_code"},
    exports={
        "intermediate_size": intermediate_size,
        "dim_head": lambda config: config.blocks[0].attention.head_width if config.blocks else None,
        "classifier_dropout": head_dropout,
    },
    modules={
        "encoder": "embeddings.tokens",
        "transformer_encoder.{i}.attention_norm": "blocks.{i}.attention.norm_in",
        "transformer_encoder.{i}.qkv": SplitHeads("blocks.{i}.attention.query|key|value"),
        "transformer_encoder.{i}.wo": "blocks.{i}.attention.output",
        "transformer_encoder.{i}.ffn_norm": "blocks.{i}.feedforward.norm_in",
        "transformer_encoder.{i}.ffn.w12": Split("blocks.{i}.feedforward.gate|up"),
        "transformer_encoder.{i}.ffn.w3": "blocks.{i}.feedforward.down",
        "layer_norm": "norm",
    },
    heads={
        "NeoBERTLMHead": HeadRows(fill, {"decoder": "head.logits"}),
        "NeoBERTForSequenceClassification": HeadRows(classify, {"dense": "head.dense", "classifier": "head.logits"}),
    },
    carried=("decoder.", "dense.", "classifier."),
)

FAMILIES = (NEOBERT,)
