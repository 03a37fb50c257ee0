"""DeBERTa-v2 and v3 (He et al. 2021, 2023): buckets of distances, shared projections, in v2-xlarge a convolution."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.families import bert, deberta
from addnorm.families._rows import ACTIVATIONS, HF, At, amend, architectures


def table(hf: HF) -> dict[str, Any] | None:
    """A row for each distance or, with `position_buckets`, each bucket; normed where `norm_rel_ebd` says so."""
    own = deberta.table(hf)
    if own is None:
        return None
    if (buckets := hf.get("position_buckets", -1)) > 0:
        own |= {"span": buckets, "max_distance": own["span"]}
    normed = "layer_norm" in [word.strip() for word in hf.get("norm_rel_ebd", "none").lower().split("|")]
    return own | {"norm": bert.NORM | {"eps": hf["layer_norm_eps"]} if normed else None}


def disentangled(hf: HF) -> dict[str, Any] | None:
    """DeBERTa's terms; with `share_att_key` distances are projected as contents are."""
    own = deberta.disentangled(hf)
    return own and own | {"key_bias": True, "shared": bool(hf.get("share_att_key", False))}


def blocks(hf: HF) -> Sequence[Mapping[str, Any]]:
    """A convolution beside the first block, if any."""
    own: list[dict[str, Any]] = [{} for _ in range(hf["num_hidden_layers"])]
    if own and (kernel := hf.get("conv_kernel_size", 0)) > 0:
        convolution = {"kernel": kernel, "groups": hf.get("conv_groups", 1), "dropout": hf["hidden_dropout_prob"]}
        convolution |= {"activation": ACTIVATIONS[hf.get("conv_act", "tanh")]}
        own[0] = {"convolution": convolution | {"norm_out": bert.NORM | {"eps": hf["layer_norm_eps"]}}}
    return own


def convolution(config: EncoderConfig, field: str, default: Any) -> Any:
    """A field of the first block's convolution."""
    own = config.blocks[0].convolution if config.blocks else None
    return getattr(own, field) if own else default


def shared(config: EncoderConfig) -> bool:
    """`share_att_key` of a config of ours."""
    own = config.blocks[0].attention.disentangled if config.blocks else None
    return bool(own and own.shared)


def buckets(config: EncoderConfig) -> int:
    """`position_buckets` of a config of ours."""
    own = config.relative
    return own.span if own and own.max_distance else -1


def longest(config: EncoderConfig) -> int:
    """`max_relative_positions` of a config of ours."""
    own = config.relative
    return -1 if own is None else own.max_distance or own.span


def sites(config: EncoderConfig) -> Mapping[str, At]:
    """BERT's, and the convolution's, after which the first block ends."""
    beside = {
        "blocks.0.convolution.conv": At("encoder.conv.dropout"),
        "blocks.0.convolution.add": At("encoder.conv.LayerNorm", input=True),
        "blocks.0": At("encoder.conv"),
    }
    return {**bert.SITES, **(beside if convolution(config, "kernel", 0) else {})}


V2 = replace(
    deberta.DEBERTA,
    name="deberta-v2",
    architecture="DebertaV2Model",
    fields=amend(
        deberta.DEBERTA.fields,
        vocab_size={"default": 128100},
        hidden_size={"default": 1536},
        num_hidden_layers={"default": 24},
        num_attention_heads={"default": 24},
        intermediate_size={"default": 6144},
    ),
    fixed=bert.FIXED,
    derived={**deberta.DEBERTA.derived, "block.attention.disentangled": disentangled, "relative": table},
    blocks=blocks,
    only=bert.BERT.only,
    ignored=deberta.DEBERTA.ignored | {"attention_head_size"},
    exports={
        **deberta.DEBERTA.exports,
        "max_relative_positions": longest,
        "position_buckets": buckets,
        "norm_rel_ebd": lambda config: "layer_norm" if config.relative and config.relative.norm else "none",
        "share_att_key": shared,
        "conv_kernel_size": lambda config: convolution(config, "kernel", 0),
        "conv_groups": lambda config: convolution(config, "groups", 1),
        "conv_act": lambda config: deberta.hf_activation(convolution(config, "activation", "tanh")),
    },
    modules={
        **deberta.MODULES,
        "encoder.LayerNorm": "relative.norm",
        "encoder.conv.conv|LayerNorm": "blocks.0.convolution.conv|norm_out",
        "encoder.layer.{i}.attention.self.query_proj|key_proj|value_proj": "blocks.{i}.attention.query|key|value",
        "encoder.layer.{i}.attention.self.pos_key_proj|pos_query_proj": (
            "blocks.{i}.attention.disentangled.position_key|position_query"
        ),
    },
    heads=architectures("DebertaV2", deberta.TASKS),
    sites=sites,
)

FAMILIES = (V2,)
