"""`train`: who learns, by variant, depth, learning rate and warm-up, on a small task.

Runs are independent and go to parallel processes; with a file each finished run is written at once, and a study
that was interrupted goes on where it stopped.
"""

import dataclasses
import json
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from addnorm.errors import AddnormError
from addnorm.lab import tasks
from addnorm.lab.fresh import start
from addnorm.lab.table import Progress, Row, Table
from addnorm.nn.encoder import Encoder

TASKS = ("masked copy", "masked language")
NOTE = (
    "A run whose loss stays at `chance` has learned nothing; one whose loss is not finite has diverged, and its "
    "curve ends there. Masked copy cannot be solved without attention."
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: what a row is about, and what it is filed under."""

    variant: str
    depth: int
    rate: float
    warmup: int
    seed: int
    task: str = "masked copy"
    steps: int = 150
    size: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """The run as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Result:
    """The loss of each step until the end or the first that is not finite, and that of guessing."""

    losses: tuple[float, ...]
    chance: float


def train(
    variants: Sequence[str] = ("post-norm", "pre-norm", "deepnorm", "rezero"),
    depths: Sequence[int] = (4, 12, 24),
    rates: Sequence[float] = (1e-3,),
    warmups: Sequence[int] = (0,),
    seeds: int = 1,
    task: str = "masked copy",
    steps: int = 150,
    every: int = 10,
    file: str | Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """Loss curves: Adam, `warmup` steps of linear warm-up, then a constant rate.

    `file`: JSON lines, one a finished run; `processes`: None for one a core. Rows: variant, depth, rate, warmup,
    seed, step, loss (mean of the `every` steps before), chance, `diverged`.
    """
    if task not in TASKS:
        raise AddnormError(f"task '{task}' is unknown; choose {' or '.join(TASKS)}")
    if steps < 1 or every < 1:
        raise AddnormError(f"{steps} steps, shown every {every}: expected numbers above 0")
    settings = tuple(sorted(({"width": 64, "heads": 4} | size).items()))
    runs = [
        Run(variant=v, depth=d, rate=r, warmup=w, seed=s, task=task, steps=steps, size=settings)
        for v, d, r, w, s in product(variants, depths, rates, warmups, range(seeds))
    ]
    done = _read(Path(file)) if file is not None else {}
    known = len([run for run in runs if run.key in done])
    for count, (run, result) in enumerate(_compute([run for run in runs if run.key not in done], processes)):
        done[run.key] = result
        if file is not None:
            _append(Path(file), run, result)
        if progress is not None:
            progress(known + count + 1, len(runs), f"{run.variant}, {run.depth} blocks")
    rows = [row for run in runs for row in _curve(run, done[run.key], every)]
    return Table(f"Loss on {task}", tuple(rows), NOTE)


def finals(table: Table) -> Table:
    """The last point of each curve."""
    last = {tuple(row[key] for key in ("variant", "depth", "rate", "warmup", "seed")): row for row in table.rows}
    return Table(table.title, tuple(last.values()), table.note)


def _curve(run: Run, result: Result, every: int) -> Iterator[Row]:
    losses = result.losses
    diverged = not losses or not math.isfinite(losses[-1])
    key = {name: getattr(run, name) for name in ("variant", "depth", "rate", "warmup", "seed")}
    for end in sorted({*range(every, len(losses), every), len(losses)}):
        mean = sum(losses[max(0, end - every) : end]) / min(every, end)
        yield key | {"step": end, "loss": mean, "chance": result.chance, "diverged": diverged and end == len(losses)}


# --- running ------------------------------------------------------------------------------------------


def _compute(runs: list[Run], processes: int | None) -> Iterator[tuple[Run, Result]]:
    workers = min(len(runs), processes or os.cpu_count() or 1)
    text = _text() if any(run.task == "masked language" for run in runs) else ()
    if workers <= 1:
        for run in runs:
            yield run, train_one(run, text)
        return
    # Spawned: a forked child inherits torch's threads in whatever state they are.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(train_one, run, text): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _text() -> tuple[int, ...]:
    """The standard library's docstrings as ids of the default model's tokenizer."""
    from addnorm.hub import DEFAULT_MODEL, locate
    from addnorm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(locate(DEFAULT_MODEL))
    if tokenizer is None:
        raise AddnormError(f"{DEFAULT_MODEL} has no tokenizer files")
    lines = [line for line in tasks.docstrings().splitlines() if line.strip()]
    return tuple(i for tokens in tokenizer.encode(lines, None) for i in tokens.ids[1:-1])


def train_one(run: Run, text: tuple[int, ...] = ()) -> Result:
    """One training; the loss of every step. `text`: the token ids that masked language is made from."""
    task = tasks.masked_language(text) if run.task == "masked language" else tasks.masked_copy()
    sizes: dict[str, Any] = {"positions": "learned", "max_positions": 64} | dict(run.size)
    sizes |= {"vocabulary": task.vocabulary, "outputs": task.vocabulary}
    generator = torch.Generator().manual_seed(run.seed)
    encoder = start(run.variant, run.depth, run.seed, task.draw(generator).batch, **sizes).train()
    optimiser = torch.optim.Adam(encoder.parameters(), lr=run.rate)
    warm = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / max(1, run.warmup)))
    losses: list[float] = []
    for _ in range(run.steps):
        loss = _loss(encoder, task.draw(generator))
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        warm.step()
    return Result(tuple(losses), task.chance)


def _loss(encoder: Encoder, examples: tasks.Examples) -> torch.Tensor:
    logits = encoder.read(encoder(examples.batch), examples.batch)
    assert logits is not None
    return F.cross_entropy(logits[examples.where], examples.targets)


# --- the file -----------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Result]:
    """Finished runs of a file; a last line that was cut off is left out and its run done again."""
    if not path.is_file():
        return {}
    found: dict[str, Result] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            found[data["run"]] = Result(tuple(float(loss) for loss in data["losses"]), data["chance"])
        except (ValueError, KeyError, TypeError):
            if number < len(lines):
                raise AddnormError(f"'{path}', line {number}: not a run of `train`; give another file") from None
    return found


def _append(path: Path, run: Run, result: Result) -> None:
    cut = path.is_file() and not path.read_bytes().endswith(b"\n")
    losses = [loss if math.isfinite(loss) else str(loss) for loss in result.losses]
    line = json.dumps({"run": run.key, "chance": result.chance, "losses": losses}, allow_nan=False)
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut else "") + line + "\n")
