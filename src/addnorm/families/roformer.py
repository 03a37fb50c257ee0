"""RoFormer (Su et al. 2021): BERT with rotary positions, neighbouring features as pairs, a table made in float64."""

from dataclasses import replace

import torch
from torch import Tensor

from addnorm.config import EncoderConfig
from addnorm.families import bert
from addnorm.families._rows import (
    ACTIVATIONS,
    COMMON,
    ENCODER_ONLY,
    HF,
    At,
    Field,
    HeadRows,
    amend,
    architectures,
    num_labels,
)

ROTARY = {"theta": 10000.0, "interleaved": True, "exact": True}


def width(hf: HF) -> int:
    """Of the embedding tables."""
    own: int | None = hf.get("embedding_size")
    return hf["hidden_size"] if own is None else own


def waves(config: EncoderConfig) -> Tensor:
    """The table of angles: for each position sin of all pairs, then cos."""
    head = config.blocks[0].attention.head_width
    even = torch.arange(0, head, 2, dtype=torch.float64)
    angles = torch.arange(config.embeddings.max_positions)[:, None] / ROTARY["theta"] ** (even / head)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def classify(hf: HF) -> dict[str, object]:
    """The first token, dense, the blocks' activation, with dropout before and after."""
    head = {"task": "classify", "outputs": num_labels(hf), "pool": "first", "dense": hf["hidden_size"]}
    dropout = hf["hidden_dropout_prob"]
    return head | {
        "activation": ACTIVATIONS[hf["hidden_act"]],
        "dropout_in": dropout,
        "dropout": dropout,
    }


TASKS = {
    "MaskedLM": replace(bert.FILL, config=lambda hf: bert.fill(hf) | {"dense": width(hf)}),
    "SequenceClassification": HeadRows(classify, {"classifier.dense|out_proj": "head.dense|logits"}),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": hf["hidden_dropout_prob"]}, bert.CLASSIFIER
    ),
    "QuestionAnswering": bert.TASKS["QuestionAnswering"],
}
EMBEDDINGS = {
    "embeddings.word_embeddings|token_type_embeddings|LayerNorm": "embeddings.tokens|types|norm",
    "embeddings_project": "embeddings.projection",
}

ROFORMER = replace(
    bert.BERT,
    name="roformer",
    architecture="RoFormerModel",
    prefix="roformer",
    fields=(
        *amend(bert.FIELDS, vocab_size={"default": 50000}, max_position_embeddings={"default": 1536}),
        Field("rotary_value", "block.attention.rotary.value", False),
    ),
    fixed={**bert.FIXED, "embeddings.positions": None, "block.attention.rotary": ROTARY},
    derived={
        **bert.BERT.derived,
        "embeddings.width": lambda hf: None if width(hf) == hf["hidden_size"] else width(hf),
    },
    only=ENCODER_ONLY,
    ignored=COMMON,
    present={},
    exports={"embedding_size": lambda config: config.embeddings.width or config.width},
    modules={**EMBEDDINGS, **bert.BLOCKS},
    heads=architectures("RoFormer", TASKS),
    buffers={"encoder.embed_positions.weight": waves},
    sites={site: at for site, at in bert.SITES.items() if site not in ("embeddings", "pooler")}
    | {"embeddings.norm": At("embeddings"), "embeddings": At("encoder.layer.0", input=True)},
)

FAMILIES = (ROFORMER,)
