"""ESM-1b and ESM-2 (Rives et al. 2021, Lin et al. 2023): protein encoders, pre-norm, masks as dropped tokens."""

from dataclasses import replace

import torch
from torch import Tensor

from addnorm.config import EncoderConfig
from addnorm.families import bert, megatron_bert, roberta
from addnorm.families._rows import ENCODER_ONLY, HF, At, Field, HeadRows, amend, architectures, num_labels, without
from addnorm.nn.positions import Rotary

# The last is how transformers 5 writes it, star included.
FREQUENCIES = (
    "rotary_embeddings.inv_freq",
    "encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq",
    "encoder.layer.*.attention.self.rotary_embeddings.inv_freq",
)


def rotary(hf: HF) -> dict[str, object] | None:
    """Rotary positions, where the config asks for them."""
    return {"theta": float(hf.get("rope_theta", 10000.0))} if hf["position_embedding_type"] == "rotary" else None


def theta(config: EncoderConfig) -> float:
    """`rotary` back."""
    own = config.blocks[0].attention.rotary if config.blocks else None
    return own.theta if own else 10000.0


def frequencies(config: EncoderConfig) -> Tensor:
    """What files keep of the rotation."""
    attention = config.blocks[0].attention
    assert attention.rotary is not None
    return Rotary(attention.rotary, attention.head_width).frequencies()


def is_half(kept: Tensor) -> bool:
    """Whether training in float16 rounded them: recomputed ones would turn by other angles."""
    return torch.equal(kept, kept.half().to(kept.dtype))


TASKS = {
    "MaskedLM": HeadRows(
        lambda hf: bert.fill({**hf, "hidden_act": "gelu"}),
        {"lm_head.dense|layer_norm|decoder": "head.dense|norm|logits", "lm_head.bias": "head.logits.bias"},
        tied={"lm_head.decoder.weight": "embeddings.tokens.weight"},
        sites={"head.activation": At("lm_head.layer_norm", input=True), "head.logits": At("lm_head")},
    ),
    "SequenceClassification": replace(
        roberta.TASKS["SequenceClassification"],
        config=lambda hf: roberta.classify({**hf, "classifier_dropout": None}),
    ),
    "TokenClassification": HeadRows(
        lambda hf: {"task": "tag", "outputs": num_labels(hf), "dropout": hf["hidden_dropout_prob"]}, bert.CLASSIFIER
    ),
}

ESM = replace(
    bert.BERT,
    name="esm",
    architecture="EsmModel",
    prefix="esm",
    fields=(
        *amend(
            without(bert.FIELDS, "hidden_act", "type_vocab_size"),
            vocab_size={"default": None},
            hidden_dropout_prob={"paths": "block.attention.dropout block.feedforward.dropout"},
            max_position_embeddings={"default": 1026},
            layer_norm_eps={"paths": megatron_bert.EPS},
        ),
        Field("position_embedding_type", "embeddings.positions", "absolute", {"absolute": "learned", "rotary": None}),
        replace(roberta.PAD, default=None),
    ),
    fixed={**megatron_bert.FIXED, "block.feedforward.activation": "gelu"},
    derived={
        **bert.BERT.derived,
        **roberta.COUNTED,
        "block.attention.rotary": rotary,
        "embeddings.norm": lambda hf: (
            bert.NORM | {"eps": hf["layer_norm_eps"]} if hf.get("emb_layer_norm_before") else None
        ),
        "embeddings.dropped": lambda hf: hf.get("mask_token_id") if hf.get("token_dropout") else None,
    },
    measured={"block.attention.rotary.half": (tuple(name.format(i=0) for name in FREQUENCIES), is_half)},
    only={"hidden_act": "gelu", "is_folding_model": False, "esmfold_config": None, **ENCODER_ONLY},
    ignored=roberta.ROBERTA.ignored | {"vocab_list", "classifier_dropout"},
    exports={
        "rope_theta": theta,
        "emb_layer_norm_before": lambda config: config.embeddings.norm is not None,
        "token_dropout": lambda config: config.embeddings.dropped is not None,
        "mask_token_id": lambda config: config.embeddings.dropped,
    },
    modules={
        "embeddings.word_embeddings|position_embeddings|layer_norm": "embeddings.tokens|positions|norm",
        **megatron_bert.BLOCKS,
        "encoder.layer.{i}.attention.LayerNorm": "blocks.{i}.attention.norm_in",
        "encoder.layer.{i}.LayerNorm": "blocks.{i}.feedforward.norm_in",
        "encoder.emb_layer_norm_after": "norm",
        **bert.POOLER,
    },
    heads=architectures("Esm", TASKS),
    buffers={**bert.BERT.buffers, **dict.fromkeys(FREQUENCIES, frequencies)},
    carried=("contact_head.", "embeddings.position_embeddings.", "lm_head.", "classifier."),
    sites={k: at for k, at in megatron_bert.SITES.items() if k != "embeddings.sum"},
)

FAMILIES = (ESM,)
