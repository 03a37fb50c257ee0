"""Where a monitor looks: the sites of an encoder within any module, ours or one of transformers."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.errors import AddnormError
from addnorm.families import family_of
from addnorm.families._rows import At
from addnorm.nn.encoder import Encoder
from addnorm.trace.sites import sites_of

Read = Callable[[tuple[Any, ...], Any], Tensor | None]


@dataclass(frozen=True)
class Place:
    """A module whose calls are watched, what of a call is read, and which call of a pass (None: each)."""

    module: nn.Module
    read: Read
    call: int | None = None


@dataclass(frozen=True)
class Subject:
    """What is watched. `root`: one call of it is a pass; `places`: site, kind of value, and where it is seen.

    `groups`: the unit of each parameter, by its id; `names`: units in forward order; `switches`: contexts that a
    recorded step needs.
    """

    root: nn.Module
    places: tuple[tuple[str, str, Place], ...]
    groups: Mapping[int, str]
    names: tuple[str, ...]
    switches: tuple[Callable[[], Any], ...] = ()
    padded: bool = False

    def real_tokens(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
        """Which tokens of a padded batch are no padding, (B, T); None where all count."""
        if not self.padded:
            return None
        given = inspect.signature(self.root.forward).bind_partial(*inputs, **named).arguments
        mask = given.get("attention_mask")
        return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.all()) else None


def subject_of(module: nn.Module, entropy: bool) -> Subject:
    """The one encoder in a module. Errors: none, several, an unknown family, entropy that cannot be seen."""
    if not isinstance(module, nn.Module):
        raise AddnormError(f"monitor: {type(module).__name__} is no torch module; give a model's encoder")
    encoders = [part for part in module.modules() if isinstance(part, Encoder)]
    theirs = [part for part in module.modules() if hasattr(getattr(part, "config", None), "model_type")]
    if len(encoders) > 1:
        raise AddnormError(f"monitor: the module contains {len(encoders)} encoders; watch one of them at a time")
    if encoders:
        return _of_ours(encoders[0], entropy)
    if theirs:
        return _of_twin(theirs[0].base_model, entropy)  # type: ignore[arg-type]
    raise AddnormError(f"monitor: {type(module).__name__} contains no encoder of addnorm or transformers")


def group_of(site: str) -> tuple[str, str]:
    """The unit a site is of, and its name within: blocks.3.attention and add; embeddings and norm."""
    owner, _, leaf = site.rpartition(".")
    return owner or site, leaf


def _wanted(names: Sequence[str], entropy: bool) -> Iterator[tuple[str, str]]:
    """Sites and kinds of value: what is looked at of the sites an encoder has."""
    for name in names:
        owner, leaf = group_of(name)
        if leaf != "scores":  # beyond a window they are not finite
            yield name, "value"
        if "norm" in leaf:
            yield name, "norm"
        if leaf == "add":
            yield name, "branch"
            yield name, "add"
        if leaf == "weights" and entropy:
            yield name, "weights"
        last = leaf == "norm_out" or (leaf == "add" and f"{owner}.norm_out" not in names)
        if last or name in ("embeddings", "norm"):
            yield name, "stream"


def _units(names: Sequence[str]) -> tuple[str, ...]:
    owners = (group_of(name)[0] for name in names if not re.fullmatch(r"blocks\.\d+", name))
    return tuple(dict.fromkeys(owners))


# --- ours ---------------------------------------------------------------------------------------------


def _of_ours(encoder: Encoder, entropy: bool) -> Subject:
    modules = {name: module for name, (_, module) in sites_of(encoder, {}).items()}
    reads: dict[str, Read] = {"norm": lambda inputs, output: inputs[0], "branch": lambda inputs, output: inputs[1]}
    places = tuple(
        (site, kind, Place(modules[site], reads.get(kind, _result))) for site, kind in _wanted(list(modules), entropy)
    )
    groups = {id(p): _group_of_parameter(name) for name, p in encoder.named_parameters()}

    @contextmanager
    def eager() -> Iterator[None]:
        kernel, encoder.kernel = encoder.kernel, "eager"
        try:
            yield
        finally:
            encoder.kernel = kernel

    return Subject(encoder, places, groups, _units(list(modules)), (eager,) if entropy else ())


def _result(inputs: tuple[Any, ...], output: Any) -> Tensor | None:
    return output if isinstance(output, Tensor) else None


def _group_of_parameter(name: str) -> str:
    """blocks.3.attention.sublayer.query.weight is of blocks.3.attention."""
    parts = name.split(".")
    return ".".join(parts[: (4 if parts[2] == "further" else 3) if parts[0] == "blocks" else 1])


# --- one of transformers ------------------------------------------------------------------------------


def _of_twin(base: nn.Module, entropy: bool) -> Subject:
    config: Any = base.config
    if entropy and config._attn_implementation != "eager":
        kernel = config._attn_implementation
        raise AddnormError(
            f"monitor: attention of this model runs as '{kernel}', which shows no weights to take the entropy of; "
            'load it with attn_implementation="eager"'
        )
    hf = json.loads(config.to_json_string(use_diff=True))
    family = family_of(hf)
    hf["architectures"] = [family.architecture]
    weights = base.state_dict()
    ours = family.from_hf(hf, {name: weights[file] for name, file in family.spellings(weights).items()})
    with torch.device("meta"):
        names = list(sites_of(Encoder(ours), {}))
    modules, shown = dict(base.named_modules()), family.twin_sites(ours, hf)
    places = []
    for site, kind in _wanted(names, entropy):
        at = shown.get(f"{group_of(site)[0]}.branch" if kind == "branch" else site)
        if at is not None and at.module in modules and (kind != "norm" or not (at.input or at.part)):
            read = _entering if kind == "norm" else _reader(at)
            places.append((site, kind, Place(modules[at.module], read, at.call)))
    if not any(kind == "stream" for _, kind, _ in places):
        raise AddnormError(f"monitor: {type(base).__name__} has none of the modules that family {family.name} has")
    owners: dict[str, str] = {}
    rows = replace(family, sites={}).twin_sites(ours, hf)  # a place of its own may hide the module with the weights
    for site, at in [*rows.items(), *shown.items()]:
        if not at.input and not re.fullmatch(r"blocks\.\d+", site):
            owners.setdefault(at.module, _group_of_parameter(site))
    groups = {}
    for name, parameter in base.named_parameters():
        holders = [module for module in owners if module and f"{name}.".startswith(f"{module}.")]
        if holders:
            groups[id(parameter)] = owners[max(holders, key=len)]
    return Subject(base, tuple(places), groups, _units(names), padded=True)


def _entering(inputs: tuple[Any, ...], output: Any) -> Tensor | None:
    return inputs[0] if inputs and isinstance(inputs[0], Tensor) else None


def _reader(at: At) -> Read:
    def read(inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        value = inputs if at.input else output
        if not isinstance(value, Tensor):
            value = value[at.item] if isinstance(value, tuple) and len(value) > at.item else None
        if at.part is not None and value is not None:
            value = value.chunk(at.part[1], dim=-1)[at.part[0]]
        return value if isinstance(value, Tensor) else None

    return read
