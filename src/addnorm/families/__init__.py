"""Dialects of checkpoints: each family is data, found by the `model_type` of a config.json."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families._family import Family


def _registered() -> dict[str, Family]:
    """The families of every module here, by `model_type`; bert comes first, so that fresh models save as it."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    modules = [import_module(f"{__name__}.{name}") for name in sorted(names, key=lambda name: name != "bert")]
    return {family.name: family for module in modules for family in module.FAMILIES}


FAMILIES = _registered()


def family_of(hf: Mapping[str, Any]) -> Family:
    """The family of a Hugging Face config. Errors: no or unknown `model_type`."""
    for family in FAMILIES.values():
        if family.claims(hf):
            return family
    name = hf.get("model_type")
    known = ", ".join(sorted(FAMILIES))
    if name is None:
        raise AddnormError(f"config.json has no 'model_type'; add one of: {known}")
    if not isinstance(name, str) or name not in FAMILIES:
        raise AddnormError(f"config.json: model_type '{name}' is not supported; known families: {known}")
    return FAMILIES[name]


def export(config: EncoderConfig) -> tuple[Family, dict[str, Any]]:
    """The first family that can express `config`, and its Hugging Face config. Errors: none can."""
    reasons = []
    for family in FAMILIES.values():
        try:
            return family, family.to_hf(config)
        except AddnormError as error:
            reasons.append(str(error))
    raise AddnormError(f"no family can express this config; the first: {reasons[0]}")
