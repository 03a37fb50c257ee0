"""A heat: the systems of a precision, started one after the other, then a round of each in turn."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.bench.machine import free_memory
from addnorm.bench.padded import Setting, Vectors
from addnorm.bench.plan import Plan, is_yardstick
from addnorm.bench.ready import Prepared, Ready
from addnorm.bench.results import Left, Measured
from addnorm.bench.systems import System
from addnorm.bench.texts import Workload
from addnorm.bench.worker import RefusalError, Worker

SPARE = 2 * 2**30  # bytes of memory that must be free before one more process starts
PAUSE = 0.05  # seconds before each turn: threads of the one before spin for a moment when they are done
Tell = Callable[[str], None]
Workers = dict[System, Worker]


@contextmanager
def started(
    systems: Iterable[System], heat: str, folder: Path, plan: Plan, left: list[Left], tell: Tell
) -> Iterator[Workers]:
    """A process for each system that can be run, one started after the other; all are ended at the end."""
    with ExitStack() as stack:
        workers: Workers = {}
        for system in systems:
            tell(f"{heat}: starting {system.name}")
            try:
                workers[system] = stack.enter_context(start(system, folder, plan))
            except RefusalError as refusal:
                left.append(Left(system.name, system.precision, "", str(refusal)))
        yield workers


@contextmanager
def start(system: System, folder: Path, plan: Plan) -> Iterator[Worker]:
    """A process with a built system, ended at the end. Errors: `RefusalError`."""
    if missing := system.missing():
        raise RefusalError(missing)
    free = free_memory()
    if free is not None and free < SPARE:
        raise RefusalError(f"{free / 2**30:.1f} GB of memory are free; one more process needs {SPARE / 2**30:.0f}")
    with tempfile.TemporaryDirectory(prefix="addnorm-bench-") as scratch:
        setting = Setting(folder, system.precision, plan.threads, Path(scratch), system.sort)
        with Worker(Ready, system, setting, threads=plan.threads, patience=plan.patience) as worker:
            yield worker


def rounds(
    workers: Workers, workload: Workload, heat: str, plan: Plan, left: list[Left], tell: Tell
) -> Iterator[Measured]:
    """Prepare each system for a workload, then let each run once a round.

    A system that fails is in `left` from there on; one whose process is gone leaves `workers`.
    """
    prepared: dict[System, Prepared] = {}
    seconds: dict[System, list[float]] = {}

    def ask(system: System, message: Any) -> Any:
        try:
            return workers[system].ask(message)
        except RefusalError as refusal:
            left.append(Left(system.name, system.precision, workload.name, str(refusal)))
            if not workers[system].process.is_alive():
                del workers[system]
            return None

    for system in [s for s in workers if not s.only or workload.name in s.only]:
        tell(f"{heat}, {workload.name}: {system.name} finds its batch size")
        if (found := ask(system, workload)) is not None:
            prepared[system], seconds[system] = found, []
    for i in range(plan.rounds):
        tell(f"{heat}, {workload.name}: round {i + 1} of {plan.rounds}")
        for system in _turned(list(seconds), i):
            time.sleep(PAUSE)
            if (taken := ask(system, None)) is None:
                del seconds[system]
            else:
                seconds[system].append(taken)
    reference = next((found for system, found in prepared.items() if is_yardstick(system)), None)
    for system, all_taken in seconds.items():
        found = prepared[system]
        agreed = (None, None, None) if reference is None else agreement(found.vectors, reference.vectors)
        yield Measured(workload.name, heat, system.name, system.precision, tuple(all_taken), found.choice, *agreed)


def agreement(vectors: Vectors, reference: Vectors) -> tuple[float, float, float]:
    """The largest difference, the mean and the least cosine of vectors in pairs."""
    a, b = vectors.astype(np.float64), reference.astype(np.float64)
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(np.abs(a - b).max()), float(cosines.mean()), float(cosines.min())


def _turned(systems: list[System], places: int) -> list[System]:
    """Another one first each time, so that none always follows the same."""
    places %= max(1, len(systems))
    return systems[places:] + systems[:places]
