"""What an encoder is made of: frozen data, one resolved `BlockConfig` per block.

The tree mirrors the names of the sites: `config.blocks[3].attention.norm_out` describes the module whose
output is the site `blocks.3.attention.norm_out`.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

from addnorm.errors import AddnormError
from addnorm.strict import Config

NormKind = Literal["layer", "rms", "batch"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
Task = Literal["fill", "classify", "tag", "answer", "detect"]
Part = Literal["embeddings", "attention", "feedforward", "norms", "pooler", "head"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AddnormError(f"config: {message}")


@dataclass(frozen=True, kw_only=True)
class NormConfig(Config):
    """A normalisation: `layer` (Ba 2016), `rms` (Zhang & Sennrich 2019) or, for study, `batch` over tokens."""

    kind: NormKind = "layer"
    eps: float = 1e-5
    bias: bool = True

    def num_params(self, width: int) -> int:
        """Learned gains and shifts of one norm over `width` features."""
        return width * (2 if self.bias and self.kind != "rms" else 1)


@dataclass(frozen=True, kw_only=True)
class Learned(Config):
    """A learned α or β: one number for the unit, or one per feature (LayerScale)."""

    init: float
    shape: Literal["scalar", "vector"] = "scalar"


@dataclass(frozen=True, kw_only=True)
class UnitConfig(Config):
    """The slots of  x ← N_out(α·x + β·N_branch(F(N_in(x)))).  An absent norm is None; dropout belongs to F."""

    norm_in: NormConfig | None = None
    norm_branch: NormConfig | None = None
    norm_out: NormConfig | None = None
    alpha: float | Learned = 1.0
    beta: float | Learned = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

    @property
    def norms(self) -> dict[str, NormConfig]:
        """The filled norm slots by name."""
        slots = {"norm_in": self.norm_in, "norm_branch": self.norm_branch, "norm_out": self.norm_out}
        return {name: norm for name, norm in slots.items() if norm is not None}

    def num_slot_params(self, width: int) -> int:
        """Parameters of the slots: norms and learned scales."""
        scales = [scale for scale in (self.alpha, self.beta) if isinstance(scale, Learned)]
        return sum(norm.num_params(width) for norm in self.norms.values()) + sum(
            width if scale.shape == "vector" else 1 for scale in scales
        )


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(Config):
    """Rotary positions (Su 2021): pairs of features turned by an angle that grows with the position.

    `theta`: base of the wavelengths; `width`: the first features of a head that turn, all where None;
    `interleaved`: neighbours are a pair, not feature i and i + width/2; `scaling`: positions are divided by
    it; `value`: values are turned too.
    """

    theta: float = 10000.0
    width: int | None = None
    interleaved: bool = False
    scaling: float = 1.0
    value: bool = False


@dataclass(frozen=True, kw_only=True)
class PositionBiasConfig(Config):
    """A term of the scores that depends on the distance between two tokens.

    `buckets`: a learned number for each head and bucket, buckets growing with the logarithm of the distance
    up to `max_distance` (Raffel 2020); `alibi`: −slope·distance, a slope a head (Press 2022).
    """

    kind: Literal["buckets", "alibi"] = "buckets"
    buckets: int = 32
    max_distance: int = 128

    def num_params(self, heads: int) -> int:
        """The table's numbers; ALiBi has none."""
        return self.buckets * heads if self.kind == "buckets" else 0


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(UnitConfig):
    """Multi-head self-attention and the slots of its unit (Vaswani 2017, section 3.2).

    `kv_heads`: heads of key and value where several query heads share one (Ainslie 2023);
    `scale`: of the scores, 1/√head_width where None; `softcap`: c·tanh(scores/c) (Gemma 2);
    `bias`: of the three input projections; `output_bias`: of the output projection;
    `weights_dropout`: on the attention weights; `query_norm`, `key_norm`: over the features of each head,
    or over all heads' together (`norm_heads` false); `mix_norm`: before the output projection (sub-LN);
    `rotary`: positions by rotation; `position_bias`: own term of the scores by distance;
    `window`: a token sees those at most so many positions away.
    """

    heads: int
    head_width: int
    kv_heads: int | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: bool = True
    output_bias: bool = True
    weights_dropout: float = 0.0
    query_norm: NormConfig | None = None
    key_norm: NormConfig | None = None
    norm_heads: bool = True
    mix_norm: NormConfig | None = None
    rotary: RotaryConfig | None = None
    position_bias: PositionBiasConfig | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.heads > 0 and self.head_width > 0, "attention needs heads and head_width above 0")
        _require(self.heads % self.key_heads == 0, f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        _require(0 <= self.weights_dropout < 1, f"weights_dropout {self.weights_dropout} is not in [0, 1)")
        _require(self.window is None or self.window >= 0, f"window {self.window} is below 0")

    @property
    def key_heads(self) -> int:
        """Heads of key and value."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def num_sublayer_params(self, width: int) -> int:
        """Parameters of the four projections and of a learned position bias."""
        inner, shared = self.heads * self.head_width, self.key_heads * self.head_width
        biases = (inner + 2 * shared) * self.bias + width * self.output_bias
        table = self.position_bias.num_params(self.heads) if self.position_bias else 0
        return 2 * width * (inner + shared) + biases + table

    def num_slot_params(self, width: int) -> int:
        """Parameters of all norms of the unit, inside and outside the sub-layer, and learned scales."""
        inner, shared = self.heads * self.head_width, self.key_heads * self.head_width
        inside = (
            (self.query_norm, self.head_width if self.norm_heads else inner),
            (self.key_norm, self.head_width if self.norm_heads else shared),
            (self.mix_norm, inner),
        )
        return super().num_slot_params(width) + sum(norm.num_params(features) for norm, features in inside if norm)


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(UnitConfig):
    """Feed-forward F(x) = W₂ φ(W₁ x), or gated W₂ (φ(V x) ⊙ W₁ x) (Shazeer 2020), and the slots of its unit.

    `width`: the inner width; `bias`: of up and gate; `output_bias`: of down;
    `inner_norm`: before down (sub-LN).
    """

    width: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    output_bias: bool = True
    inner_norm: NormConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.width > 0, f"feed-forward width {self.width} is not above 0")

    def num_sublayer_params(self, width: int) -> int:
        """Parameters of the two (gated: three) projections."""
        inputs = 2 if self.gated else 1
        biases = inputs * self.width * self.bias + width * self.output_bias
        return (inputs + 1) * width * self.width + biases

    def num_slot_params(self, width: int) -> int:
        """Parameters of all norms of the unit, inside and outside the sub-layer, and learned scales."""
        inner = self.inner_norm.num_params(self.width) if self.inner_norm else 0
        return super().num_slot_params(width) + inner


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """One block: an attention unit and a feed-forward unit."""

    attention: AttentionConfig
    feedforward: FeedForwardConfig


@dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(Config):
    """Tokens (+ token types + positions), summed, normalised, projected.

    `width`: the width of the tables where it differs from the stream's (a projection follows);
    `scale`: factor on the token embeddings (√width in Vaswani 2017, section 3.4);
    `positions`: `learned` table, `sinusoidal` formula, or None where attention itself knows positions;
    `max_positions`: rows of the table; `position_offset`: the row of a text's first token;
    `pad`: a token id that takes no place in the count of positions (it gets row `pad`), as RoBERTa counts;
    `tasks`: rows of a table of task types, of which a text takes row 0 (ERNIE).
    """

    vocabulary: int
    positions: Literal["learned", "sinusoidal"] | None = "learned"
    max_positions: int
    position_offset: int = 0
    pad: int | None = None
    types: int = 0
    tasks: int = 0
    width: int | None = None
    scale: float = 1.0
    norm: NormConfig | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _require(self.vocabulary > 0, f"vocabulary {self.vocabulary} is not above 0")
        _require(self.max_positions > 0, f"max_positions {self.max_positions} is not above 0")
        _require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

    def num_params(self, width: int) -> int:
        """Parameters of tables and projection, without the norm."""
        own = self.width or width
        rows = self.vocabulary + self.types + self.tasks + self.max_positions * (self.positions == "learned")
        return rows * own + (own * width + width if self.width else 0)


@dataclass(frozen=True, kw_only=True)
class InitConfig(Config):
    """Fresh weights: `normal` N(0, std²) as BERT, or `xavier` uniform (Glorot & Bengio 2010); biases are 0."""

    kind: Literal["normal", "xavier"] = "normal"
    std: float = 0.02


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """What turns the stream into logits:  norm(φ(W x)) · outputs, each part but the last optional.

    `task`: fill (masked LM), classify, tag, answer (start and end), detect (replaced tokens);
    `pool`: classify from the `first` token, the `mean`, or the `pooler`; None: a row for each token;
    `dense`: width of the first map; `tied`: the output matrix is the token table.
    """

    task: Task
    outputs: int
    pool: Literal["first", "mean", "pooler"] | None = None
    dense: int | None = None
    dense_bias: bool = True
    activation: Activation | None = None
    norm: NormConfig | None = None
    tied: bool = False
    bias: bool = True
    dropout: float = 0.0

    def num_params(self, width: int) -> int:
        """Parameters of the head without a tied matrix."""
        features = self.dense or width
        dense = width * self.dense + self.dense * self.dense_bias if self.dense else 0
        norm = self.norm.num_params(features) if self.norm else 0
        return dense + norm + self.outputs * (self.bias + features * (not self.tied))


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """A whole encoder: embeddings, blocks, and what follows them.

    `width`: of the stream (HF: hidden_size); `position_bias`: one term of the scores for all blocks;
    `norm`: the final norm of a pre-norm stack; `pooler`: BERT's tanh projection of the first token;
    `shared`: for each block the earlier block whose parameters it uses (itself where it has its own).
    """

    width: int
    embeddings: EmbeddingsConfig
    blocks: tuple[BlockConfig, ...]
    position_bias: PositionBiasConfig | None = None
    norm: NormConfig | None = None
    pooler: bool = False
    head: HeadConfig | None = None
    shared: tuple[int, ...] | None = None
    init: InitConfig = InitConfig()

    def __post_init__(self) -> None:
        _require(self.width > 0, f"width {self.width} is not above 0")
        shared = self.shared
        if shared is not None:
            _require(len(shared) == len(self.blocks), f"shared names {len(shared)} blocks of {len(self.blocks)}")
            for i, owner in enumerate(shared):
                own = 0 <= owner <= i and shared[owner] == owner and self.blocks[owner] == self.blocks[i]
                _require(own, f"block {i} cannot share the parameters of block {owner}")

    @property
    def owners(self) -> tuple[int, ...]:
        """The blocks that have parameters of their own."""
        return tuple(range(len(self.blocks))) if self.shared is None else tuple(sorted(set(self.shared)))

    @property
    def max_tokens(self) -> int | None:
        """The longest text the positions allow; None where they set no limit."""
        embeddings = self.embeddings
        return embeddings.max_positions - embeddings.position_offset if embeddings.positions else None

    def num_params_by_part(self) -> dict[Part, int]:
        """Parameters of embeddings, attention, feed-forward, norms (with learned scales) and pooler."""
        width, blocks, embeddings = self.width, [self.blocks[i] for i in self.owners], self.embeddings
        units = [unit for block in blocks for unit in (block.attention, block.feedforward)]
        return {
            "embeddings": embeddings.num_params(width),
            "attention": sum(block.attention.num_sublayer_params(width) for block in blocks)
            + (self.position_bias.num_params(self.blocks[0].attention.heads) if self.position_bias else 0),
            "feedforward": sum(block.feedforward.num_sublayer_params(width) for block in blocks),
            "norms": sum(unit.num_slot_params(width) for unit in units)
            + (embeddings.norm.num_params(embeddings.width or width) if embeddings.norm else 0)
            + (self.norm.num_params(width) if self.norm else 0),
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
