"""A tiny Hugging Face twin, its saved files, and our model of them, for any family."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import nn
from transformers import AutoConfig

import addnorm
from addnorm.model import Model

# Odd sizes on purpose: nothing that is equal by accident (width, inner width, vocabulary, positions).
SMALL: dict[str, dict[str, Any]] = {
    "bert": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 52,
        "max_position_embeddings": 208,
        "type_vocab_size": 2,
    },
    "bert-generation": {
        "vocab_size": 56,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "layer_norm_eps": 1e-6,
        "hidden_act": "relu",
    },
    "roberta": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 208,
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-5,
        "classifier_dropout": 0.15,
        "hidden_act": "gelu_new",
    },
    "xlm-roberta": {
        "vocab_size": 67,
        "hidden_size": 30,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 47,
        "max_position_embeddings": 206,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 5,
    },
    "camembert": {
        "vocab_size": 53,
        "hidden_size": 28,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 45,
        "max_position_embeddings": 203,
        "layer_norm_eps": 1e-6,
    },
    "data2vec-text": {
        "vocab_size": 58,
        "hidden_size": 33,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 43,
        "max_position_embeddings": 207,
        "layer_norm_eps": 1e-5,
        "hidden_act": "relu",
    },
    "roberta-prelayernorm": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 55,
        "max_position_embeddings": 206,
        "layer_norm_eps": 1e-4,
        "pad_token_id": 2,
    },
    "xlm-roberta-xl": {
        "vocab_size": 63,
        "hidden_size": 35,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 57,
        "max_position_embeddings": 204,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-4,
    },
    "megatron-bert": {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 49,
        "max_position_embeddings": 205,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-5,
    },
    "ernie": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 53,
        "max_position_embeddings": 202,
        "type_vocab_size": 4,
        "use_task_id": True,
        "task_type_vocab_size": 5,
        "hidden_act": "relu",
    },
    "electra": {
        "vocab_size": 61,
        "embedding_size": 22,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 205,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-6,
        "hidden_act": "relu",
    },
    "distilbert": {
        "vocab_size": 61,
        "dim": 36,
        "n_layers": 3,
        "n_heads": 3,
        "hidden_dim": 51,
        "max_position_embeddings": 203,
        "activation": "relu",
        "seq_classif_dropout": 0.15,
        "qa_dropout": 0.25,
        "sinusoidal_pos_embds": True,
    },
    "mpnet": {
        "vocab_size": 59,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 210,
        "layer_norm_eps": 1e-5,
        "hidden_act": "relu",
    },
    "t5": {
        "vocab_size": 61,
        "d_model": 34,
        "d_kv": 10,
        "d_ff": 51,
        "num_layers": 3,
        "num_heads": 3,
        "relative_attention_num_buckets": 12,
        "relative_attention_max_distance": 40,
        "layer_norm_epsilon": 1e-5,
        "classifier_dropout": 0.15,
    },
    "mt5": {
        "vocab_size": 61,
        "d_model": 34,
        "d_kv": 9,
        "d_ff": 51,
        "num_layers": 3,
        "num_heads": 4,
        "feed_forward_proj": "gated-silu",
        "layer_norm_epsilon": 1e-5,
    },
    "umt5": {
        "vocab_size": 57,
        "d_model": 33,
        "d_kv": 10,
        "d_ff": 47,
        "num_layers": 3,
        "num_heads": 2,
        "relative_attention_num_buckets": 20,
        "relative_attention_max_distance": 70,
    },
    "deberta": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 205,
        "type_vocab_size": 2,
        "relative_attention": True,
        "max_relative_positions": 30,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "layer_norm_eps": 1e-6,
        "pooler_hidden_act": "relu",
        "cls_dropout": 0.2,
    },
    "deberta-v2": {
        "vocab_size": 61,
        "hidden_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 53,
        "max_position_embeddings": 205,
        "type_vocab_size": 3,
        "relative_attention": True,
        "position_buckets": 14,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "conv_kernel_size": 5,
        "conv_groups": 2,
        "conv_act": "gelu",
        "layer_norm_eps": 1e-6,
    },
    "albert": {
        "vocab_size": 61,
        "embedding_size": 20,
        "hidden_size": 36,
        "num_hidden_layers": 5,
        "num_hidden_groups": 2,
        "inner_group_num": 2,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 205,
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
        "classifier_dropout_prob": 0.2,
    },
    "esmc": {
        "vocab_size": 33,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 206,
        "mlp_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "classifier_dropout": 0.2,
    },
    "esm": {
        "vocab_size": 33,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 206,
        "pad_token_id": 4,
        "mask_token_id": 32,
        "token_dropout": True,
        "emb_layer_norm_before": True,
        "position_embedding_type": "rotary",
        "rope_theta": 500.0,
        "layer_norm_eps": 1e-5,
    },
    "xmod": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 51,
        "max_position_embeddings": 206,
        "type_vocab_size": 2,
        "pad_token_id": 4,
        "layer_norm_eps": 1e-5,
        "hidden_act": "relu",
        "adapter_reduction_factor": 3,
        "languages": ["en_XX", "de_DE", "sw_KE"],
        "default_language": "de_DE",
    },
    "mobilebert": {
        "vocab_size": 61,
        "embedding_size": 7,
        "hidden_size": 22,
        "intra_bottleneck_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 9,
        "num_feedforward_networks": 3,
        "max_position_embeddings": 206,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "classifier_dropout": 0.15,
    },
    "roc_bert": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 51,
        "max_position_embeddings": 204,
        "type_vocab_size": 2,
        # Not 0: transformers gives the padding row no gradient, and row 0 is the one that is read.
        "pad_token_id": 3,
        "shape_vocab_size": 17,
        "shape_embed_dim": 10,
        "pronunciation_vocab_size": 13,
        "pronunciation_embed_dim": 7,
    },
    "roformer": {
        "vocab_size": 61,
        "embedding_size": 22,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "type_vocab_size": 2,
        "rotary_value": True,
        "hidden_act": "relu",
    },
    "nomic_bert": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "head_dim": 10,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-6,
        "classifier_dropout": 0.15,
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
    },
    "gte": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "linear", "factor": 1.7, "rope_theta": 900.0},
    },
    "jina_embeddings_v3": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "type_vocab_size": 2,
        "hidden_act": "relu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 800.0},
    },
    "eurobert": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "rms_norm_eps": 1e-3,
        "hidden_act": "gelu",
        "attention_bias": True,
        "mlp_bias": True,
        "pad_token_id": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 600.0},
    },
    "modernbert": {
        "vocab_size": 61,
        "hidden_size": 36,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "intermediate_size": 53,
        "max_position_embeddings": 203,
        "norm_eps": 1e-3,
        "norm_bias": True,
        "local_attention": 11,
        "layer_types": [f"{kind}_attention" for kind in ("full", "sliding", "full", "sliding", "sliding")],
        "classifier_pooling": "mean",
        "classifier_activation": "silu",
        "classifier_dropout": 0.15,
        "classifier_bias": True,
        "hidden_activation": "relu",
        "pad_token_id": 3,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 600.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
}


# The class of a family's encoder, where AutoModel has more than the encoder.
ENCODER = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


@dataclass(frozen=True)
class Twin:
    """The reference model in float64, the folder it was saved to, and our reading of that folder."""

    hf: nn.Module
    folder: Path
    ours: Model


def perturb(module: nn.Module, seed: int = 0) -> None:
    """Random values in every parameter: on a fresh init swapped norms or biases would go unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # What is frozen is a formula's result, not a weight.
        for parameter in (parameter for parameter in module.parameters() if parameter.requires_grad):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((parameter + 0.3 * noise).to(parameter.dtype))


