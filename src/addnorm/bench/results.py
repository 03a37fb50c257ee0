"""What a run found, as data that goes to JSON and back; medians and ratios round by round."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from addnorm.bench.systems import OURS, YARDSTICK
from addnorm.errors import AddnormError
from addnorm.files import expect, read_json


@dataclass(frozen=True)
class Texts:
    """A workload: how many texts, tokens after the cut, operations that the tokens need."""

    name: str
    texts: int
    tokens: int
    shortest: int
    longest: int
    max_tokens: int
    flops: int
    single: bool


@dataclass(frozen=True)
class Measured:
    """One system on one workload. `heat`: the precision at which it ran in turn with others and with ours.

    `seconds`: of each round; `choice`: the way and batch that were fastest in its warm-up; `difference`: the
    largest from transformers in float32; `cosine`, `worst`: to it, their mean and the least.
    """

    workload: str
    heat: str
    system: str
    precision: str
    seconds: tuple[float, ...]
    choice: str = ""
    difference: float | None = None
    cosine: float | None = None
    worst: float | None = None


@dataclass(frozen=True)
class Left:
    """What was left out, and why."""

    system: str
    precision: str
    workload: str
    reason: str


@dataclass(frozen=True)
class Scaled:
    """A system on so many texts: seconds, and resident bytes before and at most meanwhile."""

    system: str
    precision: str
    texts: int
    tokens: int
    seconds: float
    before: int
    peak: int


@dataclass(frozen=True)
class Ceiling:
    """The largest rates found: operations a second of matrix products by precision, and bytes a second copied."""

    flops: dict[str, float]
    how: dict[str, str]
    bytes: float

    def best(self, other: "Ceiling") -> "Ceiling":
        """The larger rates of two."""
        better = {p for p, rate in other.flops.items() if rate > self.flops.get(p, 0)}
        return Ceiling(
            self.flops | {p: other.flops[p] for p in better},
            self.how | {p: other.how[p] for p in better},
            max(self.bytes, other.bytes),
        )


@dataclass(frozen=True)
class Result:
    """One model's run. `machine`, `model`, `settings`: descriptions, name to value."""

    machine: dict[str, Any]
    model: dict[str, Any]
    settings: dict[str, Any]
    ceiling: Ceiling
    workloads: tuple[Texts, ...]
    measured: tuple[Measured, ...]
    left: tuple[Left, ...] = ()
    scaled: tuple[Scaled, ...] = ()

    def texts(self, workload: str) -> Texts:
        """The workload of a name."""
        return next(texts for texts in self.workloads if texts.name == workload)

    def ours(self, found: Measured) -> Measured | None:
        """Ours in the same heat."""
        return self._beside(found, OURS, found.heat)

    def yardstick(self, found: Measured) -> Measured | None:
        """transformers, sorted, float32, in the same heat."""
        return self._beside(found, YARDSTICK, "float32")

    def peers(self, workload: str, precision: str) -> list[Measured]:
        """The other systems at a precision, fastest first."""
        found = [
            one
            for one in self.measured
            if (one.workload, one.heat, one.precision) == (workload, precision, precision) and one.system != OURS
        ]
        return sorted(found, key=lambda one: median(one.seconds))

    def of_ceiling(self, found: Measured) -> float | None:
        """The share of the machine's rate at that precision that the real tokens' operations reach."""
        rate = self.ceiling.flops.get(found.precision)
        return self.texts(found.workload).flops / median(found.seconds) / rate if rate else None

    def _beside(self, found: Measured, system: str, precision: str) -> Measured | None:
        where = found.workload, found.heat, system, precision
        return next((m for m in self.measured if (m.workload, m.heat, m.system, m.precision) == where), None)


@dataclass(frozen=True)
class Ratio:
    """How many times as long one system takes as another: the median of the rounds' ratios, least and most."""

    median: float
    least: float
    most: float


def ratio(one: Measured | None, other: Measured | None) -> Ratio | None:
    """Seconds of `one` over those of `other`, round by round; None where either was not measured."""
    if one is None or other is None:
        return None
    ratios = [a / b for a, b in zip(one.seconds, other.seconds, strict=False)]
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None


def to_json(results: Iterable[Result]) -> str:
    """Results as JSON text."""
    data = {"results": [dataclasses.asdict(result) for result in results]}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(file: Path) -> list[Result]:
    """The results that a file holds. Errors: it holds something else."""
    data = expect(read_json(file), dict, f"'{file}'")
    try:
        return [_result(entry) for entry in data["results"]]
    except (KeyError, TypeError):
        raise AddnormError(f"'{file}' holds no results of the benchmark; expected what --json wrote") from None


def _result(data: dict[str, Any]) -> Result:
    def rows(kind: Any, name: str) -> Any:
        return tuple(kind(**row) for row in data[name])

    measured: Sequence[Measured] = rows(Measured, "measured")
    plain = {name: data[name] for name in ("machine", "model", "settings")}
    return Result(
        **plain,
        ceiling=Ceiling(**data["ceiling"]),
        workloads=rows(Texts, "workloads"),
        measured=tuple(dataclasses.replace(one, seconds=tuple(one.seconds)) for one in measured),
        left=rows(Left, "left"),
        scaled=rows(Scaled, "scaled"),
    )
