"""The block, and the only loop over blocks."""

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import BlockConfig, EncoderConfig
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention, Context
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.heads import Head, Pooler
from addnorm.nn.init import init_weights
from addnorm.nn.kernels import Kernel, choose
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import build_position_bias


class Block(nn.Module):
    """An attention unit and a feed-forward unit. Shapes: x (N, D) → (N, D)."""

    def __init__(self, config: BlockConfig, width: int) -> None:
        super().__init__()
        self.attention = AddNorm(Attention(config.attention, width), config.attention, width)
        self.feedforward = AddNorm(FeedForward(config.feedforward, width), config.feedforward, width)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """(N, D) → (N, D)."""
        x = self.attention(x, context)
        return self.feedforward(x)


class Encoder(nn.Module):
    """Embeddings, N blocks, a final norm where there is one.

    `kernel`: how attention is computed, by name; "auto" takes the first that can do what a pass needs.
    `pooler` and `head` read the stream and are called by whoever wants them (`read`).
    Shapes: Batch → stream (N, D).
    """

    def __init__(self, config: EncoderConfig, kernel: str = "auto") -> None:
        super().__init__()
        self.config = config
        self.kernel = kernel
        self.embeddings = Embeddings(config.embeddings, config.width)
        heads = config.blocks[0].attention.heads if config.blocks else 0
        self.position_bias = build_position_bias(config.position_bias, heads)
        self.blocks = nn.ModuleList(Block(block, config.width) for block in config.blocks)
        self.norm = build_norm(config.norm, config.width)
        self.pooler = Pooler(config.width) if config.pooler else None
        self.head = Head(config.head, config.width) if config.head else None
        self.tie()

    def forward(self, batch: Batch, kernel: str | None = None) -> Tensor:
        """Batch → the stream after the last block (and final norm), (N, D)."""
        x: Tensor = self.embeddings(batch)
        bias = self.position_bias
        biases = tuple(None if bias is None else bias(group.rows.shape[1]) for group in batch.groups)
        context = Context(batch, self.kernel_for(kernel), biases)
        for block in self.blocks:
            x = block(x, context)
        return x if self.norm is None else self.norm(x)

    def read(self, stream: Tensor, batch: Batch) -> Tensor | None:
        """What pooler and head make of the stream: the logits, one row a token or a text; None without head."""
        pooled = None if self.pooler is None else self.pooler(stream, batch)
        return None if self.head is None else self.head(stream, batch, pooled, self.embeddings.tokens.weight)

    def kernel_for(self, name: str | None = None) -> Kernel:
        """The attention kernel a pass uses: the named one, or the encoder's own choice."""
        softcap = any(block.attention.softcap is not None for block in self.config.blocks)
        return choose(name or self.kernel, {"softcap"} if softcap else set())

    def tie(self) -> None:
        """Give blocks that share parameters the very same ones."""
        for i, owner in enumerate(self.config.shared or ()):
            for path, module in self.blocks[owner].named_modules():
                for leaf, parameter in module.named_parameters(recurse=False):
                    setattr(self.blocks[i].get_submodule(path), leaf, parameter)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw fresh weights as `config.init` says."""
        init_weights(self, self.config.init)


def named_parts(encoder: Encoder) -> dict[str, nn.Module]:
    """Every module by the name users see: a unit's sub-layer is not a level of its own.

    `blocks.3.attention.sublayer.query` is called `blocks.3.attention.query`.
    """
    return {name.replace(".sublayer.", "."): module for name, module in encoder.named_modules() if name}
