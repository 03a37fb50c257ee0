"""A tiny Hugging Face twin, its saved files, and our model of them, for any family."""

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
    """
    to, softmax = torch.Tensor.to, nn.functional.softmax

    def keep(dtype: Any) -> Any:
        return torch.float64 if dtype is torch.float32 else dtype

    def patched_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs = {name: keep(value) for name, value in kwargs.items()}
        return to(self, *map(keep, args), **kwargs)

    def patched_softmax(x: torch.Tensor, *args: Any, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return softmax(x, *args, dtype=keep(dtype), **kwargs)

    with (
        patch.object(torch.Tensor, "float", lambda self: self.double()),
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
