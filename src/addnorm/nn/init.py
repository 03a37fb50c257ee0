"""Fresh weights by name: matrices are drawn, biases are 0, gains stay 1.

`INITS` has the recipes of the papers, as data that depends on the depth alone.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from addnorm.config import Draw, InitConfig, Matrix, MatrixInit


def _normal(module: nn.Module, matrix: Tensor, init: InitConfig) -> None:
    nn.init.normal_(matrix, std=init.std)


def _xavier(module: nn.Module, matrix: Tensor, init: InitConfig) -> None:
    if isinstance(module, nn.Embedding):
        # So that √D · embedding has unit variance (Vaswani 2017, section 3.4).
        nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)
    else:
        nn.init.xavier_uniform_(matrix)


def _xavier_normal(module: nn.Module, matrix: Tensor, init: InitConfig) -> None:
    if isinstance(module, nn.Embedding):
        _xavier(module, matrix, init)
    else:
        nn.init.xavier_normal_(matrix)


def _he(module: nn.Module, matrix: Tensor, init: InitConfig) -> None:
    if isinstance(module, nn.Embedding):
        _xavier(module, matrix, init)
    else:
        nn.init.normal_(matrix, std=math.sqrt(2 / matrix.shape[1]))


DRAWS: dict[Draw, Callable[[nn.Module, Tensor, InitConfig], object]] = {
    "normal": _normal,
    "xavier": _xavier,
    "xavier_normal": _xavier_normal,
    "he": _he,
    "orthogonal": lambda module, matrix, init: nn.init.orthogonal_(matrix),
    "identity": lambda module, matrix, init: nn.init.eye_(matrix),
    "zero": lambda module, matrix, init: nn.init.zeros_(matrix),
}


def init_weights(encoder: nn.Module, init: InitConfig) -> None:
    """Draw every matrix of an encoder as `init` says; a wiring has its own start and keeps it."""
    own = {row.matrix: row for row in init.matrices}
    for path, module in encoder.named_modules():
        if path.partition(".")[0] == "wiring":
            continue
        row = own.get(path.rpartition(".")[2])
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim >= 2:
                DRAWS[(row and row.kind) or init.kind](module, parameter.flatten(1), init)
                if row is not None and row.gain != 1:
                    parameter.mul_(row.gain)
            elif name == "bias":
                nn.init.zeros_(parameter)


def _gains(matrices: str, gain: float) -> tuple[MatrixInit, ...]:
    names: list[Matrix] = matrices.split()  # type: ignore[assignment]
    return tuple(MatrixInit(matrix=name, gain=gain) for name in names)


# What carries the branch: value and output of attention, both maps of the feed-forward. Not query and key.
WRITES = "value output up gate down"


def deepnorm(depth: int) -> InitConfig:
    """Xavier normal, β = (8N)^(−1/4) on what carries the branch (Wang 2022, encoder only)."""
    return InitConfig(kind="xavier_normal", matrices=_gains(WRITES, (8 * depth) ** -0.25))


def sub_ln(depth: int) -> InitConfig:
    """Xavier normal, √ln 2N on what carries the branch (Magneto, Wang 2022)."""
    return InitConfig(kind="xavier_normal", matrices=_gains(WRITES, math.sqrt(math.log(2 * depth))))


def t_fixup(depth: int) -> InitConfig:
    """Xavier, 0.67·N^(−1/4) on what carries the branch, (9N)^(−1/4) on the embeddings (Huang 2020)."""
    matrices = _gains(WRITES, 0.67 * depth**-0.25) + _gains("tokens", (9 * depth) ** -0.25)
    return InitConfig(kind="xavier", matrices=matrices)


def b2t(depth: int) -> InitConfig:
    """Xavier, N^(−1/2) on every matrix of the blocks (Takase 2022)."""
    return InitConfig(kind="xavier", matrices=_gains(f"query key {WRITES}", depth**-0.5))


def megatron(depth: int) -> InitConfig:
    """N(0, 0.02²), 1/√(2N) on the matrices that write to the stream (Shoeybi 2019)."""
    return InitConfig(kind="normal", std=0.02, matrices=_gains("output down", (2 * depth) ** -0.5))


def skipless(depth: int) -> InitConfig:
    """Orthogonal value and output, query 0, the rest He (He 2023)."""
    own = {"value": "orthogonal", "output": "orthogonal", "query": "zero"}
    return InitConfig(
        kind="he",
        matrices=tuple(MatrixInit(matrix=name, kind=kind) for name, kind in own.items()),  # type: ignore[arg-type]
    )


INITS: dict[str, Callable[[int], InitConfig]] = {
    "bert": lambda depth: InitConfig(kind="normal", std=0.02),
    "xavier": lambda depth: InitConfig(kind="xavier"),
    "xavier-normal": lambda depth: InitConfig(kind="xavier_normal"),
    "he": lambda depth: InitConfig(kind="he"),
    "deepnorm": deepnorm,
    "sub-ln": sub_ln,
    "t-fixup": t_fixup,
    "b2t": b2t,
    "megatron": megatron,
    "skipless": skipless,
}
