"""ModernBERT (Warner et al. 2024): pre-norm, gated, rotary; local and global attention in turn, a theta for each."""

from collections.abc import Sequence
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import _rope
from addnorm.families._family import Family
from addnorm.families._rows import (
    ACTIVATIONS,
    COMMON,
    HF,
    At,
    Field,
    HeadRows,
    Split,
    architectures,
    choice,
    head_width,
    num_labels,
)

NORM = {"kind": "layer"}
POOLINGS = {"cls": "first", "mean": "mean"}
GLOBAL, LOCAL = "full_attention", "sliding_attention"
THETAS = {GLOBAL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}

FIELDS = (
    Field("vocab_size", "embeddings.vocabulary", 50368),
    Field("hidden_size", "width", 768),
    Field("num_hidden_layers", "depth", 22),
    Field("num_attention_heads", "block.attention.heads", 12),
    Field("intermediate_size", "block.feedforward.width", 1152),
    Field("hidden_activation", "block.feedforward.activation", "gelu", ACTIVATIONS),
    Field("max_position_embeddings", "embeddings.max_positions", 8192),
    Field("initializer_range", "init.std", 0.02),
    Field("norm_eps", "norm.eps embeddings.norm.eps block.attention.norm_in.eps block.feedforward.norm_in.eps", 1e-5),
    Field(
        "norm_bias",
        "norm.bias embeddings.norm.bias block.attention.norm_in.bias block.feedforward.norm_in.bias",
        False,
    ),
    Field("attention_bias", "block.attention.bias block.attention.output_bias", False),
    Field("attention_dropout", "block.attention.dropout block.attention.weights_dropout", 0.0),
    Field("embedding_dropout", "embeddings.dropout", 0.0),
    Field("mlp_bias", "block.feedforward.bias block.feedforward.output_bias", False),
    Field("mlp_dropout", "block.feedforward.inner_dropout", 0.0),
)


def kinds(hf: HF) -> list[str]:
    """Which blocks see everything and which a window, in either spelling."""
    depth, every = hf["num_hidden_layers"], hf.get("global_attn_every_n_layers", 3)
    told = hf.get("layer_types")
    if told is None and type(every) is int and every > 0:
        return [LOCAL if i % every else GLOBAL for i in range(depth)]
    if not isinstance(told, list) or len(told) != depth or not set(told) <= {GLOBAL, LOCAL}:
        raise AddnormError(
            f"config.json: 'layer_types' is {told!r}, 'global_attn_every_n_layers' {every!r}; expected {GLOBAL} or "
            f"{LOCAL} for each of {depth} blocks, or a whole number above 0"
        )
    return told


def rotary(hf: HF, kind: str) -> dict[str, Any]:
    """The rotation of one kind of block."""
    name, default = THETAS[kind]
    theta = hf.get(name, default) or hf.get(THETAS[GLOBAL][0], THETAS[GLOBAL][1])
    told = (hf.get("rope_parameters") or {}).get(kind) or {}
    return _rope.read({**told, **(hf.get("rope_scaling") or {})}, theta, head_width(hf))


def blocks(hf: HF) -> Sequence[dict[str, Any]]:
    """Windows and rotations in turn; the first attention has no norm, as the embeddings end with one."""
    window = hf.get("local_attention", 128) // 2
    own = [
        {"attention.window": window if kind == LOCAL else None, "attention.rotary": rotary(hf, kind)}
        for kind in kinds(hf)
    ]
    return [row | ({} if i else {"attention.norm_in": None}) for i, row in enumerate(own)]


def layer_types(config: EncoderConfig) -> list[str]:
    """HF's names of the kinds of blocks."""
    return [GLOBAL if block.attention.window is None else LOCAL for block in config.blocks]


def local_attention(config: EncoderConfig) -> int:
    """Both sides of the window."""
    return next((2 * block.attention.window for block in config.blocks if block.attention.window is not None), 128)


def rope_parameters(config: EncoderConfig) -> dict[str, Any]:
    """The rotation of each kind of block."""
    own = {kind: block.attention.rotary for kind, block in zip(layer_types(config), config.blocks, strict=True)}
    return {kind: _rope.write(rotary) for kind, rotary in own.items()}


def activation(config: EncoderConfig) -> str:
    """HF's name of the head's activation."""
    own = config.head.activation if config.head else "gelu"
    return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == own), "gelu")


def head(hf: HF, **task: Any) -> dict[str, object]:
    """Dense, activation, norm, then what the task asks for."""
    return {
        "dense": hf["hidden_size"],
        "dense_bias": hf.get("classifier_bias", False),
        "activation": choice(hf, "classifier_activation", "gelu", ACTIVATIONS),
        "norm": NORM | {"eps": hf["norm_eps"], "bias": hf["norm_bias"]},
        "dropout": hf.get("classifier_dropout", 0.0),
        **task,
    }


