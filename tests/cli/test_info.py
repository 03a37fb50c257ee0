"""`addnorm info`, and the command line itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from addnorm import load
from addnorm.config import PRESETS
from tests.cli.conftest import Cli
from tests.cli.test_trace import plain


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset(cli: Cli, preset: str) -> None:
    result = cli("info", preset)
    assert (result.status, result.err) == (0, "")
    assert plain(result.out)
    facts = json.loads(cli("info", preset, "--json").out)
    config = PRESETS[preset]()
    assert facts["parameters"]["total"] == config.num_params()
    assert sum(count for part, count in facts["parameters"].items() if part != "total") == config.num_params()
    assert facts["feed-forward share of the blocks"] == pytest.approx(2 / 3, abs=1e-3)
    assert f"{config.num_params():,}" in result.out
    assert "66.7%" in result.out


def test_a_folder(cli: Cli, tiny: Path) -> None:
    result = cli("info", tiny)
    assert (result.status, result.err) == (0, "")
    assert plain(result.out)
    facts = json.loads(cli("info", tiny, "--json").out)
    model = load(tiny)
    assert facts["family"] == "bert"
    assert facts["parameters"]["total"] == sum(parameter.numel() for parameter in model.encoder.parameters())
    assert [unit["N_out"] for unit in facts["units"]] == ["LayerNorm (eps 1e-12)"] * 2
    assert [(unit["α"], unit["β"], unit["N_in"]) for unit in facts["units"]] == [("1", "1", "–")] * 2
    names = {row["ours"]: row["theirs"] for row in facts["modules"]}
    assert names["blocks.{i}.attention.norm_out"] == "encoder.layer.{i}.attention.output.LayerNorm"


def test_the_default_model(cli: Cli) -> None:
    result = cli("info")
    assert (result.status, result.err) == (0, "")
    assert "sentence-transformers/all-MiniLM-L6-v2" in result.out
    assert "22,713,216" in result.out
    assert plain(result.out)


@pytest.mark.parametrize(
    "arguments", [["trace", "--blck", "0"], ["unknown"], ["trace", "--block", "x"], ["info", "a", "b"]]
)
def test_wrong_usage_is_status_2(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.status, result.out) == (2, "")
    assert "Usage" in result.err


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["trace", "--help"], ["info", "-h"]])
def test_help(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.status, result.err) == (0, "")
    assert "Usage" in result.out


@pytest.mark.parametrize("arguments", [["info", "transformer-base"], ["--help"]])
def test_a_reader_that_has_gone_is_no_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "addnorm", *arguments]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")
