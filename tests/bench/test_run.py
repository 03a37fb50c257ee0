"""Runs from start to end: with systems that fail, and with real ones on a tiny model."""

import multiprocessing
from pathlib import Path

import pytest

from addnorm.bench import run as running
from addnorm.bench.plan import Plan
from addnorm.bench.results import Ceiling, from_json, to_json
from addnorm.bench.run import run
from addnorm.bench.systems import OURS, SYSTEMS, YARDSTICK
from addnorm.errors import AddnormError
from tests.bench.fakes import FAILING


@pytest.fixture(autouse=True)
def no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceiling takes seconds to find, and is of no interest here."""
    monkeypatch.setattr(running, "_ceiling", lambda plan: Ceiling({"float32": 1e9}, {"float32": "made up"}, 1e9))


def test_a_system_that_fails_is_one_line_and_the_others_go_on(model: Path) -> None:
    plan = Plan(workloads=("mixed", "single 8"), precisions=("float32",), rounds=2, texts=4, threads=1, scaling=(20,))
    found = run(str(model), plan, systems=FAILING)
    good = [(m.workload, m.system, len(m.seconds)) for m in found.measured]
    assert good == [
        (workload, system, 2) for workload in plan.workloads for system in (OURS, YARDSTICK, "has one good way")
    ]
    assert {m.choice.partition(",")[0] for m in found.measured if m.system == "has one good way"} == {"good"}
    assert all((m.difference, m.worst) == (0.0, pytest.approx(1.0)) for m in found.measured)
    left = {(one.system, one.workload): one.reason for one in found.left}
    crash, nan = "its process ended by SIGABRT", "gives vectors that are not finite"
    assert left == {
        ("absent", ""): "a-package-that-is-not-there is not installed",
        ("absent", "20 texts"): "a-package-that-is-not-there is not installed",
        ("dies at start", ""): "its process ended with status 3",
        ("dies at start", "20 texts"): "its process ended with status 3",
        ("cannot be built", ""): "ValueError: no such kernel in …/file.onnx",
        ("cannot be built", "20 texts"): "ValueError: no such kernel in …/file.onnx",
        ("dies at work", "mixed"): crash,
        ("dies at work", "20 texts"): crash,
        ("is not finite", "mixed"): nan,
        ("is not finite", "single 8"): nan,
    }
    assert {one.system for one in found.scaled} >= {OURS, YARDSTICK}
    assert all(one.peak >= one.before > 0 for one in found.scaled)
    assert not multiprocessing.active_children()


def test_ours_and_transformers_on_a_tiny_model(model: Path, tmp_path: Path) -> None:
    plan = Plan(("mixed", "long"), (), ("float32",), rounds=1, texts=6, threads=1)
    told: list[str] = []
    found = run(str(model), plan, told.append, SYSTEMS)
    assert {m.system for m in found.measured} == {OURS, YARDSTICK}
    assert all(m.difference is not None and m.difference < 1e-5 for m in found.measured)
    assert {m.workload for m in found.measured} == {"mixed"}
    assert ("", "long") in {(one.system, one.workload) for one in found.left}
    assert any("round 1 of 1" in text for text in told)
    text = to_json([found])
    assert str(model.parent) not in text
    file = tmp_path / "results.json"
    file.write_text(text, encoding="utf-8")
    assert from_json(file) == [found]


def test_a_model_that_no_workload_fits(model: Path) -> None:
    with pytest.raises(AddnormError, match=r"no workload fits .*: long needs texts of 256 tokens"):
        run(str(model), Plan(workloads=("long",)))


def test_heats_have_ours_and_the_yardstick_whatever_is_named() -> None:
    heats = dict(Plan(systems=("onnx",), precisions=("float32", "int8")).heats(SYSTEMS))
    assert [(s.name, s.precision) for s in heats["float32"]] == [
        (OURS, "float32"), (YARDSTICK, "float32"), ("ONNX Runtime", "float32"),
    ]  # fmt: skip
    assert [(s.name, s.precision) for s in heats["int8"]] == [
        (OURS, "int8"), (YARDSTICK, "float32"), ("ONNX Runtime", "int8"),
    ]  # fmt: skip
