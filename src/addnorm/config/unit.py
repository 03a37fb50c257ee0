"""The slots of a unit, and what fills them."""

from dataclasses import dataclass
from typing import Literal

from addnorm.strict import Config, require

NormKind = Literal["layer", "rms", "batch", "dyt", "derf", "affine"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]


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
        require(0 <= self.dropout < 1, f"dropout {self.dropout} is not in [0, 1)")

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