def save_twin(family: str, folder: Path, architecture: str = "AutoModel", seed: int = 0, **changes: Any) -> nn.Module:
    """Save a perturbed random model of a family in float64, with the head of an architecture; gives it back."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SMALL[family], **changes})
    config._attn_implementation = "eager"
    if architecture == "AutoModel":
        architecture = ENCODER.get(family, architecture)
    kind = getattr(transformers, architecture)
    build = kind.from_config if architecture == "AutoModel" else kind._from_config
    # A table of waves that is made ahead would be of float32 numbers.
    with patch.object(torch, "FloatTensor", torch.DoubleTensor):
        model = build(config, dtype=torch.float64).double().eval()  # a few parameters are float32 whatever is asked
    perturb(model, seed)
    model.save_pretrained(folder)
    forward = model.forward

    def exactly(*args: Any, **kwargs: Any) -> Any:
        with float64_throughout():
            return forward(*args, **kwargs)

    model.forward = exactly
    return model


@contextmanager
def float64_throughout() -> Iterator[None]:
    """Some references go down to float32 for a step (a rotation, a norm, a softmax) whatever the model's dtype.

    That would hide a fault below 1e-7 or show a difference that is none, so here such a step keeps float64.
    Not so the buckets of distances: there float32 decides to which of two a distance at an edge belongs.
    """
    to, softmax, tensor = torch.Tensor.to, nn.functional.softmax, torch.tensor

    def keep(dtype: Any) -> Any:
        return torch.float64 if dtype is torch.float32 else dtype

    def patched_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs = {name: keep(value) for name, value in kwargs.items()}
        return to(self, *map(keep, args), **kwargs)

    def patched_float(self: torch.Tensor) -> torch.Tensor:
        return to(self, torch.float32 if "bucket" in sys._getframe(1).f_code.co_name else torch.float64)

    def patched_tensor(*args: Any, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return tensor(*args, dtype=keep(dtype), **kwargs)

    def patched_softmax(x: torch.Tensor, *args: Any, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return softmax(x, *args, dtype=keep(dtype), **kwargs)

    with (
        patch.object(torch.Tensor, "float", patched_float),
        patch.object(torch, "tensor", patched_tensor),
        patch.object(torch.Tensor, "to", patched_to),
        patch.object(nn.functional, "softmax", patched_softmax),
    ):
        yield


def build_twin(family: str, folder: Path, architecture: str = "AutoModel", seed: int = 0, **changes: Any) -> Twin:
    """A saved twin and our model of it, both in float64."""
    hf = save_twin(family, folder, architecture, seed, **changes)
    return Twin(hf, folder, addnorm.load(folder, dtype=torch.float64))


def random_ids(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed + length)
    return torch.randint(0, vocabulary, (length,), generator=generator).tolist()
