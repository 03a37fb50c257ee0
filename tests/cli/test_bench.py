"""`addnorm bench`: what it prints, writes and refuses."""

from pathlib import Path

import pytest

from addnorm.bench.results import Result, from_json
from addnorm.bench.systems import OURS, SYSTEMS, YARDSTICK
from addnorm.cli.bench import plan
from addnorm.errors import AddnormError
from tests.bench.made import RESULT
from tests.cli.conftest import Cli


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a run would be asked for, instead of a run."""
    found: list[object] = []

    def run(name: str, plan: object, tell: object) -> Result:
        found.extend((name, plan))
        return RESULT

    monkeypatch.setattr("addnorm.bench.run.run", run)
    return found


def test_it_prints_tables_and_writes_files(cli: Cli, asked: list[object], tmp_path: Path) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html", "md", "svg")}
    result = cli(
        "bench", "--json", files["json"], "--html", files["html"], "--markdown", files["md"], "--workloads",
        "mixed,single", "--systems", "open,ct", "--precisions", "int8", "--rounds", "2", "--scaling", "10,100",
    )  # fmt: skip
    assert (result.status, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 100
    assert "1.50 (1.10–2.00)" in result.out
    assert "nncf is not installed" in result.out
    assert from_json(files["json"]) == [RESULT]
    assert files["html"].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "(out.svg)" in files["md"].read_text(encoding="utf-8")
    assert files["svg"].read_text(encoding="utf-8").startswith("<svg")
    name, chosen = asked
    assert name == "sentence-transformers/all-MiniLM-L6-v2"
    assert chosen.workloads == ["mixed", "single 8", "single 32", "single 128", "single 512"]  # type: ignore[attr-defined]
    assert (chosen.systems, chosen.precisions, chosen.rounds) == (["open", "ct"], ["int8"], 2)  # type: ignore[attr-defined]
    assert chosen.scaling == [10, 100]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("systems", "others"), [("all", {"OpenVINO", "ONNX Runtime"}), ("none", set()), ("onnx", {"ONNX Runtime"})]
)
def test_which_systems_run(systems: str, others: set[str]) -> None:
    chosen = plan("mixed", systems, "float32,int8", 1, None, 1, "")
    run = {system.name for _, heat in chosen.heats(SYSTEMS) for system in heat}
    assert run & {OURS, YARDSTICK, "OpenVINO", "ONNX Runtime"} == {OURS, YARDSTICK, *others}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--workloads middle", "workload 'middle' is unknown; choose mixed, short, long"),
        ("--systems tensorflow", "no system begins with 'tensorflow'; there are addnorm; transformers sdpa"),
        ("--precisions float16", "--precisions 'float16' is unknown; choose float32 or bfloat16 or int8 or auto"),
        ("--scaling many", "'many': expected whole numbers"),
        ("--json .", "'.' is a folder; give a file name"),
        ("--model ./nowhere", "no folder './nowhere'"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: str, reason: str, cli: Cli) -> None:
    result = cli("bench", *arguments.split())
    assert (result.status, result.out) == (1, "")
    assert reason in result.err
    assert len(result.err.splitlines()) == 1
    assert issubclass(AddnormError, ValueError)
