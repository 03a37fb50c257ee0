"""Fresh weights by name."""

from collections.abc import Callable

from torch import nn

from addnorm.config import InitConfig


def _normal(encoder: nn.Module, init: InitConfig) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=init.std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _xavier(encoder: nn.Module, init: InitConfig) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            # So that √D · embedding has unit variance (Vaswani 2017, section 3.4).
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


INITS: dict[str, Callable[[nn.Module, InitConfig], None]] = {"normal": _normal, "xavier": _xavier}
