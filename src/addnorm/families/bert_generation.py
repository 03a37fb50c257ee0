"""BERT for generation (Rothe et al. 2020), its encoder: BERT without token types and pooler."""

from dataclasses import replace

from addnorm.families import bert
from addnorm.families._rows import amend, without

SIZES = {
    "vocab_size": 50358,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}

BERT_GENERATION = replace(
    bert.BERT,
    name="bert-generation",
    architecture="BertGenerationEncoder",
    fields=amend(without(bert.FIELDS, "type_vocab_size"), **{name: {"default": n} for name, n in SIZES.items()}),
    ignored=bert.BERT.ignored | {"type_vocab_size"},
    present={},
    modules={
        **{theirs: ours for theirs, ours in bert.EMBEDDINGS.items() if ours != "embeddings.types"},
        **bert.BLOCKS,
    },
    heads={},
    carried=("lm_head.",),
)

FAMILIES = (BERT_GENERATION,)
