"""XLM-RoBERTa-XL (Goyal et al. 2021): pre-norm, no norm in the embeddings, no dropout after the feed-forward."""

from dataclasses import replace

from addnorm.families import bert, megatron_bert, roberta
from addnorm.families._rows import At, amend, architectures

XLM_ROBERTA_XL = replace(
    roberta.ROBERTA,
    name="xlm-roberta-xl",
    architecture="XLMRobertaXLModel",
    fields=amend(
        roberta.ROBERTA.fields,
        vocab_size={"default": 250880},
        hidden_size={"default": 2560},
        num_hidden_layers={"default": 36},
        num_attention_heads={"default": 32},
        intermediate_size={"default": 10240},
        hidden_dropout_prob={"paths": "embeddings.dropout block.attention.dropout"},
        max_position_embeddings={"default": 514},
        type_vocab_size={"default": 1},
        layer_norm_eps={"default": 1e-5, "paths": megatron_bert.EPS},
    ),
    fixed=megatron_bert.FIXED,
    modules={
        **megatron_bert.EMBEDDINGS,
        **megatron_bert.BLOCKS,
        "encoder.layer.{i}.attention.self_attn_layer_norm": "blocks.{i}.attention.norm_in",
        "encoder.layer.{i}.LayerNorm": "blocks.{i}.feedforward.norm_in",
        "encoder.LayerNorm": "norm",
        **bert.POOLER,
    },
    heads=architectures("XLMRobertaXL", roberta.TASKS),
    sites={
        **megatron_bert.SITES,
        "blocks.{i}.feedforward.branch": At("encoder.layer.{i}.output.dense"),
    },
)

FAMILIES = (XLM_ROBERTA_XL,)
