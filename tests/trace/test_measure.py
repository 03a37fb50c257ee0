"""The figures of a trace, against a direct computation."""

import math
import statistics
from typing import Any

import pytest

from addnorm.config import Learned, NormConfig
from addnorm.trace.measure import measure_site, measure_unit
from addnorm.trace.record import Trace
from addnorm.trace.sites import meaning_of
from tests.nn.drawn import ids_of, model_of, small

LAYER, RMS = NormConfig(), NormConfig(kind="rms")
STACKS: dict[str, Any] = {
    "post-norm": {"norm_out": LAYER},
    "pre-norm": {"norm_in": RMS},
    "all slots": {"norm_in": LAYER, "norm_branch": RMS, "norm_out": LAYER, "alpha": 0.5, "beta": Learned(init=2.0)},
    "learned alpha": {"alpha": Learned(init=1.0, shape="vector")},
}


def length(row: list[float]) -> float:
    return math.sqrt(sum(value * value for value in row))


def mean_of(rows: list[list[float]]) -> float:
    return statistics.fmean(value for row in rows for value in row)


def variance_of(rows: list[list[float]]) -> float:
    return statistics.fmean(statistics.pvariance(row) for row in rows)


def stream_into(trace: Trace, block: int, unit: str) -> list[list[float]]:
    if unit == "attention":
        name = f"blocks.{block - 1}" if block else "embeddings"
    else:
        attention = f"blocks.{block}.attention"
        name = f"{attention}.norm_out" if f"{attention}.norm_out" in trace else f"{attention}.add"
    return trace[name].tolist()


@pytest.mark.parametrize("unit", ["attention", "feedforward"])
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("stack", STACKS)
def test_a_unit_in_figures(stack: str, block: int, unit: str) -> None:
    model = model_of(small(**STACKS[stack]))
    trace = model.trace(ids_of(6)[0])
    figures = measure_unit(model.encoder, trace, block, unit)
    path = f"blocks.{block}.{unit}"
    x, branch, total = (
        stream_into(trace, block, unit),
        trace[f"{path}.branch"].tolist(),
        trace[f"{path}.add"].tolist(),
    )
    alpha_x = [[t - b for t, b in zip(*rows, strict=True)] for rows in zip(total, branch, strict=True)]
    cosines = [
        sum(a * b for a, b in zip(left, right, strict=True)) / (length(left) * length(right))
        for left, right in zip(x, branch, strict=True)
    ]
    assert figures["unit"] == path
    assert figures["alpha_x"] == pytest.approx(statistics.fmean(map(length, alpha_x)), rel=1e-9)
    assert figures["branch"] == pytest.approx(statistics.fmean(map(length, branch)), rel=1e-9)
    assert figures["cosine"] == pytest.approx(statistics.fmean(cosines), rel=1e-9)

    before = {"norm_in": x, "norm_out": total}
    before["norm_branch"] = trace[f"{path}.{'output' if unit == 'attention' else 'down'}"].tolist()
    filled = [slot for slot in ("norm_in", "norm_branch", "norm_out") if slot in STACKS[stack]]
    assert [norm["norm"] for norm in figures["norms"]] == filled
    for norm in figures["norms"]:
        rows = before[norm["norm"]], trace[f"{path}.{norm['norm']}"].tolist()
        assert norm["mean"] == pytest.approx(list(map(mean_of, rows)), abs=1e-9)
        assert norm["variance"] == pytest.approx(list(map(variance_of, rows)), rel=1e-9)


@pytest.mark.parametrize("name", ["embeddings", "blocks.1.attention.weights", "blocks.0", "pooling", "pooler"])
def test_a_site_in_figures(name: str) -> None:
    trace = model_of(small(pooler=True)).trace(ids_of(5)[0])
    value = trace[name]
    rows = value.reshape(-1, value.shape[-1]).tolist()
    flat = [number for row in rows for number in row]
    figures = measure_site(trace, name, 3)
    assert (figures["site"], figures["meaning"]) == (name, meaning_of(name).meaning)
    assert figures["shape"] == list(value.shape)
    assert figures["mean"] == pytest.approx(statistics.fmean(flat), abs=1e-9)
    assert figures["std"] == pytest.approx(statistics.pstdev(flat), rel=1e-9)
    assert figures["norm"] == pytest.approx(statistics.fmean(map(length, rows)), rel=1e-9)
    assert figures["first"] == flat[:3]
