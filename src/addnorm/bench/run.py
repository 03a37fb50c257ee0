"""A run: the machine's ceiling, a heat for each precision, more and more texts, the ceiling again."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from addnorm.bench import heat, texts
from addnorm.bench.flops import flops
from addnorm.bench.machine import machine, model_facts
from addnorm.bench.plan import Plan
from addnorm.bench.results import Ceiling, Left, Measured, Result, Scaled, Texts
from addnorm.bench.scaling import scaling
from addnorm.bench.systems import PACKAGES, SYSTEMS, System
from addnorm.bench.worker import Worker
from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from addnorm.model import Model


def run(
    name: str, plan: Plan, tell: Callable[[str], None] = lambda text: None, systems: Sequence[System] = SYSTEMS
) -> Result:
    """Measure the systems on a model, given by folder or name. `tell` hears what is being done.

    Errors: no such model; a model that no workload fits.
    """
    import addnorm
    from addnorm.hub import locate

    folder = locate(name)
    model = addnorm.load(folder)
    workloads, left = _workloads(model, plan)
    if not workloads and not plan.scaling:
        raise AddnormError(f"no workload fits {name}: {left[0].reason if left else 'none was named'}")
    tell("the machine's ceiling")
    before = _ceiling(plan)
    measured: list[Measured] = []
    for precision, chosen in plan.heats(systems) if workloads else ():
        with heat.started(chosen, precision, folder, plan, left, tell) as workers:
            for workload in workloads:
                measured += heat.rounds(workers, workload, precision, plan, left, tell)
    scaled: list[Scaled] = list(scaling(systems, folder, model, plan, left, tell)) if plan.scaling else []
    return Result(
        machine=machine(("addnorm", "torch", "numpy", "tokenizers", *PACKAGES)),
        model=model_facts(name, model),
        settings={"threads": plan.threads, "rounds": plan.rounds},
        ceiling=before.best(_ceiling(plan)),
        workloads=tuple(_describe(workload, model) for workload in workloads),
        measured=tuple(measured),
        left=tuple(dict.fromkeys(left)),
        scaled=tuple(scaled),
    )


def _workloads(model: "Model", plan: Plan) -> tuple[list[texts.Workload], list[Left]]:
    made, left = [], []
    for name in plan.workloads:
        try:
            made.append(texts.workload(name, model, plan.texts))
        except AddnormError as error:
            left.append(Left("", "", name, str(error)))
    return made, left


def _describe(workload: texts.Workload, model: "Model") -> Texts:
    lengths = workload.lengths
    return Texts(
        name=workload.name,
        texts=len(lengths),
        tokens=sum(lengths),
        shortest=min(lengths),
        longest=max(lengths),
        max_tokens=workload.max_tokens,
        flops=flops(model.config, lengths),
        single=workload.single,
    )


def _ceiling(plan: Plan) -> Ceiling:
    with Worker(_measuring, threads=plan.threads) as worker:
        return worker.ask(None)


def _measuring() -> Callable[[Any], Ceiling]:
    from addnorm.bench.ceiling import ceiling

    return lambda message: ceiling()
