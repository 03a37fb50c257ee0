"""Fresh weights by name: matrices are drawn, biases are 0, gains stay 1."""

from collections.abc import Callable

from torch import Tensor, nn

from addnorm.config import InitConfig

Draw = Callable[[nn.Module, Tensor, InitConfig], object]


def _normal(module: nn.Module, matrix: Tensor, init: InitConfig) -> None:
    nn.init.normal_(matrix, std=init.std)


def _xavier(module: nn.Module, matrix: Tensor, init: InitConfig) -> None:
    if isinstance(module, nn.Embedding):
        # So that √D · embedding has unit variance (Vaswani 2017, section 3.4).
        nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)
    else:
        nn.init.xavier_uniform_(matrix)


DRAWS: dict[str, Draw] = {"normal": _normal, "xavier": _xavier}


def init_weights(encoder: nn.Module, init: InitConfig) -> None:
    """Draw every matrix of an encoder as `init` says."""
    for module in encoder.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 2:
                DRAWS[init.kind](module, parameter, init)
            elif name == "bias":
                nn.init.zeros_(parameter)
