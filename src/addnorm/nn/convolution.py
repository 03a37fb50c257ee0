"""A convolution over the tokens beside a block, as DeBERTa-v2 has after its first (He 2021, section 5)."""

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import ConvolutionConfig
from addnorm.nn.activations import ACTIVATIONS
from addnorm.nn.addnorm import Add
from addnorm.nn.norms import build_norm


class TokenConvolution(nn.Conv1d):
    """Each token from itself and its neighbours; beyond a text's ends there are zeros. (N, D) → (N, D)."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        """(N, D) → (N, D)."""
        parts = [super(TokenConvolution, self).forward(x[g.rows].transpose(1, 2)) for g in batch.groups]  # (G, D, T)
        return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])[batch.ungroup]


class Convolution(nn.Module):
    """N_out(block(x) + φ(conv(x))). Shapes: x, block(x) (N, D) → (N, D)."""

    def __init__(self, config: ConvolutionConfig, width: int) -> None:
        super().__init__()
        self.conv = TokenConvolution(width, width, config.kernel, padding=config.kernel // 2, groups=config.groups)
        self.dropout = nn.Dropout(config.dropout)
        self.branch = ACTIVATIONS[config.activation]()
        self.add = Add(1.0, width)
        self.norm_out = build_norm(config.norm_out, width)

    def forward(self, x: Tensor, after: Tensor, batch: Batch) -> Tensor:
        """The block's input and output, (N, D), (N, D) → (N, D)."""
        x = self.add(after, self.branch(self.dropout(self.conv(x, batch))))
        return x if self.norm_out is None else self.norm_out(x)
