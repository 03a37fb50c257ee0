"""Rotary positions as Hugging Face configs spell them.

Today `rope_parameters` holds everything; earlier `rope_theta` and `rope_scaling` stood side by side. Scalings
that depend on the length of a text are refused.
"""

from collections.abc import Mapping
from typing import Any

from addnorm.config import EncoderConfig, RotaryConfig
from addnorm.errors import AddnormError
from addnorm.families._rows import HF, head_width

# Fields that a family with `rotary` reads, beside `rope_parameters`, which it writes.
SPELLINGS = frozenset({"rope_theta", "rope_scaling"})


def rotary(theta: float, hf: HF) -> dict[str, Any]:
    """Our `RotaryConfig` of an HF config; `theta`: the family's own, where the file gives none."""
    told = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    given = hf.get("rope_theta")
    return read(told, theta if given is None else given, hf.get("head_dim") or head_width(hf))


def read(told: Any, theta: float, width: int) -> dict[str, Any]:
    """One set of parameters. Errors: a scaling, or a parameter, that is not computed."""
    if not isinstance(told, Mapping):
        raise AddnormError(f"config.json: the rotary parameters are {told!r}; expected names and values")
    kind = told.get("rope_type") or told.get("type") or "default"
    theta = told.get("rope_theta", theta)
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"} | (
        {"factor"} if kind != "default" else set()
    )
    if kind not in ("default", "linear", "ntk"):
        raise AddnormError(f"config.json: rotary scaling '{kind}' is not computed; understood: default, linear, ntk")
    if unknown := sorted(name for name in told if name not in known and told[name] is not None):
        raise AddnormError(f"config.json: rotary parameter '{unknown[0]}' ({told[unknown[0]]!r}) is not understood")
    if told.get("partial_rotary_factor", 1.0) not in (1.0, None):
        raise AddnormError("config.json: 'partial_rotary_factor' is not computed; expected 1.0")
    factor = told.get("factor", 1.0)
    if kind == "ntk":
        # Fixed NTK scaling (Su 2023, https://kexue.fm/archives/9706): the base grows by the factor, and all
        # positions shrink so that the slowest pair turns exactly `factor` times more slowly.
        return {"theta": theta * factor, "scaling": factor ** (2 / width)}
    return {"theta": theta, "scaling": factor}


def parameters(config: EncoderConfig) -> dict[str, Any]:
    """`rope_parameters` of the first block."""
    return write(config.blocks[0].attention.rotary if config.blocks else None)


def write(own: RotaryConfig | None) -> dict[str, Any]:
    """One set of parameters as HF spells it."""
    own = own or RotaryConfig()
    scaled = {"rope_type": "linear", "factor": own.scaling} if own.scaling != 1 else {"rope_type": "default"}
    return {"rope_theta": own.theta, **scaled}
