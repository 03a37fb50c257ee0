"""RoBERTa with norms before the sub-layers (Wettig et al. 2023 trained its checkpoints)."""

from dataclasses import replace

from addnorm.families import bert, megatron_bert, roberta
from addnorm.families._rows import amend, architectures

ROBERTA_PRELAYERNORM = replace(
    roberta.ROBERTA,
    name="roberta-prelayernorm",
    architecture="RobertaPreLayerNormModel",
    prefix="roberta_prelayernorm",
    fields=amend(roberta.ROBERTA.fields, layer_norm_eps={"paths": f"embeddings.norm.eps {megatron_bert.EPS}"}),
    fixed={**megatron_bert.FIXED, "embeddings.norm": bert.NORM},
    modules={
        **bert.EMBEDDINGS,
        **megatron_bert.BLOCKS,
        "encoder.layer.{i}.attention.LayerNorm": "blocks.{i}.attention.norm_in",
        "encoder.layer.{i}.intermediate.LayerNorm": "blocks.{i}.feedforward.norm_in",
        "LayerNorm": "norm",
        **bert.POOLER,
    },
    heads=architectures("RobertaPreLayerNorm", roberta.TASKS),
    sites={**megatron_bert.SITES, "embeddings.sum": bert.SITES["embeddings.sum"]},
)

FAMILIES = (ROBERTA_PRELAYERNORM,)
