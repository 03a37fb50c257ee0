"""The whole encoder, and the presets."""

import math
from dataclasses import dataclass, field
from typing import Literal, Self

from addnorm.config.around import EmbeddingsConfig, HeadConfig, InitConfig, WiringConfig
from addnorm.config.attention import AttentionConfig, PositionBiasConfig, RelativeConfig
from addnorm.config.block import BlockConfig, FeedForwardConfig
from addnorm.config.unit import NormConfig
from addnorm.strict import Config, require

Part = Literal[
    "embeddings", "attention", "feedforward", "bottleneck", "convolution", "norms", "wiring", "pooler", "head"
]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """A whole encoder: embeddings, blocks, and what follows them.

    `width`: of the stream (HF: hidden_size); `position_bias`: one term of the scores for all blocks;
    `relative`: the table of distances of disentangled attention;
    `norm`: the final norm of a pre-norm stack; `pooler`: BERT's tanh projection of the first token;
    `shared`: for each block the earlier block whose parameters it uses (itself where it has its own);
    `wiring`: how units are connected, where it is not one after the other on one stream.
    """

    width: int
    embeddings: EmbeddingsConfig
    blocks: tuple[BlockConfig, ...]
    position_bias: PositionBiasConfig | None = None
    relative: RelativeConfig | None = None
    norm: NormConfig | None = None
    pooler: bool = False
    head: HeadConfig | None = None
    shared: tuple[int, ...] | None = None
    wiring: WiringConfig | None = None
    init: InitConfig = field(default_factory=InitConfig)

    def __post_init__(self) -> None:
        require(self.width > 0, f"width {self.width} is not above 0")
        reads = any(block.attention.disentangled for block in self.blocks)
        require(self.relative is not None or not reads, "disentangled attention needs the table `relative`")
        beside = any(block.convolution for block in self.blocks)
        require(self.wiring is None or not beside, "a wiring has no place for a block's convolution")
        shared = self.shared
        if shared is not None:
            require(len(shared) == len(self.blocks), f"shared names {len(shared)} blocks of {len(self.blocks)}")
            for i, owner in enumerate(shared):
                own = 0 <= owner <= i and shared[owner] == owner and self.blocks[owner] == self.blocks[i]
                require(own, f"block {i} cannot share the parameters of block {owner}")
        plain = all(not (block.further or block.bottleneck or block.convolution) for block in self.blocks)
        require(self.wiring is None or plain, "a wiring needs blocks of an attention and a feed-forward unit alone")
        looking_back = [block.attention for block in self.blocks if block.attention.value_residual is not None]
        values = {(attention.key_heads, attention.head_width) for attention in looking_back}
        require(len(values) < 2, "value_residual needs blocks with the same key heads and head width")
        plain = not any(block.further or block.bottleneck for block in self.blocks)
        require(plain or self.wiring is None, "a wiring needs blocks of two units, without bottleneck")

    @property
    def owners(self) -> tuple[int, ...]:
        """The blocks that have parameters of their own."""
        return tuple(range(len(self.blocks))) if self.shared is None else tuple(sorted(set(self.shared)))

    @property
    def max_tokens(self) -> int | None:
        """The longest text the positions allow; None where they set no limit."""
        embeddings, rotations = self.embeddings, [block.attention.rotary for block in self.blocks]
        limits = [rotary.limit for rotary in rotations if rotary is not None and rotary.limit is not None]
        if embeddings.positions:
            limits.append(embeddings.max_positions - embeddings.position_offset)
        return min(limits, default=None)

    def num_params_by_part(self) -> dict[Part, int]:
        """Parameters of embeddings, attention, feed-forward, norms (with learned scales) and pooler."""
        width, blocks, embeddings = self.width, [self.blocks[i] for i in self.owners], self.embeddings
        return {
            "embeddings": embeddings.num_params(width),
            "attention": sum(block.attention.num_sublayer_params(block.width_within(width)) for block in blocks)
            + (self.position_bias.num_params(self.blocks[0].attention.heads) if self.position_bias else 0)
            + (self.relative.num_params(width) if self.relative else 0),
            "feedforward": sum(
                unit.num_sublayer_params(block.width_within(width))
                for block in blocks
                for unit in (block.feedforward, *block.further)
            ),
            "bottleneck": sum(block.bottleneck.num_sublayer_params(width) for block in blocks if block.bottleneck),
            "convolution": sum(block.convolution.num_params(width) for block in blocks if block.convolution),
            "norms": sum(block.num_slot_params(width) for block in blocks)
            + (embeddings.norm.num_params(embeddings.width or width) if embeddings.norm else 0)
            + (self.norm.num_params(width) if self.norm else 0)
            + (self.relative.norm.num_params(width) if self.relative and self.relative.norm else 0),
            "wiring": self.wiring.num_params(width, len(self.blocks)) if self.wiring else 0,
            "pooler": width * width + width if self.pooler else 0,
            "head": self.head.num_params(width) if self.head else 0,
        }

    def num_params(self, part: Part | None = None) -> int:
        """The number of parameters, of everything or of one part."""
        parts = self.num_params_by_part()
        return sum(parts.values()) if part is None else parts[part]

    @classmethod
    def transformer_base(cls, vocabulary: int = 37000, max_positions: int = 512) -> Self:
        """The encoder of Vaswani 2017 (base): 6 × 512, 8 heads, 2048, ReLU, post-norm, sinusoidal positions."""
        norm = NormConfig(eps=1e-6)
        block = BlockConfig(
            attention=AttentionConfig(
                heads=8, head_width=64, bias=False, output_bias=False, norm_out=norm, dropout=0.1
            ),
            feedforward=FeedForwardConfig(width=2048, activation="relu", norm_out=norm, dropout=0.1),
        )
        return cls(
            width=512,
            embeddings=EmbeddingsConfig(
                vocabulary=vocabulary,
                positions="sinusoidal",
                max_positions=max_positions,
                scale=math.sqrt(512),
                dropout=0.1,
            ),
            blocks=(block,) * 6,
            init=InitConfig(kind="xavier"),
        )

    @classmethod
    def transformer_base_prenorm(cls, vocabulary: int = 37000, max_positions: int = 512) -> Self:
        """Its pre-norm sibling with RMSNorm, SwiGLU and no biases.

        The gated feed-forward is 1365 = ⅔ · 2048 wide, so it has as many parameters as the plain one
        (Shazeer 2020, section 3.1).
        """
        norm = NormConfig(kind="rms", eps=1e-6, bias=False)
        block = BlockConfig(
            attention=AttentionConfig(
                heads=8, head_width=64, bias=False, output_bias=False, norm_in=norm, dropout=0.1
            ),
            feedforward=FeedForwardConfig(
                width=1365, activation="silu", gated=True, bias=False, output_bias=False, norm_in=norm, dropout=0.1
            ),
        )
        base = cls.transformer_base(vocabulary, max_positions)
        return base.replace(blocks=(block,) * 6, norm=norm)


PRESETS = {
    "transformer-base": EncoderConfig.transformer_base,
    "transformer-base-prenorm": EncoderConfig.transformer_base_prenorm,
}
