"""A monitor for real training: what each Add & Norm unit does every n steps, and a warning before it blows up.

It takes any torch module that contains an addnorm `Encoder`, or an encoder of transformers whose family is known:

    with Monitor(model, optimiser, every=100, file="run.jsonl") as monitor:
        for batch in batches:
            loss = model(batch)
            loss.backward()  # several times where gradients are accumulated
            optimiser.step()
            monitor.step(loss)
            optimiser.zero_grad()

`monitor.step` belongs after each step of the optimiser. Hooks are there for recorded steps only and change nothing:
parameters come out bit for bit as without a monitor. The one exception is `entropy=True` on an encoder of ours, whose
recorded steps then use the eager attention kernel: other rounding, other draws of dropout. One process.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from addnorm.errors import AddnormError, remark
from addnorm.lab.records import Records, read
from addnorm.lab.watch import Place, Subject, group_of, subject_of

__all__ = ["Monitor", "Rules", "read"]

# What grows when gradients do, and how it is called in a warning.
GRADIENTS = {"gradient": "‖∂L/∂θ‖", "stream_gradient": "‖∂L/∂x‖"}
OTHERS = ("update", "branch", "entropy")  # every other column is the size before a norm


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a recorded step gives a warning, besides anything that is not finite.

    A gradient (of a unit's parameters or of the stream after it) above `gradient` times its median over the last
    `window` records; the size before a norm above `size` times its smallest over them; a step that changes a unit's
    matrices by more than the share `update`. Growth needs `least` records before. A warning is given when it begins
    to hold, not again while it does.
    """

    gradient: float = 10.0
    size: float = 4.0
    update: float = 0.1
    window: int = 10
    least: int = 3

    def __post_init__(self) -> None:
        if min(self.gradient, self.size) <= 1 or self.update <= 0 or not 1 <= self.least <= self.window:
            raise AddnormError(f"{self}: expected factors above 1, an update above 0, and 1 ≤ least ≤ window")


