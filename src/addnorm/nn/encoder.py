"""The block, and the only loop over blocks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import BlockConfig, BottleneckConfig, EncoderConfig
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention, Context
from addnorm.nn.convolution import Convolution
from addnorm.nn.disentangled import RelativeTable
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.heads import Head, Pooler
from addnorm.nn.init import init_weights
from addnorm.nn.kernels import Kernel, choose
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import build_position_bias
from addnorm.nn.streams import Connect, build_wiring, one_after_another


class Bottleneck(nn.Module):
    """A sub-layer F that goes into a narrow stream, through what is `inside`, and back (Sun 2020).

    Shapes: x (N, D) → (N, D).
    """

    def __init__(self, config: BottleneckConfig, width: int) -> None:
        super().__init__()
        self.entry = nn.Linear(width, config.width)
        self.entry_norm = build_norm(config.norm, config.width)
        self.queries = nn.Linear(width, config.width) if config.queries else None
        self.queries_norm = build_norm(config.norm, config.width) if config.queries else None
        self.exit = nn.Linear(config.width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, inside: Callable[..., Tensor]) -> Tensor:
        """(N, D) → (N, D)."""
        h = self.entry(x)  # (N, W)
        h = h if self.entry_norm is None else self.entry_norm(h)
        if self.queries is None:
            return self.dropout(self.exit(inside(h)))
        paired = self.queries(x)  # (N, W)
        paired = paired if self.queries_norm is None else self.queries_norm(paired)
        return self.dropout(self.exit(inside(h, paired, x)))


class Block(nn.Module):
    """An attention unit, a feed-forward unit and what may follow; a wiring may `connect` them in its own way.

    Shapes: x (N, D) → (N, D).
    """

    def __init__(self, config: BlockConfig, width: int) -> None:
        super().__init__()
        outer, inner = config.bottleneck, config.width_within(width)
        self.attention = AddNorm(Attention(config.attention, inner), config.attention, inner)
        self.feedforward = AddNorm(FeedForward(config.feedforward, inner), config.feedforward, inner)
        self.further = nn.ModuleList(AddNorm(FeedForward(unit, inner), unit, inner) for unit in config.further)
        self.bottleneck = AddNorm(Bottleneck(outer, width), outer, width) if outer else None
        self.tied_norms = config.tied_norms
        if config.tied_beta:
            self.feedforward.branch.weight = self.attention.branch.weight
        self.convolution = Convolution(config.convolution, width) if config.convolution else None

    def forward(self, x: Tensor, context: Context, connect: Connect = one_after_another) -> Tensor:
        """(N, D) → (N, D)."""

        def units(x: Tensor, *sources: Tensor) -> Tensor:
            x = connect(self.feedforward, connect(self.attention, x, context, *sources))
            for unit in self.further:
                x = connect(unit, x)
            return x

        after = units(x) if self.bottleneck is None else self.bottleneck(x, units)
        return after if self.convolution is None else self.convolution(x, after, context.batch)

    def tie(self) -> None:
        """Give norms that are one and the same the very same parameters."""
        for path in self.tied_norms[1:]:
            for inner, module in self.get_submodule(self.tied_norms[0]).named_modules():
                for leaf, parameter in module.named_parameters(recurse=False):
                    setattr(self.get_submodule(path).get_submodule(inner), leaf, parameter)


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
        self.relative = RelativeTable(config.relative, config.width) if config.relative else None
        self.blocks = nn.ModuleList(Block(block, config.width) for block in config.blocks)
        self.wiring = build_wiring(config.wiring, config.width, len(config.blocks))
        self.norm = build_norm(config.norm, config.width)
        self.pooler = Pooler(config.width) if config.pooler else None
        self.head = Head(config.head, config.width) if config.head else None
        self.tie()

    def forward(self, batch: Batch, kernel: str | None = None) -> Tensor:
        """Batch → the stream after the last block (and final norm), (N, D)."""
        x: Tensor = self.embeddings(batch)
        bias = self.position_bias
        biases = tuple(None if bias is None else bias(group.rows.shape[1]).to(x) for group in batch.groups)
        relative = None if self.relative is None else self.relative(batch)
        context = Context(batch, self.kernel_for(kernel), biases, relative=relative)
        if self.wiring is not None:
            x = self.wiring(x, self.blocks, context)
        else:
            for block in self.blocks:
                x = block(x, context)
        return x if self.norm is None else self.norm(x)

    def read(self, stream: Tensor, batch: Batch) -> Tensor | None:
        """What pooler and head make of the stream: the logits, one row a token or a text; None without head."""
        pooled = None if self.pooler is None else self.pooler(stream, batch)
        return None if self.head is None else self.head(stream, batch, pooled, self.embeddings.tokens.weight)

    def kernel_for(self, name: str | None = None) -> Kernel:
        """The attention kernel a pass uses: the named one, or the encoder's own choice."""
        blocks = [block.attention for block in self.config.blocks]
        needs = {"softcap": any(block.softcap is not None for block in blocks)}
        needs |= {"shaping": any(block.shaping is not None for block in blocks)}
        return choose(name or self.kernel, {ability for ability, needed in needs.items() if needed})

    def tie(self) -> None:
        """Give blocks, and norms within a block, that share parameters the very same ones."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.tie()
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
