"""Megatron-BERT (Shoeybi et al. 2019): pre-norm BERT with a final norm and none in the embeddings."""

from dataclasses import replace

from addnorm.families import bert
from addnorm.families._rows import At, amend, architectures

FIXED = {
    "embeddings.positions": "learned",
    "block.attention.norm_in": bert.NORM,
    "block.feedforward.norm_in": bert.NORM,
    "norm": bert.NORM,
}
EPS = "block.attention.norm_in.eps block.feedforward.norm_in.eps norm.eps"
# A pre-norm block in BERT's names, without its norms, which each family calls otherwise.
BLOCKS = {
    "encoder.layer.{i}.attention.self.query|key|value": "blocks.{i}.attention.query|key|value",
    "encoder.layer.{i}.attention.output.dense": "blocks.{i}.attention.output",
    "encoder.layer.{i}.intermediate.dense": "blocks.{i}.feedforward.up",
    "encoder.layer.{i}.output.dense": "blocks.{i}.feedforward.down",
}
EMBEDDINGS = {theirs: ours for theirs, ours in bert.EMBEDDINGS.items() if ours != "embeddings.norm"}
SITES = {
    **bert.SITES,
    "embeddings.sum": At("embeddings.dropout", input=True),
    "blocks.{i}.attention.add": At("encoder.layer.{i}.attention.output"),
    "blocks.{i}.feedforward.add": At("encoder.layer.{i}.output"),
}

MEGATRON_BERT = replace(
    bert.BERT,
    name="megatron-bert",
    architecture="MegatronBertModel",
    fields=amend(
        bert.FIELDS,
        vocab_size={"default": 29056},
        hidden_size={"default": 1024},
        num_hidden_layers={"default": 24},
        num_attention_heads={"default": 16},
        intermediate_size={"default": 4096},
        layer_norm_eps={"paths": EPS},
    ),
    fixed=FIXED,
    ignored=bert.BERT.ignored | {"tokenizer_type"},
    modules={
        **EMBEDDINGS,
        **BLOCKS,
        "encoder.layer.{i}.attention.ln": "blocks.{i}.attention.norm_in",
        "encoder.layer.{i}.ln": "blocks.{i}.feedforward.norm_in",
        "encoder.ln": "norm",
        **bert.POOLER,
    },
    heads=architectures("MegatronBert", bert.TASKS),
    sites=SITES,
)

FAMILIES = (MEGATRON_BERT,)
