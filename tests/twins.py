"""A tiny Hugging Face twin, its saved files, and our model of them, for any family."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
}


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
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((parameter + 0.3 * noise).to(parameter.dtype))


def save_twin(family: str, folder: Path, architecture: str = "AutoModel", seed: int = 0, **changes: Any) -> nn.Module:
    """Save a perturbed random model of a family in float64, with the head of an architecture; gives it back."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SMALL[family], **changes})
    config._attn_implementation = "eager"
    kind = getattr(transformers, architecture)
    build = kind.from_config if architecture == "AutoModel" else kind._from_config
    model = build(config, dtype=torch.float64).eval()
    perturb(model, seed)
    model.save_pretrained(folder)
    return model


def build_twin(family: str, folder: Path, architecture: str = "AutoModel", seed: int = 0, **changes: Any) -> Twin:
    """A saved twin and our model of it, both in float64."""
    hf = save_twin(family, folder, architecture, seed, **changes)
    return Twin(hf, folder, addnorm.load(folder, dtype=torch.float64))


def random_ids(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed + length)
    return torch.randint(0, vocabulary, (length,), generator=generator).tolist()