def fill(hf: HF) -> dict[str, object]:
    """The token table, or a matrix of its own, after the head."""
    tied, bias = hf.get("tie_word_embeddings", True), hf.get("decoder_bias", True)
    return head(hf, task="fill", outputs=hf["vocab_size"], tied=tied, bias=bias, dropout=0.0)


def classify(hf: HF) -> dict[str, object]:
    """The first token or the mean, through the head."""
    pool = choice(hf, "classifier_pooling", "cls", POOLINGS)
    return head(hf, task="classify", outputs=num_labels(hf), pool=pool)


HEAD = {"head.dense|norm": "head.dense|norm"}
CLASSIFIER = {**HEAD, "classifier": "head.logits"}
SITES = {"head.activation": At("head.act")}
TIED = {"decoder.weight": "embeddings.tokens.weight"}
TASKS = {
    "MaskedLM": HeadRows(fill, {**HEAD, "decoder": "head.logits"}, tied=TIED, sites=SITES),
    "SequenceClassification": HeadRows(classify, CLASSIFIER, sites=SITES),
    "TokenClassification": HeadRows(lambda hf: head(hf, task="tag", outputs=num_labels(hf)), CLASSIFIER, sites=SITES),
    "QuestionAnswering": HeadRows(lambda hf: head(hf, task="answer", outputs=2), CLASSIFIER, sites=SITES),
}

MODERNBERT = Family(
    name="modernbert",
    architecture="ModernBertModel",
    prefix="model",
    fields=FIELDS,
    fixed={
        "embeddings.positions": None,
        "embeddings.norm": NORM,
        "block.attention.norm_in": NORM,
        "block.feedforward.norm_in": NORM,
        "block.feedforward.gated": True,
        "norm": NORM,
    },
    derived={"block.attention.head_width": head_width},
    blocks=blocks,
    ignored=COMMON - {"classifier_dropout"}
    | {"cls_token_id", "mask_token_id", "deterministic_flash_attn", "initializer_cutoff_factor", "layer_norm_eps"}
    | {"position_embedding_type", "reference_compile", "repad_logits_with_grad"}
    | {"sparse_prediction", "sparse_pred_ignore_index"},
    exports={
        "layer_types": layer_types,
        "local_attention": local_attention,
        "rope_parameters": rope_parameters,
        "decoder_bias": lambda config: config.head.bias if config.head else True,
        "classifier_pooling": lambda config: "mean" if config.head and config.head.pool == "mean" else "cls",
        "classifier_dropout": lambda config: config.head.dropout if config.head else 0.0,
        "classifier_bias": lambda config: config.head.dense_bias if config.head else False,
        "classifier_activation": activation,
    },
    reads=frozenset({"global_attn_every_n_layers", "rope_scaling", *(name for name, _ in THETAS.values())}),
    modules={
        "embeddings.tok_embeddings|norm": "embeddings.tokens|norm",
        "layers.{i}.attn_norm": "blocks.{i}.attention.norm_in",
        "layers.{i}.attn.Wqkv": Split("blocks.{i}.attention.query|key|value"),
        "layers.{i}.attn.Wo": "blocks.{i}.attention.output",
        "layers.{i}.mlp_norm": "blocks.{i}.feedforward.norm_in",
        "layers.{i}.mlp.Wi": Split("blocks.{i}.feedforward.gate|up"),
        "layers.{i}.mlp.Wo": "blocks.{i}.feedforward.down",
        "final_norm": "norm",
    },
    heads=architectures("ModernBert", TASKS),
    carried=("head.", "decoder.", "classifier."),
    sites={
        "embeddings.sum": At("embeddings.norm", input=True),
        "embeddings": At("embeddings"),
        "blocks.{i}.attention.weights": At("layers.{i}.attn", 1),
        "blocks.{i}.attention.mix": At("layers.{i}.attn.Wo", input=True),
        "blocks.{i}.attention.branch": At("layers.{i}.attn", 0),
        "blocks.{i}.attention.add": At("layers.{i}.mlp_norm", input=True),
        "blocks.{i}.feedforward.activation": At("layers.{i}.mlp.act"),
        "blocks.{i}.feedforward.product": At("layers.{i}.mlp.Wo", input=True),
        "blocks.{i}.feedforward.branch": At("layers.{i}.mlp"),
        "blocks.{i}.feedforward.add": At("layers.{i}"),
        "blocks.{i}": At("layers.{i}"),
    },
)

FAMILIES = (MODERNBERT,)
