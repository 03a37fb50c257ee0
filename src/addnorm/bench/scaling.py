"""More and more texts: seconds and memory, each system and number in a fresh process, once."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from addnorm.bench.heat import start
from addnorm.bench.plan import Plan
from addnorm.bench.ready import Memory
from addnorm.bench.results import Left, Scaled
from addnorm.bench.systems import System
from addnorm.bench.texts import many
from addnorm.bench.worker import RefusalError

if TYPE_CHECKING:
    from addnorm.model import Model

LIMIT = 120.0  # seconds that a number of texts may be expected to take


def scaling(
    systems: Sequence[System], folder: Path, model: "Model", plan: Plan, left: list[Left], tell: Callable[[str], None]
) -> Iterator[Scaled]:
    """Each system that sorts by length on more and more texts, as long as the next number is not too long."""
    chosen = dict.fromkeys(s for _, heat in plan.heats(systems) for s in heat if s.sort)
    for system in (s for s in chosen if s.precision in plan.precisions):
        pace = 0.0
        for count in sorted(plan.scaling):
            try:
                if pace * count > LIMIT:
                    raise RefusalError(f"would take {pace * count:.0f} s; the limit is {LIMIT:.0f}")
                tell(f"{count} texts: {system.name}, {system.precision}")
                workload = many(model, count)
                with start(system, folder, plan) as worker:
                    found: Memory = worker.ask(("memory", workload))
            except RefusalError as refusal:
                left.append(Left(system.name, system.precision, f"{count} texts", str(refusal)))
                break
            pace = found.seconds / count
            tokens = sum(workload.lengths)
            yield Scaled(system.name, system.precision, count, tokens, found.seconds, found.before, found.peak)
