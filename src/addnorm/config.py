"""What an encoder is made of: frozen data, one resolved `BlockConfig` per block.

The tree mirrors the names of the sites: `config.blocks[3].attention.norm_out` describes the module whose
output is the site `blocks.3.attention.norm_out`.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from addnorm.errors import AddnormError

NormKind = Literal["layer", "rms", "batch"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
Part = Literal["embeddings", "attention", "feedforward", "norms", "pooler"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A frozen dataclass that reads and writes plain data and refuses what it does not know."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> Self:
        """Build from nested plain data. Errors: unknown key, missing key, value of another type."""
        hints = _hints(cls)
        path = f"{where}." if where else ""
        for key in data:
            if key not in hints:
                raise AddnormError(
                    f"config: unknown key '{path}{key}'; {cls.__name__} knows {', '.join(sorted(hints))}"
                )
        values = {key: _read(hints[key], value, f"{path}{key}") for key, value in data.items()}
        for field in dataclasses.fields(cls):
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and field.name not in values:
                raise AddnormError(f"config: '{path}{field.name}' is missing; {cls.__name__} requires it")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The same config as nested plain data; `from_dict` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def to_json(self) -> str:
        """The config as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _hints(cls: type[Config]) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        nested = [option for option in options if isinstance(option, type) and issubclass(option, Config)]
        plain = [option for option in options if option not in nested and option is not type(None)]
        return _read((nested if isinstance(value, Mapping) and nested else plain or nested)[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Literal and value in get_args(hint):
        return value
    if isinstance(hint, type):
        if issubclass(hint, Config) and isinstance(value, Mapping):
            return hint.from_dict(value, where)
        if hint is float and type(value) in (int, float):
            return float(value)
        if type(value) is hint:
            return value
    expected = " | ".join(map(repr, get_args(hint))) if origin is Literal else getattr(hint, "__name__", hint)
    raise AddnormError(f"config: '{where}' is {value!r}; expected {expected}")


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
class AttentionConfig(UnitConfig):
    """Multi-head self-attention and the slots of its unit (Vaswani 2017, section 3.2).

    `bias`: of the three input projections; `output_bias`: of the output projection;
    `weights_dropout`: on the attention weights. Scores are scaled by 1/√head_width.
    """

    heads: int
    head_width: int
    bias: bool = True
    output_bias: bool = True
    weights_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.heads > 0 and self.head_width > 0, "attention needs heads and head_width above 0")
        _require(0 <= self.weights_dropout < 1, f"weights_dropout {self.weights_dropout} is not in [0, 1)")

    def num_sublayer_params(self, width: int) -> int:
        """Parameters of the four projections."""
        inner = self.heads * self.head_width
        biases = 3 * inner * self.bias + width * self.output_bias
        return 4 * width * inner + biases


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(UnitConfig):
    """Feed-forward F(x) = W₂ φ(W₁ x), or gated W₂ (φ(V x) ⊙ W₁ x) (Shazeer 2020), and the slots of its unit.

    `width`: the inner width; `bias`: of every projection.
    """

    width: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.width > 0, f"feed-forward width {self.width} is not above 0")

    def num_sublayer_params(self, width: int) -> int:
        """Parameters of the two (gated: three) projections."""
        inputs = 2 if self.gated else 1
        biases = (inputs * self.width + width) * self.bias
        return (inputs + 1) * width * self.width + biases


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """One block: an attention unit and a feed-forward unit."""

    attention: AttentionConfig
    feedforward: FeedForwardConfig


@dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(Config):
    """Tokens (+ positions + token types), summed, normalised, projected.

    `width`: the width of the tables where it differs from the stream's (a projection follows);
    `scale`: factor on the token embeddings (√width in Vaswani 2017, section 3.4);
    `positions`: `learned` table, `sinusoidal` formula, or None where attention itself knows positions.
    """

    vocabulary: int
    positions: Literal["learned", "sinusoidal"] | None = "learned"
    max_positions: int
    types: int = 0
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
        rows = self.vocabulary + self.types + self.max_positions * (self.positions == "learned")
        return rows * own + (own * width + width if self.width else 0)


@dataclass(frozen=True, kw_only=True)
class InitConfig(Config):
    """Fresh weights: `normal` N(0, std²) as BERT, or `xavier` uniform (Glorot & Bengio 2010); biases are 0."""

    kind: Literal["normal", "xavier"] = "normal"
    std: float = 0.02


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """A whole encoder: embeddings, blocks, and what follows them.

    `width`: of the stream (HF: hidden_size); `norm`: the final norm of a pre-norm stack;
    `pooler`: BERT's tanh projection of the first token.
    """

    width: int
    embeddings: EmbeddingsConfig
    blocks: tuple[BlockConfig, ...]
    norm: NormConfig | None = None
    pooler: bool = False
    init: InitConfig = InitConfig()

    def __post_init__(self) -> None:
        _require(self.width > 0, f"width {self.width} is not above 0")

    def num_params_by_part(self) -> dict[Part, int]:
        """Parameters of embeddings, attention, feed-forward, norms (with learned scales) and pooler."""
        width, units = self.width, [unit for b in self.blocks for unit in (b.attention, b.feedforward)]
        embeddings = self.embeddings
        return {
            "embeddings": embeddings.num_params(width),
            "attention": sum(block.attention.num_sublayer_params(width) for block in self.blocks),
            "feedforward": sum(block.feedforward.num_sublayer_params(width) for block in self.blocks),
            "norms": sum(unit.num_slot_params(width) for unit in units)
            + (embeddings.norm.num_params(embeddings.width or width) if embeddings.norm else 0)
            + (self.norm.num_params(width) if self.norm else 0),
            "pooler": width * width + width if self.pooler else 0,
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
                width=1365, activation="silu", gated=True, bias=False, norm_in=norm, dropout=0.1
            ),
        )
        base = cls.transformer_base(vocabulary, max_positions)
        return base.replace(blocks=(block,) * 6, norm=norm)


PRESETS = {
    "transformer-base": EncoderConfig.transformer_base,
    "transformer-base-prenorm": EncoderConfig.transformer_base_prenorm,
}
