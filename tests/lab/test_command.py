"""`addnorm lab`: what it prints, writes and refuses."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from addnorm.cli import app
from addnorm.errors import AddnormError
from addnorm.lab.variants import VARIANTS

QUICK = {
    "gradients": "--variants post-norm,pre-norm --depths 1,2 --seeds 2 --width 16",
    "signal": "--variants post-norm --depths 2 --seeds 1 --width 16",
    "update": "--variants post-norm --depths 1,2 --seeds 1 --width 16",
    "train": "--variants rezero --depths 1 --steps 2 --width 16 --processes 1",
    "predict": "--depth 2 --seeds 1 --width 16",
    "norms": "--kinds layer,batch --depth 1 --seeds 1",
    "position": "--variants pre-norm --depth 1 --seeds 1",
}


def lab(arguments: str) -> Result:
    return CliRunner().invoke(app, ["lab", *arguments.split()])


def test_variants_are_listed_with_formula_constants_and_source() -> None:
    result = lab("variants --json")
    rows = json.loads(result.stdout)["rows"]
    assert [row["variant"] for row in rows] == list(VARIANTS)
    assert all(row["formula"] and row["source"] for row in rows)
    deepnorm = next(row for row in rows if row["variant"] == "deepnorm")
    assert deepnorm["constants"] == "α = 2.213, β = 0.3195"
    assert "deepnorm" in lab("variants --depth 24").stdout
    assert "2.632" in lab("variants --depth 24").stdout


@pytest.mark.parametrize("name", QUICK)
def test_a_study_prints_a_summary_csv_and_json(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    shown = lab(f"{name} {QUICK[name]} --csv {file}")
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 100
    written = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    data = json.loads(lab(f"{name} {QUICK[name]} --json").stdout)
    assert len(written) == len(data["rows"]) > 0
    assert data["note"]
    piped = lab(f"{name} {QUICK[name]} --csv -").stdout
    assert piped.splitlines()[0] == ",".join(data["rows"][0])


@pytest.mark.parametrize("arguments", ["predict --diagram --depth 2", "signal --closed-form --seeds 1"])
def test_other_ways_of_a_study(arguments: str) -> None:
    result = lab(arguments)
    assert result.exit_code == 0, result.output
    assert "Noci" in result.stdout or "rank collapse" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("gradients --variants post-nrom --depths 1", "variant 'post-nrom' is unknown; did you mean post-norm"),
        ("gradients --depths one", "'one': expected whole numbers"),
        ("gradients --variants , --depths 1", "an empty list"),
        ("gradients --loss all", "choose tokens or first"),
        ("signal --variants rezero --depths 1 --norm rms", "no norm that could be rms"),
        ("signal --model x", "--model goes with --parts"),
        ("update --how shake", "expected noise, sgd or adam"),
        ("predict --variants pre-norm --depth 1 --seeds 1", "post-norm stack"),
        ("norms --kinds group", "norm 'group' is unknown"),
        ("ablate --texts /nowhere/texts.txt", "no file '/nowhere/texts.txt'"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: str, reason: str) -> None:
    result = lab(arguments)
    assert isinstance(result.exception, AddnormError)
    assert reason in str(result.exception)
    assert result.stdout == ""
