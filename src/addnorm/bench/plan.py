"""What a run does: which systems, at which precisions, on which texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from addnorm.bench.machine import cores
from addnorm.bench.systems import OURS, PRECISIONS, YARDSTICK, System
from addnorm.bench.texts import KINDS
from addnorm.bench.worker import PATIENCE


@dataclass(frozen=True)
class Plan:
    """What is run.

    `systems`: those whose names begin so, beside ours and the yardstick (transformers, sdpa, sorted, float32),
    which always run; `texts`: of each workload, None: as many as make a round; `scaling`: numbers of texts for
    which time a text and memory are watched; `patience`: seconds until an answer is no longer waited for.
    """

    workloads: Sequence[str] = tuple(KINDS)
    systems: Sequence[str] = ("",)
    precisions: Sequence[str] = PRECISIONS
    rounds: int = 3
    texts: int | None = None
    threads: int = field(default_factory=cores)
    scaling: Sequence[int] = ()
    patience: float = PATIENCE

    def heats(self, known: Sequence[System]) -> Iterator[tuple[str, list[System]]]:
        """For each precision the systems that run in turn: ours first, then the yardstick."""
        for precision in self.precisions:
            ours = [s for s in known if (s.name, s.precision) == (OURS, precision)]
            yardstick = [s for s in known if is_yardstick(s)]
            named = [s for s in known if s.precision == precision and s.name.lower().startswith(tuple(self.systems))]
            yield precision, list(dict.fromkeys([*ours, *yardstick, *named]))


def is_yardstick(system: System) -> bool:
    """Whether it is what all others are compared with."""
    return (system.name, system.precision) == (YARDSTICK, "float32")
