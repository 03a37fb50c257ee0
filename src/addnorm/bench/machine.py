"""The machine, the model and the packages of a run, in words that name no person and no place."""

import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.model import Model

# What makes matrix products fast, as Linux calls it.
FLAGS = (
    *("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve"),
)


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Processor, cores, instructions that matter, memory, system, versions."""
    facts = _cpuinfo()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return {
        "processor": _processor(facts),
        "cores": cores(),
        "instructions": [flag for flag in FLAGS if flag in flags],
        "memory_gb": round(memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in packages if (found := _version(name))},
    }


def slug(described: dict[str, Any]) -> str:
    """A short name for files."""
    words = re.sub(r"\((r|tm)\)|@.*|cpu|processor", " ", described["processor"].lower())
    return re.sub(r"[^a-z0-9]+", "-", f"{words} {described['cores']} cores").strip("-")


def without_places(text: str) -> str:
    """A text in which paths have lost their folders."""
    return re.sub(r"(?<![\w.])(?:/[^\s/'\":]+)+/", "…/", text)


def cores() -> int:
    """Cores that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory in the machine; 0 where it does not say."""
    return _meminfo("MemTotal")


def free_memory() -> int | None:
    """Bytes that a new process could have; None where the machine does not say."""
    return _meminfo("MemAvailable") or None


def model_facts(name: str, model: "Model") -> dict[str, Any]:
    """What model it is."""
    config = model.config
    weights = sum(p.numel() * p.element_size() for p in model.encoder.parameters())
    return {
        "name": Path(name).name if Path(name).is_dir() else name,
        "blocks": len(config.blocks),
        "width": config.width,
        "parameters": config.num_params(),
        "weights_mb": round(weights / 1e6, 1),
    }


def _processor(facts: dict[str, str]) -> str:
    name = facts.get("model name") or platform.processor() or platform.machine()
    # A machine in a data centre may not say more than the maker.
    family, number = facts.get("cpu family"), facts.get("model")
    return f"{name}, family {family} model {number}" if family and number else name


def _cpuinfo() -> dict[str, str]:
    return _facts("/proc/cpuinfo")


def _meminfo(name: str) -> int:
    return int(_facts("/proc/meminfo").get(name, "0").split()[0]) * 1024


def _facts(path: str) -> dict[str, str]:
    with suppress(OSError):
        pairs = (line.partition(":") for line in Path(path).read_text(encoding="utf-8").splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}
    return {}


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None
