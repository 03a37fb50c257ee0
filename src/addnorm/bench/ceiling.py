"""What the machine can do: the largest rate of matrix products at each precision, and of a copy in memory."""

import time
from collections.abc import Callable

import torch

from addnorm.bench.results import Ceiling

# Rows, in, out: as encoders have them, small enough to be quick, large enough to fill the units.
SIZES = ((2048, 768, 3072), (2048, 3072, 768), (2048, 384, 1536), (2048, 1536, 384))
SECONDS = 0.25  # of trying, each product
COPIED = 256 * 2**20

Product = Callable[[], object]


def ceiling() -> Ceiling:
    """The largest rates found in about ten seconds."""
    flops: dict[str, float] = {}
    how: dict[str, str] = {}
    for precision, ways in WAYS.items():
        for name, make in ways.items():
            for rows, width, out in SIZES:
                try:
                    product = make(rows, width, out)
                    rate = 2 * rows * width * out / _least(product)
                except (AttributeError, RuntimeError, NotImplementedError):
                    break  # this PyTorch or this processor has it not
                if rate > flops.get(precision, 0):
                    flops[precision], how[precision] = rate, f"{name}, {rows}×{width}×{out}"
    source = torch.ones(COPIED // 4)
    target = torch.empty_like(source)
    return Ceiling(flops, how, 2 * COPIED / _least(lambda: target.copy_(source)))


def _least(run: Product) -> float:
    """The least seconds of many runs."""
    run()
    end, least = time.perf_counter() + SECONDS, float("inf")
    while (start := time.perf_counter()) < end:
        run()
        least = min(least, time.perf_counter() - start)
    return least


def _packed(dtype: torch.dtype) -> Callable[[int, int, int], Product]:
    def make(rows: int, width: int, out: int) -> Product:
        x = torch.randn(rows, width, dtype=dtype)
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(out, width, dtype=dtype), None)
        return lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return make


def _mm(dtype: torch.dtype) -> Callable[[int, int, int], Product]:
    def make(rows: int, width: int, out: int) -> Product:
        x, weight = torch.randn(rows, width, dtype=dtype), torch.randn(width, out, dtype=dtype)
        target = torch.empty(rows, out, dtype=dtype)
        return lambda: torch.mm(x, weight, out=target)

    return make


def _int_mm(rows: int, width: int, out: int) -> Product:
    x = torch.randint(-127, 127, (rows, width), dtype=torch.int8)
    weight = torch.randint(-127, 127, (width, out), dtype=torch.int8)
    return lambda: torch._int_mm(x, weight)


def _qlinear(rows: int, width: int, out: int) -> Product:
    x = torch.randint(0, 255, (rows, width), dtype=torch.uint8)
    weight = torch.ops.onednn.qlinear_prepack(torch.randint(-127, 127, (out, width), dtype=torch.int8), None)
    scales, zeros = torch.full((out,), 0.01), torch.zeros(out, dtype=torch.int)

    def run() -> object:
        return torch.ops.onednn.qlinear_pointwise(
            x, 0.01, 0, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return run


WAYS: dict[str, dict[str, Callable[[int, int, int], Product]]] = {
    "float32": {"oneDNN, packed": _packed(torch.float32), "torch.mm": _mm(torch.float32)},
    "bfloat16": {"oneDNN, packed": _packed(torch.bfloat16), "torch.mm": _mm(torch.bfloat16)},
    "int8": {"torch._int_mm": _int_mm, "oneDNN qlinear": _qlinear},
}
