"""Which precision is the faster one here: timed once for a processor, the answer kept in the user's cache."""

import contextlib
import json
import os
import platform
import statistics
import time
from functools import cache
from pathlib import Path

import torch

from addnorm.engine.operators import Linear, has_bfloat16
from addnorm.errors import remark
from addnorm.files import writing_file

# Tokens, inputs and outputs of the product that is timed.
SHAPE = (512, 768, 768)
ROUNDS = 9


@cache
def fastest() -> str:
    """float32 or bfloat16; one remark says which, and by how much."""
    if not has_bfloat16():
        return "float32"
    kept = _folder() / "precision.json"
    key = f"{_processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = dict(json.loads(kept.read_text(encoding="utf-8")))
    ratio = known.get(key)
    if not isinstance(ratio, float):
        ratio = measured()
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to stop
            kept.parent.mkdir(parents=True, exist_ok=True)
            with writing_file(kept) as temporary:
                temporary.write_text(json.dumps({**known, key: ratio}), encoding="utf-8")
    chosen = "bfloat16" if ratio > 1 else "float32"
    remark(f"precision auto: {chosen} (a bfloat16 product has {ratio:.1f} times the speed of a float32 one here)")
    return chosen


def measured() -> float:
    """How many times as fast a bfloat16 product is as a float32 one: the median of rounds that take turns."""
    rows, inputs, outputs = SHAPE
    times: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    products = {dtype: Linear(torch.ones(outputs, inputs, dtype=dtype), None) for dtype in times}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for dtype, product in products.items():
                x = torch.ones(rows, inputs, dtype=dtype)
                start = time.perf_counter()
                product(x)
                times[dtype].append(time.perf_counter() - start)
    return statistics.median(a / b for a, b in zip(*times.values(), strict=True))


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "addnorm"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip() + " " + torch.backends.cpu.get_cpu_capability()
    return platform.processor() or platform.machine()
