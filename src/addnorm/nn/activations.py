"""Activations by name."""

from collections.abc import Callable

from torch import nn

from addnorm.config import Activation

ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,  # exact, x·Φ(x): Hendrycks & Gimpel 2016
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
