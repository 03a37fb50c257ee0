"""Encoders of the variants, and how far two of them are apart."""

from typing import Any

import torch

from addnorm import Batch
from addnorm.config import EncoderConfig
from addnorm.lab.fresh import fresh, random_tokens
from addnorm.lab.variants import build
from addnorm.nn.encoder import Encoder
from tests.nn.drawn import perturb

SIZE: dict[str, Any] = {"depth": 3, "width": 12, "heads": 3, "inner": 20, "vocabulary": 31, "eps": 1e-12}


def config_of(name: str, **size: Any) -> EncoderConfig:
    return build(name, **{**SIZE, **size})


def encoder_of(config: EncoderConfig, stir: bool = False) -> Encoder:
    encoder = fresh(config, 0, torch.float64)
    if stir:
        perturb(encoder)
    return encoder


def batch_of() -> Batch:
    """Texts of several lengths, two of them equally long."""
    rows = [random_tokens(1, length, 31, length).ids.tolist() for length in (5, 1, 7, 5)]
    return Batch.pack(rows)


def largest(difference: torch.Tensor) -> float:
    return float(difference.detach().abs().max())


def apart(one: Encoder, other: Encoder) -> float:
    with torch.no_grad():
        a, b = one(batch_of()), other(batch_of())
    assert a.abs().max() > 0.1
    return largest(a - b)
