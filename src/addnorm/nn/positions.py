"""How an encoder knows positions: embeddings, rotations, terms of the scores."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from addnorm.config import PositionBiasConfig, RotaryConfig
from addnorm.errors import AddnormError


class Sinusoidal(nn.Module):
    """sin and cos of pos/10000^(2i/D) in turn (Vaswani 2017, section 3.5).

    Computed in float64 at each call: there is no buffer that could be left uninitialised.
    """

    def __init__(self, max_positions: int, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        """(N,) → (N, D) in the default dtype."""
        even = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device)
        angles = positions[:, None] * 10000 ** (-even / self.width)  # (N, ⌈D/2⌉)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (N, D or D+1)
        return table[:, : self.width]


def build_table(rows: int, width: int) -> nn.Embedding:
    """A learned table (rows, width)."""
    weight = torch.empty(rows, width)
    # Drawing a table without memory would load torch's compiler, which takes seconds.
    return nn.Embedding(rows, width, _weight=weight) if weight.is_meta else nn.Embedding(rows, width)


POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "learned": build_table,
    "sinusoidal": Sinusoidal,
}


class Rotary(nn.Module):
    """Turns pairs of features by position · theta^(−2i/width) (Su 2021, section 3.2.2).

    Frequencies are float32 numbers, as nearly every checkpoint was trained with (`exact`: float64); angles
    have at least that precision. Nothing is stored, so nothing can be left uninitialised.
    """

    def __init__(self, config: RotaryConfig, head_width: int) -> None:
        super().__init__()
        self.config = config
        self.width = config.width or head_width

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(N, H, K), (N,) → (N, H, K). Errors: a text longer than the limit."""
        limit = self.config.limit
        if limit is not None and (last := int(positions.max())) >= limit:
            raise AddnormError(f"position {last} is beyond the {limit} of the model's rotation; shorten the text")
        turned, rest = x[..., : self.width], x[..., self.width :]
        cos, sin = self._tables(positions, x.dtype)  # (N, 1, width/2)
        if self.config.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned

    def _tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies()
        precise = torch.promote_types(dtype, frequencies.dtype)
        angles = (positions[:, None].to(precise) * frequencies.to(positions.device, precise))[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def frequencies(self) -> Tensor:
        """(width/2,), float32 or, exact, float64: the angle of each pair at position 1."""
        even = torch.arange(0, self.width, 2, dtype=torch.float64 if self.config.exact else torch.float32)
        frequencies = 1.0 / (self.config.theta ** (even / self.width)) / self.config.scaling
        return frequencies.half().float() if self.config.half else frequencies


class BucketBias(nn.Module):
    """A learned number for each head and bucket of distances (Raffel 2020, section 2.1)."""

    def __init__(self, config: PositionBiasConfig, heads: int) -> None:
        super().__init__()
        self.config = config
        self.table = build_table(config.buckets, heads)

    def forward(self, length: int) -> Tensor:
        """T → (H, T, T), queries down, keys across."""
        place = torch.arange(length, device=self.table.weight.device)
        return self.table(self._bucket(place[None, :] - place[:, None])).permute(2, 0, 1)

    def _bucket(self, distance: Tensor) -> Tensor:
        half = self.config.buckets // 2  # one half for keys before the query, one for those after
        exact = half // 2  # distances with a bucket of their own
        far = distance.abs()
        # float32, as in the reference: at a bucket's edge the rounding decides.
        logarithm = torch.log(far.float() / exact) / math.log(self.config.max_distance / exact)
        coarse = (exact + (logarithm * (half - exact)).long()).clamp(max=half - 1)
        return torch.where(far < exact, far, coarse) + half * (distance > 0)


class Alibi(nn.Module):
    """−slope·|distance|, the slopes a geometric series over the heads (Press 2022, section 3)."""

    def __init__(self, config: PositionBiasConfig, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, length: int) -> Tensor:
        """T → (H, T, T), float32, queries down, keys across."""
        place = torch.arange(length)
        slopes = torch.tensor(alibi_slopes(self.heads), dtype=torch.float64)
        return -slopes[:, None, None] * (place[None, :] - place[:, None]).abs()


def alibi_slopes(heads: int) -> list[float]:
    """2^(−8/H), 2^(−16/H) …; where H is no power of 2, every second slope of the next one fills up."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + alibi_slopes(2 * power)[0::2][: heads - power]


POSITION_BIASES: dict[str, Callable[[PositionBiasConfig, int], nn.Module]] = {"buckets": BucketBias, "alibi": Alibi}


def build_position_bias(config: PositionBiasConfig | None, heads: int) -> nn.Module | None:
    """The position bias a config asks for, T → (H, T, T); None where it asks for none."""
    return None if config is None else POSITION_BIASES[config.kind](config, heads)
