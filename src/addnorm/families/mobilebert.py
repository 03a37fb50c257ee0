"""MobileBERT (Sun et al. 2020): blocks on a narrow stream inside a wide one, gains in place of norms, trigrams."""

from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import bert
from addnorm.families._rows import ACTIVATIONS, HF, At, Field, Numbers, amend, architectures

KINDS = {"no_norm": "affine", "layer_norm": "layer"}
LAYER = "encoder.layer.{i}"


def norm(hf: HF, eps: float | None = None) -> dict[str, Any]:
    """A norm of the model's kind; those without an eps of the config have PyTorch's."""
    return {"kind": KINDS[hf["normalization_type"]], "eps": hf["layer_norm_eps"] if eps is None else eps}


def inner_width(hf: HF) -> int:
    """Of the stream that the units of a block stand on."""
    return hf.get("intra_bottleneck_size", 128) if hf.get("use_bottleneck", True) else hf["hidden_size"]


def head_width(hf: HF) -> int:
    """Of the narrow stream's share. Errors: a `true_hidden_size` that contradicts the others."""
    width, told = inner_width(hf), hf.get("true_hidden_size")
    if told not in (None, width) or width % hf["num_attention_heads"]:
        raise AddnormError(
            f"config.json: blocks are {width} wide, 'true_hidden_size' is {told!r}, 'num_attention_heads' "
            f"{hf['num_attention_heads']}; expected the same width, a multiple of the heads"
        )
    return width // hf["num_attention_heads"]


def queries(hf: HF) -> bool:
    """Whether queries and keys have a way in of their own. Errors: widths that do not fit."""
    if not hf.get("use_bottleneck", True) or hf.get("use_bottleneck_attention", False):
        return False
    if not hf.get("key_query_shared_bottleneck", True):
        raise AddnormError("config.json: a bottleneck for neither queries nor values does not fit their projections")
    return True


def bottleneck(hf: HF) -> dict[str, Any] | None:
    """The unit around a block, where there is one."""
    if not hf.get("use_bottleneck", True):
        return None
    inside = {"width": inner_width(hf), "norm": norm(hf), "queries": queries(hf)}
    return {**inside, "norm_out": norm(hf), "dropout": hf["hidden_dropout_prob"]}


def feedforwards(hf: HF) -> list[dict[str, Any]]:
    """All feed-forward units of a block; the last one's norm has PyTorch's eps."""
    count = hf.get("num_feedforward_networks", 4)
    unit = {"width": hf["intermediate_size"], "activation": ACTIVATIONS[hf["hidden_act"]]}
    outer = 0.0 if hf.get("use_bottleneck", True) else hf["hidden_dropout_prob"]
    return [{**unit, "norm_out": norm(hf)}] * (count - 1) + [{**unit, "norm_out": norm(hf, 1e-5), "dropout": outer}]


def numbers(config: EncoderConfig) -> list[Numbers]:
    """{final}: the last feed-forward unit; {j}, {unit}: each of those before."""
    sets: list[Numbers] = []
    for i, block in enumerate(config.blocks):
        units = list(block.units)[1:]
        sets.append({"i": i, "final": units[-1]})
        sets += [{"i": i, "j": j, "unit": unit} for j, unit in enumerate(units[:-1])]
    return sets


def table_width(hf: HF) -> int | None:
    """Of the token table, where what it holds is projected."""
    width: int = hf.get("embedding_size", 128)
    return width if hf["trigram_input"] or width != hf["hidden_size"] else None


def fill(hf: HF) -> dict[str, Any]:
    """BERT's head; the table is narrower than the stream, and the rest of the features has an output matrix."""
    return bert.fill(hf) | {"own": hf["hidden_size"] - hf.get("embedding_size", 128)}


def classify(hf: HF) -> dict[str, Any]:
    """From the pooler, or, where that does nothing, from the first token."""
    pooled = hf.get("classifier_activation", True)
    return bert.TASKS["SequenceClassification"].config(hf) | {"pool": "pooler" if pooled else "first"}


def outer(config: EncoderConfig, name: str, default: Any) -> Any:
    """A field of the blocks' bottleneck."""
    found = config.blocks[0].bottleneck if config.blocks else None
    return default if found is None else getattr(found, name)


