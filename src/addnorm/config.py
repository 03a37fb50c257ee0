"""What an encoder is made of: frozen data, one resolved `BlockConfig` per block.

The tree mirrors the names of the sites: `config.blocks[3].attention.norm_out` describes the module whose
output is the site `blocks.3.attention.norm_out`.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

from addnorm.errors import AddnormError
from addnorm.strict import Config

NormKind = Literal["layer", "rms", "batch", "dyt", "derf", "affine"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
Task = Literal["fill", "classify", "tag", "answer", "detect"]
Part = Literal[
    "embeddings", "attention", "feedforward", "bottleneck", "convolution", "norms", "wiring", "pooler", "head"
]
Draw = Literal["normal", "xavier", "xavier_normal", "he", "orthogonal", "identity", "zero"]
Matrix = Literal["tokens", "positions", "types", "query", "key", "value", "output", "up", "gate", "down"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AddnormError(f"config: {message}")


@dataclass(frozen=True, kw_only=True)
class NormConfig(Config):
    """A normalisation, or what stands in its place.

    `layer` (Ba 2016), `rms` (Zhang & Sennrich 2019), for study `batch` over tokens; without statistics:
    `dyt` g·tanh(a·x) + b (Zhu 2025), `derf` g·erf(a·x + s) + b (Chen 2025), `affine` g·x + b (NoNorm, Sun 2020).
    `slope`: the a that dyt and derf start from; `factor`: a constant on the result (1/√l in Sun 2025).
    """

    kind: NormKind = "layer"
    eps: float = 1e-5
    bias: bool = True
    slope: float = 0.5
    factor: float = 1.0

    def num_params(self, width: int) -> int:
        """Learned gains, shifts and slopes of one norm over `width` features."""
        shifts = self.kind == "batch" or (self.bias and self.kind != "rms")
        return width * (1 + shifts) + {"dyt": 1, "derf": 2}.get(self.kind, 0)


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
    it; `value`: values are turned too; `exact`: frequencies are float64 numbers (RoFormer), not float32;
    `half`: they are float16 numbers, as in training (ESM-2);
    `limit`: the longest text, where longer ones turn by angles that are not computed here.
    """

    theta: float = 10000.0
    width: int | None = None
    interleaved: bool = False
    scaling: float = 1.0
    value: bool = False
    exact: bool = False
    half: bool = False
    limit: int | None = None


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
class ShapingConfig(Config):
    """Attention weights A ← a·I + b·softmax − g·C, with a learned a, b, g a head, and where they start.

    C is what softmax gives for equal scores: 1/T. Shaped attention (Noci 2023) starts from 1, 1, 1,
    Value-SkipInit (He 2023) from 1, 0, 0.
    """

    identity: float = 1.0
    softmax: float = 1.0
    centre: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RelativeConfig(Config):
    """A table of distances that disentangled attention reads, one for all blocks (He 2021, section 3.1).

    It has 2·`span` rows, for keys from span places after the query to span − 1 places before it; what is
    farther takes the last row. `max_distance`: where given, only distances up to span/2 have a row of their
    own, the others share rows growing with the logarithm of the distance up to it; `norm`: of the rows.
    """

    span: int
    max_distance: int | None = None
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        _require(self.span > 1, f"span {self.span} is below 2")
        far = self.max_distance is None or self.max_distance - 1 > self.span // 2
        _require(far, f"max_distance {self.max_distance} is not above span/2 + 1")

    def num_params(self, width: int) -> int:
        """The table's numbers, without the norm."""
        return 2 * self.span * width


