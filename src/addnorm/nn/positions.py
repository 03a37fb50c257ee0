"""Position embeddings by name."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Sinusoidal(nn.Module):
    """sin and cos of pos/10000^(2i/D) in turn (Vaswani 2017, section 3.5).

    Computed in float64 at each call: there is no buffer that could be left uninitialised.
    """

    def __init__(self, max_positions: int, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        """(N,) → (N, D) in the default dtype."""
        even = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device)
        angles = positions[:, None] * 10000 ** (-even / self.width)  # (N, ⌈D/2⌉)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (N, D or D+1)
        return table[:, : self.width]


POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "learned": nn.Embedding,
    "sinusoidal": Sinusoidal,
}
