"""The feed-forward unit, and the block with what may stand beside its two units."""

from dataclasses import dataclass

from addnorm.config.attention import AttentionConfig
from addnorm.config.unit import Activation, Learned, NormConfig, UnitConfig
from addnorm.strict import Config, require


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
        require(self.width > 0, f"feed-forward width {self.width} is not above 0")
        require(0 <= self.inner_dropout < 1, f"inner_dropout {self.inner_dropout} is not in [0, 1)")

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
        require(self.kernel > 0 and self.kernel % 2 == 1, f"kernel {self.kernel} is not an odd number above 0")
        require(self.groups > 0, f"groups {self.groups} is not above 0")
        require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

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
        require(same or not self.tied_beta, "tied_beta needs one and the same learned beta in both units")
        tied = {self.norms.get(path) for path in self.tied_norms}
        require(len(tied) < 2 and None not in tied, f"tied_norms {self.tied_norms} are not norms that are alike")
        wide = self.bottleneck is not None and self.bottleneck.queries
        require(self.attention.value_width is None or wide, "value_width needs a bottleneck with queries of its own")

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