FILL = replace(
    bert.FILL,
    config=fill,
    modules={**bert.FILL.modules, "cls.predictions.dense.weight": "head.logits.own"},
    sites={**bert.FILL.sites, "head.logits": At("cls.predictions")},
)
MOBILEBERT = replace(
    bert.BERT,
    name="mobilebert",
    architecture="MobileBertModel",
    prefix="mobilebert",
    fields=(
        *amend(
            bert.FIELDS,
            hidden_size={"default": 512},
            num_hidden_layers={"default": 24},
            num_attention_heads={"default": 4},
            intermediate_size={"default": 512},
            hidden_act={"default": "relu"},
            hidden_dropout_prob={"default": 0.0, "paths": "embeddings.dropout"},
            layer_norm_eps={"paths": "block.attention.norm_out.eps"},
        ),
        Field("normalization_type", "embeddings.norm.kind", "no_norm", KINDS),
        Field("trigram_input", "embeddings.trigrams", True),
    ),
    fixed={"embeddings.positions": "learned"},
    derived={
        "block.attention.head_width": head_width,
        "block.attention.value_width": lambda hf: hf["hidden_size"] if queries(hf) else None,
        "block.attention.norm_out": norm,
        "block.attention.dropout": lambda hf: feedforwards(hf)[-1]["dropout"],
        "block.feedforward": lambda hf: feedforwards(hf)[0],
        "block.further": lambda hf: feedforwards(hf)[1:],
        "block.bottleneck": bottleneck,
        "embeddings.norm": lambda hf: norm(hf, 1e-5),
        "embeddings.tokens_width": table_width,
        "embeddings.merge": lambda hf: table_width(hf) is not None,
    },
    exports={
        **bert.BERT.exports,
        "embedding_size": lambda config: config.embeddings.tokens_width or config.width,
        "use_bottleneck": lambda config: outer(config, "width", None) is not None,
        "intra_bottleneck_size": lambda config: outer(config, "width", 128),
        "true_hidden_size": lambda config: outer(config, "width", config.width),
        "use_bottleneck_attention": lambda config: not outer(config, "queries", True),
        "key_query_shared_bottleneck": lambda config: outer(config, "queries", True),
        "num_feedforward_networks": lambda config: 1 + (len(config.blocks[0].further) if config.blocks else 0),
        "classifier_activation": lambda config: config.head is None or config.head.pool != "first",
    },
    modules={
        **bert.EMBEDDINGS,
        "embeddings.embedding_transformation": "embeddings.merge",
        f"{LAYER}.bottleneck.input.dense|LayerNorm": "blocks.{i}.bottleneck.entry|entry_norm",
        f"{LAYER}.bottleneck.attention.dense|LayerNorm": "blocks.{i}.bottleneck.queries|queries_norm",
        f"{LAYER}.attention.self.query|key|value": "blocks.{i}.attention.query|key|value",
        f"{LAYER}.attention.output.dense|LayerNorm": "blocks.{i}.attention.output|norm_out",
        f"{LAYER}.ffn.{{j}}.intermediate.dense": "blocks.{i}.{unit}.up",
        f"{LAYER}.ffn.{{j}}.output.dense|LayerNorm": "blocks.{i}.{unit}.down|norm_out",
        f"{LAYER}.intermediate.dense": "blocks.{i}.{final}.up",
        f"{LAYER}.output.dense|LayerNorm": "blocks.{i}.{final}.down|norm_out",
        f"{LAYER}.output.bottleneck.dense|LayerNorm": "blocks.{i}.bottleneck.exit|norm_out",
        **bert.POOLER,
    },
    numbers=numbers,
    heads=architectures(
        "MobileBert",
        bert.TASKS
        | {
            "MaskedLM": FILL,
            "PreTraining": FILL,
            "SequenceClassification": replace(bert.TASKS["SequenceClassification"], config=classify),
        },
    ),
    # A way in, and a projection of the tokens, that a config can leave without use.
    carried=(*bert.BERT.carried, f"{LAYER}.bottleneck.attention.", "embeddings.embedding_transformation."),
    sites={
        **{site: at for site, at in bert.SITES.items() if not site.startswith("blocks.{i}.feedforward")},
        "blocks.{i}.attention.branch": At(f"{LAYER}.attention.output.dense"),
        "blocks.{i}.{unit}.activation": At(f"{LAYER}.ffn.{{j}}.intermediate"),
        "blocks.{i}.{unit}.branch": At(f"{LAYER}.ffn.{{j}}.output.dense"),
        "blocks.{i}.{unit}.add": At(f"{LAYER}.ffn.{{j}}.output.LayerNorm", input=True),
        "blocks.{i}.{final}.activation": At(f"{LAYER}.intermediate"),
        "blocks.{i}.{final}.branch": At(f"{LAYER}.output.dense"),
        "blocks.{i}.{final}.add": At(f"{LAYER}.output.LayerNorm", input=True),
        "blocks.{i}.bottleneck.branch": At(f"{LAYER}.output.bottleneck.dropout"),
        "blocks.{i}.bottleneck.add": At(f"{LAYER}.output.bottleneck.LayerNorm", input=True),
    },
)

FAMILIES = (MOBILEBERT,)
