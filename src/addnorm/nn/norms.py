"""Normalisations by name."""

from collections.abc import Callable

from torch import nn

from addnorm.config import NormConfig, NormKind

NORMS: dict[NormKind, Callable[[int, NormConfig], nn.Module]] = {
    "layer": lambda width, norm: nn.LayerNorm(width, eps=norm.eps, bias=norm.bias),
    "rms": lambda width, norm: nn.RMSNorm(width, eps=norm.eps),
    # Over the N real tokens of a packed batch: for study, a text's numbers then depend on its company.
    "batch": lambda width, norm: nn.BatchNorm1d(width, eps=norm.eps),
}


def build_norm(config: NormConfig | None, width: int) -> nn.Module | None:
    """The norm a slot asks for, over `width` features; None for an empty slot."""
    return None if config is None else NORMS[config.kind](width, config)