class Monitor:
    """Records every `every`-th step, counted from `first_step`.

    `module`: what contains the encoder; `optimiser`: one or several; `file`: JSON lines, one a recorded step,
    appended and flushed; `tensorboard`: a folder for its events; `entropy`: of attention too, which needs the eager
    kernel (transformers: a model loaded with attn_implementation="eager"; some show weights with output_attentions).

    A record has `step`, `loss`, `rate` (learning rate), `not_finite` (the first place, or None), `warnings`, and for
    each unit, and for embeddings, norm, head and what is outside:
    `gradient` ‖∂L/∂θ‖ over its parameters as backward leaves it, before any clipping (with a loss scaler: scaled),
    `stream_gradient` ‖∂L/∂x‖ of the stream after it, `update` ‖ΔW‖/‖W‖ over its matrices in the optimiser's step,
    `branch` ‖branch‖/‖α·x‖, `entropy` of attention relative to uniform, and under the name of each norm the root
    mean square of what enters it. Passes without gradients (validation) are not counted.
    Errors: no or several encoders, an unknown family, entropy without eager kernel, a file that is not a monitor's.
    """

    def __init__(
        self,
        module: nn.Module,
        optimiser: Optimizer | Sequence[Optimizer],
        *,
        every: int = 100,
        file: str | Path | None = None,
        tensorboard: str | Path | None = None,
        entropy: bool = False,
        rules: Rules | None = None,
        first_step: int = 0,
    ) -> None:
        if every < 1 or first_step < 0:
            raise AddnormError(f"every {every}, first_step {first_step}: expected at least 1 and at least 0")
        self.every = every
        self.rules = rules or Rules()
        self.steps = first_step
        self.last: dict[str, Any] | None = None
        self._optimisers = [optimiser] if isinstance(optimiser, Optimizer) else list(optimiser)
        self._subject: Subject = subject_of(module, entropy)
        self._parameters = {id(p): (name, p) for name, p in module.named_parameters()}
        self._history: dict[tuple[str, str], deque[float]] = {}
        self._active: set[tuple[str, str]] = set()
        self._records = Records(file, tensorboard)
        self._closed = False
        self._hooks = ExitStack()
        self._recording = False
        self._attach_if_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take all hooks away and end the files; a step that is being recorded is dropped."""
        self._detach()
        self._records.close()
        self._closed = True

    def step(self, loss: Tensor | float | None = None) -> dict[str, Any] | None:
        """To be called after each step of the optimiser; the record where this step has one.

        `loss`: is looked at in recorded steps only, so it costs no wait for a GPU in between.
        """
        if self._closed:
            raise AddnormError("this monitor is closed; make another one")
        record = None
        if self._recording:
            self._detach()
            record = self._record(loss)
            record["warnings"] = self._warnings(record)
            self._records.write(record)
            self.last = record
        self.steps += 1
        self._attach_if_due()
        for message in record["warnings"] if record else ():
            remark(message)
        return record

    # --- watching one step ----------------------------------------------------------------------------

    def _attach_if_due(self) -> None:
        if self.steps % self.every:
            return
        self._recording = True
        self._sums: dict[tuple[str, str], tuple[Tensor | float, Tensor | float]] = {}
        self._gradients: dict[int, Tensor] = {}
        self._flags: dict[str, list[tuple[str, Tensor]]] = {"weights": [], "value": [], "gradient": [], "step": []}
        self._branches: dict[str, Tensor] = {}
        self._before: dict[int, Tensor] = {}
        self._rate: float | None = None
        self._calls: dict[int, int] = {}
        self._real: Tensor | None = None
        subject = self._subject
        keep = self._hooks.enter_context
        for switch in subject.switches:
            keep(switch())
        for site, kind, place in subject.places:
            keep(place.module.register_forward_hook(self._hook(site, kind, place), with_kwargs=True))
        keep(subject.root.register_forward_pre_hook(self._begin, with_kwargs=True))
        for _, parameter in self._parameters.values():
            if parameter.requires_grad:
                keep(parameter.register_post_accumulate_grad_hook(self._accumulated))  # type: ignore[no-untyped-call]
        for optimiser in self._optimisers:
            keep(optimiser.register_step_pre_hook(self._before_step))
            keep(optimiser.register_step_post_hook(self._after_step))

    def _detach(self) -> None:
        self._recording = False
        self._hooks.close()

    def _begin(self, module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        """A pass begins: calls are counted from 0, and of a padded batch real tokens are told apart."""
        if module is not self._subject.root:
            return
        self._calls = {}
        self._real = self._subject.real_tokens(inputs, named)

    def _hook(self, site: str, kind: str, place: Place) -> Callable[..., None]:
        see = getattr(self, f"_see_{kind}")
        group, leaf = group_of(site)

        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            if module is not place.module or not self._recording:  # a copy of the module, made while hooks were set
                return
            call = self._calls[key] = self._calls.get(key, -1) + 1
            if place.call not in (None, call) or not torch.is_grad_enabled():
                return
            value = place.read((*inputs, *named.values()), output)
            if value is not None:
                if kind == "stream":
                    see(group, leaf, value)
                else:
                    with torch.no_grad():
                        see(group if kind != "value" else site, leaf, value.detach())

        key = id(hook)
        return hook

    def _see_value(self, site: str, leaf: str, value: Tensor) -> None:
        self._flags["value"].append((site, value.isfinite().all()))

    def _see_norm(self, group: str, leaf: str, value: Tensor) -> None:
        value = self._tokens(value)
        self._add(group, leaf, _square(value), torch.tensor(float(value.numel())))

    def _see_branch(self, group: str, leaf: str, value: Tensor) -> None:
        self._branches[group] = value.clone()  # some models go on to change it in place

    def _see_add(self, group: str, leaf: str, value: Tensor) -> None:
        branch = self._branches.pop(group, None)
        if branch is not None:
            branch = _wide(self._tokens(branch))
            skip = _wide(self._tokens(value)) - branch
            self._add(group, "branch", _square(branch), _square(skip))

    def _see_weights(self, group: str, leaf: str, value: Tensor) -> None:
        if bool((value < 0).any()):  # shaped weights have no entropy
            return
        value = _wide(value)
        value = value / value.sum(-1, keepdim=True)  # where dropout has been at it, rows do not sum to 1
        entropy = torch.special.entr(value).sum(-1).mean(1)  # (G, T)
        lengths = torch.full_like(entropy, value.shape[-1])
        if self._real is not None and self._real.shape == entropy.shape:
            lengths = self._real.sum(1, keepdim=True).expand_as(entropy)[self._real].to(entropy)
            entropy = entropy[self._real]
        several = lengths > 1
        self._add(group, "entropy", (entropy[several] / lengths[several].log()).sum(), several.sum())

    def _see_stream(self, group: str, leaf: str, value: Tensor) -> None:
        if not value.requires_grad:
            return

        def hook(gradient: Tensor) -> None:
            if self._recording:
                gradient = gradient.detach()
                self._flags["gradient"].append((group, gradient.isfinite().all()))
                self._add(group, "stream_gradient", _square(gradient))

        self._hooks.enter_context(value.register_hook(hook))  # type: ignore[no-untyped-call]

    def _accumulated(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None:
            held = gradient.detach()
            held = held.coalesce().values() if held.is_sparse else held
            self._gradients[id(parameter)] = _square(held)  # the last of several backward passes has the sum
            self._flags["gradient"].append((self._name(parameter), held.isfinite().all()))

    @torch.no_grad()
    def _before_step(self, optimiser: Optimizer, *call: Any) -> None:
        for group in optimiser.param_groups:
            self._rate = float(group["lr"]) if self._rate is None and "lr" in group else self._rate
            for parameter in group["params"]:
                if id(parameter) in self._parameters and parameter.grad is not None:
                    self._flags["weights"].append((self._name(parameter), parameter.isfinite().all()))
                    if parameter.ndim > 1:
                        self._before[id(parameter)] = parameter.detach().clone()

    @torch.no_grad()
    def _after_step(self, optimiser: Optimizer, *call: Any) -> None:
        for parameter in [p for group in optimiser.param_groups for p in group["params"]]:
            before = self._before.pop(id(parameter), None)
            if before is not None:
                self._flags["step"].append((self._name(parameter), parameter.isfinite().all()))
                group = self._subject.groups.get(id(parameter), "outside")
                self._add(group, "update", _square(parameter.detach() - before), _square(before))

    def _name(self, parameter: Tensor) -> str:
        return self._parameters[id(parameter)][0]

    def _tokens(self, value: Tensor) -> Tensor:
        real = self._real
        return value[real] if real is not None and value.shape[:2] == real.shape else value

    def _add(self, group: str, key: str, above: Tensor, below: Tensor | None = None) -> None:
        """Add to what is summed up, and where it is a ratio to what that is divided by."""
        sums = self._sums.get((group, key), (0.0, 0.0))
        self._sums[group, key] = (sums[0] + above, 1.0 if below is None else sums[1] + below)

    # --- what was seen --------------------------------------------------------------------------------

    def _record(self, loss: Tensor | float | None) -> dict[str, Any]:
        for held, square in self._gradients.items():
            self._add(self._subject.groups.get(held, "outside"), "gradient", square)
        units: dict[str, dict[str, float]] = {}
        order = {name: i for i, name in enumerate(self._subject.names)}
        for group, key in sorted(self._sums, key=lambda found: (order.get(found[0], len(order)), found)):
            above, below = (float(part) for part in self._sums[group, key])
            ratio = above / below if below else math.nan if above == 0 or above != above else math.inf
            units.setdefault(group, {})[key] = ratio if key == "entropy" else math.sqrt(ratio)
        value = float(loss.detach()) if isinstance(loss, Tensor) else loss
        where = self._first_not_finite(value)
        del self._sums, self._gradients, self._flags, self._branches, self._before
        return {"step": self.steps, "loss": value, "rate": self._rate, "not_finite": where, "units": units}

    def _first_not_finite(self, loss: float | None) -> str | None:
        """Where numbers first went wrong: in the weights a step began with, its pass, its gradients, its end."""
        told = {
            "weights": "the weights {} before the step",
            "value": "{}",
            "gradient": "the gradient of {}",
            "step": "the weights {} after the step",
        }
        for kind, flags in self._flags.items():
            if kind == "gradient" and loss is not None and not math.isfinite(loss):
                return "the loss"
            bad = next((name for name, finite in flags if not bool(finite)), None)
            if bad is not None:
                return told[kind].format(bad)
        return None

    def _warnings(self, record: dict[str, Any]) -> list[str]:
        rules, step, now = self.rules, f"step {record['step']}", set()
        found: dict[str, list[tuple[float, str, str]]] = {}
        for group, columns in record["units"].items():
            for key, value in columns.items():
                before = self._history.setdefault((group, key), deque(maxlen=rules.window))
                rule, factor, limit = self._judge(key, value, before)
                if factor > limit:
                    now.add((rule, group))
                    if (rule, group) not in self._active:
                        found.setdefault(rule, []).append((factor, group, key))
                if math.isfinite(value):
                    before.append(value)
        self._active = now
        known = self.last is not None and self.last["not_finite"]
        where = record["not_finite"]
        messages = [f"{step}: not finite, first at {where}"] if where and not known else []
        for rule, hits in found.items():
            factor, group, key = max(hits)
            place = group if key == group else f"{group}.{key}"
            more = f", and so in {len(hits) - 1} more" if len(hits) > 1 else ""
            text = {
                "gradient": f"{GRADIENTS.get(key)} of {group} is {factor:.3g} times its median over the last records",
                "size": f"the size before {place} is {factor:.3g} times its smallest of the last records",
                "update": f"the optimiser changed the matrices of {group} by {100 * factor:.3g} %",
            }[rule]
            messages.append(f"{step}: {text}{more}; training may be about to blow up")
        return messages

    def _judge(self, key: str, value: float, before: Sequence[float]) -> tuple[str, float, float]:
        """The rule a value is under, what it comes to, and the limit."""
        rules = self.rules
        if key == "update":
            return "update", value, rules.update
        if key in OTHERS or len(before) < rules.least or math.isnan(value):
            return "none", 0.0, math.inf
        rule, base = ("gradient", median(before)) if key in GRADIENTS else ("size", min(before))
        return rule, value / base if base else 0.0, rules.gradient if rule == "gradient" else rules.size


def _wide(value: Tensor) -> Tensor:
    """In float32 at least."""
    return value if value.dtype == torch.float64 else value.float()


def _square(value: Tensor) -> Tensor:
    """The sum of squares; it stays on the processor that added it up."""
    return _wide(value).square().sum()
