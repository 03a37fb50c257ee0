"""What surrounds the blocks: embeddings, wiring, fresh weights, head."""

from dataclasses import dataclass
from typing import Literal

from addnorm.config.unit import Activation, NormConfig
from addnorm.strict import Config, require

Task = Literal["fill", "classify", "tag", "answer", "detect"]
Draw = Literal["normal", "xavier", "xavier_normal", "he", "orthogonal", "identity", "zero"]
Matrix = Literal["tokens", "positions", "types", "query", "key", "value", "output", "up", "gate", "down"]


@dataclass(frozen=True, kw_only=True)
class TableConfig(Config):
    """A table of `rows` vectors, each `width` wide."""

    rows: int
    width: int

    def __post_init__(self) -> None:
        require(self.rows > 0 and self.width > 0, f"a table of {self.rows} rows, {self.width} wide, holds nothing")


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
        require(self.vocabulary > 0, f"vocabulary {self.vocabulary} is not above 0")
        require(self.max_positions > 0, f"max_positions {self.max_positions} is not above 0")
        require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")
        require(self.merge or not self.side, "shapes and pronunciations need merge, which joins them to the tokens")
        require(self.merge or not (self.trigrams or self.tokens_width), "trigrams and tokens_width need merge")

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
        require(self.streams > 0, f"wiring needs streams above 0, not {self.streams}")
        for name, value, plain, kind in (
            ("scale", self.scale, 1.0, "residual"),
            ("norm", self.norm, None, "residual"),
            ("streams", self.streams, 1, "hyper"),
            ("dynamic", self.dynamic, False, "hyper"),
        ):
            require(value == plain or self.kind == kind, f"wiring '{self.kind}' has no {name}; '{kind}' has")

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
