"""Attention kernels: one signature, declared capabilities; `eager` is the reference.

A kernel turns queries, keys and values of one group, each (G, H, T, K), into their mix (G, H, T, K); a bias
(H or 1, T, T) or (G, H, T, T) is added to the scores.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.errors import AddnormError


class Steps(Protocol):
    """What a kernel may use of its attention module: the scale and the modules of its inner steps."""

    @property
    def scale(self) -> float: ...
    @property
    def scores(self) -> nn.Module: ...
    @property
    def weights(self) -> nn.Module: ...
    @property
    def dropout(self) -> nn.Dropout: ...


@dataclass(frozen=True)
class Kernel:
    """A way to compute softmax(Q Kᵀ · scale + bias) V, and what it is able to do.

    Abilities: "softcap" of the scores, "shaping" of the weights, "sites" (scores and weights can be seen).
    """

    name: str
    run: Callable[[Tensor, Tensor, Tensor, Tensor | None, Steps], Tensor]
    abilities: frozenset[str]


def _eager(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
    scores = steps.scores(query, key, bias)  # (G, H, T, T)
    weights = steps.dropout(steps.weights(scores))
    return weights @ value


def _sdpa(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
    dropout = steps.dropout.p if steps.dropout.training else 0.0
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=steps.scale)


# In the order in which "auto" prefers them.
KERNELS = {
    "sdpa": Kernel("sdpa", _sdpa, frozenset()),
    "eager": Kernel("eager", _eager, frozenset({"softcap", "shaping", "sites"})),
}


def choose(name: str, needs: Set[str] = frozenset()) -> Kernel:
    """The kernel called `name`, or for "auto" the first that has every ability needed.

    Errors: unknown name; a named kernel that lacks an ability (an explicit choice never falls back).
    """
    if name == "auto":
        return next(kernel for kernel in KERNELS.values() if needs <= kernel.abilities)
    if name not in KERNELS:
        raise AddnormError(f"attention kernel '{name}' is unknown; choose auto, {', '.join(KERNELS)}")
    kernel = KERNELS[name]
    if missing := needs - kernel.abilities:
        raise AddnormError(f"attention kernel '{name}' cannot do: {', '.join(missing)}; choose eager or auto")
    return kernel
