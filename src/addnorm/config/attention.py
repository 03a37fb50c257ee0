"""Attention: its sub-layer, its unit, and how it knows positions."""

from dataclasses import dataclass
from typing import Literal

from addnorm.config.unit import NormConfig, UnitConfig
from addnorm.strict import Config, require


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
        require(self.span > 1, f"span {self.span} is below 2")
        far = self.max_distance is None or self.max_distance - 1 > self.span // 2
        require(far, f"max_distance {self.max_distance} is not above span/2 + 1")

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
        require(self.content_to_position or self.position_to_content, "disentangled attention has no term")
        require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

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
        require(self.heads > 0 and self.head_width > 0, "attention needs heads and head_width above 0")
        require(self.heads % self.key_heads == 0, f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        require(0 <= self.weights_dropout < 1, f"weights_dropout {self.weights_dropout} is not in [0, 1)")
        require(self.window is None or self.window >= 0, f"window {self.window} is below 0")
        plain = self.disentangled is None or self.key_heads == self.heads
        require(plain, "disentangled attention needs as many kv_heads as heads")

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
