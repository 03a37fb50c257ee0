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
from tests.small import SMALL

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
