"""Jina embeddings v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions and low-rank updates for tasks.

Its own code calls it `xlm-roberta` and keeps the updates in the weights file; see `addnorm.lora`.
"""

from dataclasses import replace
from functools import partial

from addnorm import lora
from addnorm.families import _rope, bert, nomic_bert, roberta
from addnorm.families._rows import At, Field, Split, amend, architectures

BLOCKS = {
    "layers.{i}.mlp.fc1|fc2": "blocks.{i}.feedforward.up|down",
    "layers.{i}.self_attn.q_proj|k_proj|v_proj|o_proj": "blocks.{i}.attention.query|key|value|output",
}

JINA_V3 = replace(
    bert.BERT,
    name="jina_embeddings_v3",
    architecture="JinaEmbeddingsV3Model",
    prefix="roberta",
    fields=amend(
        bert.FIELDS,
        vocab_size={"default": 250002},
        hidden_size={"default": 1024},
        num_hidden_layers={"default": 24},
        num_attention_heads={"default": 16},
        intermediate_size={"default": 4096},
        max_position_embeddings={"default": 8194},
        type_vocab_size={"default": 1},
        layer_norm_eps={"default": 1e-5},
    ),
    fixed={**bert.FIXED, "embeddings.positions": None},
    derived={**bert.BERT.derived, "block.attention.rotary": partial(_rope.rotary, 20000.0)},
    only={"position_embedding_type": "rotary", "emb_pooler": None},
    ignored=bert.BERT.ignored
    | {"auto_map", "use_flash_attn", "use_reentrant", "matryoshka_dimensions", "truncate_dim"}
    | lora.FIELDS,
    exports={**bert.BERT.exports, "rope_parameters": _rope.parameters},
    reads=_rope.SPELLINGS,
    options={"task": lora.TASK},
    updates=True,
    older=(Field("rotary_emb_base", "rope_theta", None),),
    also=({"model_type": "xlm-roberta", "position_embedding_type": "rotary"},),
    aliases={f"XLMRobertaFor{task}": f"JinaEmbeddingsV3For{task}" for task in roberta.TASKS},
    modules={
        **nomic_bert.EMBEDDINGS,
        "emb_ln": "embeddings.norm",
        "encoder.layers.{i}.mixer.Wqkv": Split("blocks.{i}.attention.query|key|value"),
        "encoder.layers.{i}.mixer.out_proj": "blocks.{i}.attention.output",
        "encoder.layers.{i}.norm1": "blocks.{i}.attention.norm_out",
        "encoder.layers.{i}.mlp.fc1|fc2": "blocks.{i}.feedforward.up|down",
        "encoder.layers.{i}.norm2": "blocks.{i}.feedforward.norm_out",
        **bert.POOLER,
    },
    heads=architectures("JinaEmbeddingsV3", roberta.TASKS),
    buffers={},
    carried=roberta.ROBERTA.carried,
    twin={
        **nomic_bert.EMBEDDINGS,
        "embeddings.LayerNorm": "embeddings.norm",
        **BLOCKS,
        **nomic_bert.NORMS,
        **bert.POOLER,
    },
    sites={site: at for site, at in nomic_bert.SITES.items() if not site.endswith((".activation", ".product"))}
    | {"blocks.{i}.feedforward.activation": At("layers.{i}.mlp.activation_fn")},
)

FAMILIES = (JINA_V3,)