@dataclass(frozen=True, kw_only=True)
class DisentangledConfig(Config):
    """Terms of the scores between what a token is and how far another is away (DeBERTa, He 2021, eq. 4).

    `content_to_position`: queries times projected distances; `position_to_content`: projected distances times
    keys; `shared`: distances are projected as the contents are; `key_bias`: of an own projection to keys;
    `dropout`: on the table.
    """

    content_to_position: bool = True
    position_to_content: bool = True
    shared: bool = False
    key_bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _require(self.content_to_position or self.position_to_content, "disentangled attention has no term")
        _require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

    def num_params(self, width: int, inner: int) -> int:
        """Parameters of the projections of distances."""
        key = (width * inner + inner * self.key_bias) * self.content_to_position
        query = (width * inner + inner) * self.position_to_content
        return 0 if self.shared else key + query


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(UnitConfig):
    """Multi-head self-attention and the slots of its unit (Vaswani 2017, section 3.2).

    `kv_heads`: heads of key and value where several query heads share one (Ainslie 2023);
    `scale`: of the scores, 1/√head_width where None; `softcap`: c·tanh(scores/c) (Gemma 2);
    `bias`: of the three input projections; `key_bias`: false where of them the key has none;
    `output_bias`: of the output projection;
    `weights_dropout`: on the attention weights; `query_norm`, `key_norm`: over the features of each head,
    or over all heads' together (`norm_heads` false); `value_norm`: likewise (HybridNorm);
    `mix_norm`: before the output projection (sub-LN); `head_scale`: a learned factor a head before that
    (NormFormer); `shaping`: identity and mean in the weights; `value_residual`: the share of the first
    block's values in those of this one (ResFormer);
    `rotary`: positions by rotation; `position_bias`: own term of the scores by distance;
    `disentangled`: own terms of the scores between contents and distances;
    `window`: a token sees those at most so many positions away;
    `value_width`: features that values are projected from, where they are not those of queries and keys.
    """

    heads: int
    head_width: int
    kv_heads: int | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: bool = True
    key_bias: bool = True
    output_bias: bool = True
    weights_dropout: float = 0.0
    query_norm: NormConfig | None = None
    key_norm: NormConfig | None = None
    value_norm: NormConfig | None = None
    norm_heads: bool = True
    mix_norm: NormConfig | None = None
    head_scale: bool = False
    shaping: ShapingConfig | None = None
    value_residual: float | None = None
    rotary: RotaryConfig | None = None
    position_bias: PositionBiasConfig | None = None
    disentangled: DisentangledConfig | None = None
    window: int | None = None
    value_width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.heads > 0 and self.head_width > 0, "attention needs heads and head_width above 0")
        _require(self.heads % self.key_heads == 0, f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        _require(0 <= self.weights_dropout < 1, f"weights_dropout {self.weights_dropout} is not in [0, 1)")
        _require(self.window is None or self.window >= 0, f"window {self.window} is below 0")
        plain = self.disentangled is None or self.key_heads == self.heads
        _require(plain, "disentangled attention needs as many kv_heads as heads")

    @property
    def key_heads(self) -> int:
        """Heads of key and value."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def num_sublayer_params(self, width: int) -> int:
        """Parameters of the four projections and of a learned position bias."""
        inner, shared = self.heads * self.head_width, self.key_heads * self.head_width
        biases = (inner + shared + shared * self.key_bias) * self.bias + width * self.output_bias
        distances = self.disentangled.num_params(width, inner) if self.disentangled else 0
        table = self.position_bias.num_params(self.heads) if self.position_bias else 0
        by_head = self.heads * (self.head_scale + 3 * (self.shaping is not None))
        values = (self.value_width or width) * shared
        return width * (2 * inner + shared) + values + biases + table + distances + by_head

    def num_slot_params(self, width: int) -> int:
        """Parameters of all norms of the unit, inside and outside the sub-layer, and learned scales."""
        inner, shared = self.heads * self.head_width, self.key_heads * self.head_width
        inside = (
            (self.query_norm, self.head_width if self.norm_heads else inner),
            (self.key_norm, self.head_width if self.norm_heads else shared),
            (self.value_norm, self.head_width if self.norm_heads else shared),
            (self.mix_norm, inner),
        )
        return super().num_slot_params(width) + sum(norm.num_params(features) for norm, features in inside if norm)


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(UnitConfig):
    """Feed-forward F(x) = W₂ φ(W₁ x), or gated W₂ (φ(V x) ⊙ W₁ x) (Shazeer 2020), and the slots of its unit.

    `width`: the inner width; `bias`: of up and gate; `output_bias`: of down;
    `inner_norm`: before down (sub-LN), `inner_dropout`: likewise.
    """

    width: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    output_bias: bool = True
    inner_norm: NormConfig | None = None
    inner_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.width > 0, f"feed-forward width {self.width} is not above 0")
        _require(0 <= self.inner_dropout < 1, f"inner_dropout {self.inner_dropout} is not in [0, 1)")

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
class ConvolutionConfig(Config):
    """A convolution over the tokens beside a block: N_out(block(x) + φ(conv(x))) (DeBERTa-v2).

    `kernel`: tokens it sees, an odd number; `groups`: parts of the features that are kept apart.
    """

    kernel: int
    groups: int = 1
    activation: Activation = "tanh"
    norm_out: NormConfig | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _require(self.kernel > 0 and self.kernel % 2 == 1, f"kernel {self.kernel} is not an odd number above 0")
        _require(self.groups > 0, f"groups {self.groups} is not above 0")
        _require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

    def num_params(self, width: int) -> int:
        """Parameters of the kernel and its bias, without the norm."""
        return width // self.groups * width * self.kernel + width


@dataclass(frozen=True, kw_only=True)
class BottleneckConfig(UnitConfig):
    """A unit of the stream whose F is a whole block on a narrow stream of its own (MobileBERT, Sun 2020).

    `width`: of the narrow stream; `norm`: after the way in; `queries`: queries and keys have a way in of
    their own, and values come from the wide stream.
    """

    width: int
    norm: NormConfig | None = None
    queries: bool = False

    def num_sublayer_params(self, width: int) -> int:
        """Parameters of the ways in and of the way out."""
        ways = 2 if self.queries else 1
        return ways * (width * self.width + self.width) + self.width * width + width

    def num_slot_params(self, width: int) -> int:
        """Parameters of all norms of the unit, at the ways in and outside, and learned scales."""
        inside = self.norm.num_params(self.width) * (2 if self.queries else 1) if self.norm else 0
        return super().num_slot_params(width) + inside


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """One block: an attention unit and a feed-forward unit.

    `tied_beta`: both units have the one learned β (ReZero); `convolution`: beside the two units;
    `further`: feed-forward units that follow (adapters; MobileBERT has several);
    `bottleneck`: the units stand on a narrow stream, and the block as a whole is one unit of the wide one;
    `tied_norms`: norms around the sub-layers, by path, that are one and the same.
    """

    attention: AttentionConfig
    feedforward: FeedForwardConfig
    tied_beta: bool = False
    convolution: ConvolutionConfig | None = None
    further: tuple[FeedForwardConfig, ...] = ()
    bottleneck: BottleneckConfig | None = None
    tied_norms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        same = isinstance(self.attention.beta, Learned) and self.attention.beta == self.feedforward.beta
        _require(same or not self.tied_beta, "tied_beta needs one and the same learned beta in both units")
        tied = {self.norms.get(path) for path in self.tied_norms}
        _require(len(tied) < 2 and None not in tied, f"tied_norms {self.tied_norms} are not norms that are alike")
        wide = self.bottleneck is not None and self.bottleneck.queries
        _require(self.attention.value_width is None or wide, "value_width needs a bottleneck with queries of its own")

    @property
    def units(self) -> dict[str, UnitConfig]:
        """The units in order, by path, the bottleneck aside."""
        further = {f"further.{k}": unit for k, unit in enumerate(self.further)}
        return {"attention": self.attention, "feedforward": self.feedforward, **further}

    @property
    def norms(self) -> dict[str, NormConfig]:
        """The norms around the units' sub-layers, by path."""
        return {f"{path}.{slot}": norm for path, unit in self.units.items() for slot, norm in unit.norms.items()}

    def width_within(self, width: int) -> int:
        """The width of the stream that the units stand on, in a stream of `width` features."""
        return self.bottleneck.width if self.bottleneck else width

    def num_slot_params(self, width: int) -> int:
        """Parameters of the slots of all units, and of a convolution's norm."""
        beta, inner = self.attention.beta, self.width_within(width)
        again = (inner if beta.shape == "vector" else 1) if self.tied_beta and isinstance(beta, Learned) else 0
        norm = self.convolution.norm_out if self.convolution else None
        beside = norm.num_params(width) if norm else 0
        tied = sum(self.norms[path].num_params(inner) for path in self.tied_norms[1:])
        outside = self.bottleneck.num_slot_params(width) if self.bottleneck else 0
        return outside + sum(unit.num_slot_params(inner) for unit in self.units.values()) - again - tied + beside


@dataclass(frozen=True, kw_only=True)
class TableConfig(Config):
    """A table of `rows` vectors, each `width` wide."""

    rows: int
    width: int

    def __post_init__(self) -> None:
        _require(self.rows > 0 and self.width > 0, f"a table of {self.rows} rows, {self.width} wide, holds nothing")


@dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(Config):
    """Tokens (+ token types + positions), summed, normalised, projected.

    `width`: the width of the tables where it differs from the stream's (a projection follows);
    `scale`: factor on the token embeddings (√width in Vaswani 2017, section 3.4);
    `positions`: `learned` table, `sinusoidal` formula, or None where attention itself knows positions;
    `max_positions`: rows of the table; `position_offset`: the row of a text's first token;
    `pad`: a token id that takes no place in the count of positions (it gets row `pad`), as RoBERTa counts;
    `tasks`: rows of a table of task types, of which a text takes row 0 (ERNIE);
    `shapes`, `pronunciations`: tables of how a token is written and said, of which it takes row 0, laid beside
    its own vector; `merge`: a projection of what lies side by side to the tables' width (RoCBert);
    `tokens_width`: of the token table, where it alone differs and is merged;
    `trigrams`: a token's vector lies between those of its two neighbours (MobileBERT);
    `dropped`: a token id whose vector is 0, for which the text's others are scaled up (ESM).
    """

    vocabulary: int
    positions: Literal["learned", "sinusoidal"] | None = "learned"
    max_positions: int
    position_offset: int = 0
    pad: int | None = None
    types: int = 0
    tasks: int = 0
    shapes: TableConfig | None = None
    pronunciations: TableConfig | None = None
    merge: bool = False
    tokens_width: int | None = None
    trigrams: bool = False
    dropped: int | None = None
    width: int | None = None
    scale: float = 1.0
    norm: NormConfig | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _require(self.vocabulary > 0, f"vocabulary {self.vocabulary} is not above 0")
        _require(self.max_positions > 0, f"max_positions {self.max_positions} is not above 0")
        _require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")
        _require(self.merge or not self.side, "shapes and pronunciations need merge, which joins them to the tokens")
        _require(self.merge or not (self.trigrams or self.tokens_width), "trigrams and tokens_width need merge")

    @property
    def side(self) -> tuple[TableConfig, ...]:
        """The tables whose rows lie beside a token's own vector."""
        return tuple(table for table in (self.shapes, self.pronunciations) if table is not None)

    def num_params(self, width: int) -> int:
        """Parameters of tables and projections, without the norm."""
        own, beside = self.width or width, sum(table.width for table in self.side)
        tokens = self.tokens_width or own
        rows = self.types + self.tasks + self.max_positions * (self.positions == "learned")
        tables = self.vocabulary * tokens + rows * own + sum(table.rows * table.width for table in self.side)
        merge = (tokens * (3 if self.trigrams else 1) + beside) * own + own if self.merge else 0
        return tables + merge + (own * width + width if self.width else 0)


@dataclass(frozen=True, kw_only=True)
class WiringConfig(Config):
    """Another way from unit to unit than one stream (nn/streams.py has the formulas).

    `parallel`, `b2t`, `residual` (ResiDual: `scale` of the second stream, `norm` at its end), `dense`
    (DenseFormer), `hyper` (hyper-connections: `streams`, mixed by learned constants and, where `dynamic`,
    by the streams themselves), `attention` (attention residuals).
    """

    kind: Literal["parallel", "b2t", "residual", "dense", "hyper", "attention"]
    scale: float = 1.0
    norm: NormConfig | None = None
    streams: int = 1
    dynamic: bool = False

    def __post_init__(self) -> None:
        _require(self.streams > 0, f"wiring needs streams above 0, not {self.streams}")
        for name, value, plain, kind in (
            ("scale", self.scale, 1.0, "residual"),
            ("norm", self.norm, None, "residual"),
            ("streams", self.streams, 1, "hyper"),
            ("dynamic", self.dynamic, False, "hyper"),
        ):
            _require(value == plain or self.kind == kind, f"wiring '{self.kind}' has no {name}; '{kind}' has")

    def num_params(self, width: int, depth: int) -> int:
        """Parameters of the wiring of `depth` blocks, its norms included."""
        n, units = self.streams, 2 * depth
        dynamic = (2 * width + width * (n + 2) + 2) * self.dynamic
        return {
            "residual": self.norm.num_params(width) if self.norm else 0,
            "dense": sum(range(2, depth + 2)),
            "hyper": units * (n * n + 2 * n + dynamic),
            "attention": units * 2 * width,
        }.get(self.kind, 0)


@dataclass(frozen=True, kw_only=True)
class MatrixInit(Config):
    """How one of the matrices departs from the others: another draw, and a factor on what is drawn."""

    matrix: Matrix
    kind: Draw | None = None
    gain: float = 1.0


@dataclass(frozen=True, kw_only=True)
class InitConfig(Config):
    """Fresh weights; biases are 0.

    `normal` N(0, `std`²) as BERT; `xavier` uniform, `xavier_normal` (Glorot & Bengio 2010); `he` N(0, 2/fan_in)
    (He 2015); `orthogonal`; `identity`; `zero`. `matrices`: those that depart from the rest, by name.
    """

    kind: Draw = "normal"
    std: float = 0.02
    matrices: tuple[MatrixInit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """What turns the stream into logits:  norm(φ(W x)) · outputs, each part but the last optional.

    `task`: fill (masked LM), classify, tag, answer (start and end), detect (replaced tokens);
    `pool`: classify from the `first` token, the `mean`, the `pooler`, or `late` from the mean of what dense and
    norm made of each token; None: a row for each token;
    `dense`: width of the first map; `tied`: the output matrix is the token table;
    `own`: so many last features have an output matrix of their own, where the token table is narrower;
    `dropout_in`: before the first map, `dropout`: before the outputs.
    """

    task: Task
    outputs: int
    pool: Literal["first", "mean", "pooler", "late"] | None = None
    dense: int | None = None
    dense_bias: bool = True
    activation: Activation | None = None
    norm: NormConfig | None = None
    tied: bool = False
    own: int = 0
    bias: bool = True
    dropout_in: float = 0.0
    dropout: float = 0.0

    def num_params(self, width: int) -> int:
        """Parameters of the head without a tied matrix."""
        features = self.dense or width
        dense = width * self.dense + self.dense * self.dense_bias if self.dense else 0
        norm = self.norm.num_params(features) if self.norm else 0
        return dense + norm + self.outputs * (self.bias + (self.own if self.tied else features))


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
    init: InitConfig = InitConfig()

    def __post_init__(self) -> None:
        _require(self.width > 0, f"width {self.width} is not above 0")
        reads = any(block.attention.disentangled for block in self.blocks)
        _require(self.relative is not None or not reads, "disentangled attention needs the table `relative`")
        beside = any(block.convolution for block in self.blocks)
        _require(self.wiring is None or not beside, "a wiring has no place for a block's convolution")
        shared = self.shared
        if shared is not None:
            _require(len(shared) == len(self.blocks), f"shared names {len(shared)} blocks of {len(self.blocks)}")
            for i, owner in enumerate(shared):
                own = 0 <= owner <= i and shared[owner] == owner and self.blocks[owner] == self.blocks[i]
                _require(own, f"block {i} cannot share the parameters of block {owner}")
        plain = all(not (block.further or block.bottleneck or block.convolution) for block in self.blocks)
        _require(self.wiring is None or plain, "a wiring needs blocks of an attention and a feed-forward unit alone")
        looking_back = [block.attention for block in self.blocks if block.attention.value_residual is not None]
        values = {(attention.key_heads, attention.head_width) for attention in looking_back}
        _require(len(values) < 2, "value_residual needs blocks with the same key heads and head width")
        plain = not any(block.further or block.bottleneck for block in self.blocks)
        _require(plain or self.wiring is None, "a wiring needs blocks of two units, without bottleneck")

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
