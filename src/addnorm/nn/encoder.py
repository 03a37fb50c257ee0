"""The block, and the only loop over blocks."""

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import BlockConfig, EncoderConfig
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.heads import Pooler
from addnorm.nn.init import INITS
from addnorm.nn.kernels import Kernel, choose
from addnorm.nn.norms import build_norm


class Block(nn.Module):
    """An attention unit and a feed-forward unit. Shapes: x (N, D) → (N, D)."""

    def __init__(self, config: BlockConfig, width: int) -> None:
        super().__init__()
        self.attention = AddNorm(Attention(config.attention, width), config.attention, width)
        self.feedforward = AddNorm(FeedForward(config.feedforward, width), config.feedforward, width)

    def forward(self, x: Tensor, batch: Batch, kernel: Kernel) -> Tensor:
        """(N, D) → (N, D)."""
        x = self.attention(x, batch, kernel)
        return self.feedforward(x)


class Encoder(nn.Module):
    """Embeddings, N blocks, a final norm where there is one.

    `kernel`: how attention is computed, by name; "auto" takes the first that can do what a pass needs.
    `pooler` is called on the stream by whoever wants it. Shapes: Batch → stream (N, D).
    """

    def __init__(self, config: EncoderConfig, kernel: str = "auto") -> None:
        super().__init__()
        self.config = config
        self.kernel = kernel
        self.embeddings = Embeddings(config.embeddings, config.width)
        self.blocks = nn.ModuleList(Block(block, config.width) for block in config.blocks)
        self.norm = build_norm(config.norm, config.width)
        self.pooler = Pooler(config.width) if config.pooler else None

    def forward(self, batch: Batch, kernel: str | None = None) -> Tensor:
        """Batch → the stream after the last block (and final norm), (N, D)."""
        chosen = choose(kernel or self.kernel)
        x: Tensor = self.embeddings(batch)
        for block in self.blocks:
            x = block(x, batch, chosen)
        return x if self.norm is None else self.norm(x)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw fresh weights as `config.init` says."""
        INITS[self.config.init.kind](self, self.config.init)


def named_parts(encoder: Encoder) -> dict[str, nn.Module]:
    """Every module by the name users see: a unit's sub-layer is not a level of its own.

    `blocks.3.attention.sublayer.query` is called `blocks.3.attention.query`.
    """
    return {name.replace(".sublayer.", "."): module for name, module in encoder.named_modules() if name}
