"""`addnorm trace`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from addnorm import load
from addnorm.trace.record import Trace
from tests.cli.conftest import Cli

TEXT = "this is a test sentence"


def plain(out: str) -> bool:
    """No line wider than 100 columns, no escape codes."""
    return "\x1b" not in out and max(map(len, out.splitlines())) <= 100


def test_the_default_walk(cli: Cli, tiny: Path) -> None:
    result = cli("trace", "--model", tiny)
    assert (result.status, result.err) == (0, "")
    assert "7 tokens: [CLS] this is a test sentence [SEP]" in result.out
    for part in ("embeddings", "blocks.0.attention", "blocks.1.feedforward", "pooler", "pooling", "Add & Norm"):
        assert f"\n{part} " in result.out or f"\n{part}\n" in result.out, part
    assert "block 1: 16 steps" in result.out
    assert plain(result.out)


@pytest.mark.parametrize("extra", [[], ["--compare"], ["--block", "1"], ["--block", "0", "--compare"]])
def test_the_walk_as_json_has_every_site(cli: Cli, tiny: Path, extra: list[str]) -> None:
    result = cli("trace", TEXT, "--model", tiny, "--json", *extra)
    assert (result.status, result.err) == (0, "")
    facts = json.loads(result.out)
    trace = load(tiny).trace(TEXT)
    sites = {row["site"]: row for row in facts["sites"]}
    if "--block" not in extra:
        assert list(sites) == trace.sites
    else:
        block = extra[1]
        assert {site for site in trace.sites if site.startswith(f"blocks.{block}.")} | {
            f"blocks.{block}"
        } <= sites.keys()
        assert {row["block"] for row in facts["rebuilt"]} == {int(block)}
        before = "blocks.0" if block == "1" else "embeddings"
        assert before in sites
    for site, row in sites.items():
        assert row["shape"] == list(trace[site].shape)
        assert row["first"] == pytest.approx(trace[site].flatten()[:3].tolist(), abs=1e-6)
    for row in facts["rebuilt"]:
        assert row["largest_difference_float64"] <= 1e-12
        assert row["largest_difference"] <= 1e-4
    seen = [row["twin_difference"] for row in sites.values() if row.get("twin_difference") is not None]
    assert bool(seen) == ("--compare" in extra)
    assert all(difference <= 1e-5 for difference in seen)


def test_only_the_sites_of_a_glob(cli: Cli, tiny: Path) -> None:
    facts = json.loads(cli("trace", "--model", tiny, "--site", "blocks.*.add", "--json").out)
    assert len(facts["sites"]) == 4
    assert all(row["site"].endswith(".add") for row in facts["sites"])
    assert plain(cli("trace", "--model", tiny, "--site", "blocks.*.add").out)


def test_saved_values_load_again(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "t.safetensors"
    result = cli("trace", TEXT, "--model", tiny, "--save", path)
    assert (result.status, result.err) == (0, "")
    saved, trace = Trace.load(path), load(tiny).trace(TEXT)
    assert saved.tokens == trace.tokens
    assert saved.sites == trace.sites
    assert all((saved[site] - trace[site]).abs().max() <= 1e-6 for site in trace.sites)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("below", ["t.safetensors", "deep/t.safetensors"])
def test_an_unwritable_place_leaves_nothing_behind(cli: Cli, tiny: Path, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("kept")
    result = cli("trace", TEXT, "--model", tiny, "--save", tmp_path / "file" / below)
    assert result.status == 1
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert str(tmp_path / "file" / below) in result.err
    assert len(result.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("stdin", [TEXT.encode(), f"{TEXT}\n".encode()])
def test_text_from_standard_input(cli: Cli, tiny: Path, stdin: bytes) -> None:
    facts = json.loads(cli("trace", "-", "--model", tiny, "--json", stdin=stdin).out)
    assert facts["tokens"] == ["[CLS]", "this", "is", "a", "test", "sentence", "[SEP]"]


def test_standard_input_that_is_not_utf_8(cli: Cli, tiny: Path) -> None:
    result = cli("trace", "-", "--model", tiny, stdin="Zürich".encode("latin-1"))
    assert (result.status, result.out) == (1, "")
    assert result.err == "error: standard input is not UTF-8 (byte 1); convert it first\n"


def test_an_empty_text_is_its_special_tokens(cli: Cli, tiny: Path) -> None:
    assert json.loads(cli("trace", "", "--model", tiny, "--json").out)["tokens"] == ["[CLS]", "[SEP]"]


@pytest.mark.parametrize("extra", [[], ["--compare"]])
def test_a_long_text_is_cut_with_one_remark(cli: Cli, tiny: Path, extra: list[str]) -> None:
    result = cli("trace", "a " * 50, "--model", tiny, "--json", *extra)
    assert result.status == 0
    assert len(json.loads(result.out)["tokens"]) == 16
    (remark,) = result.err.splitlines()
    assert "16 tokens" in remark
    assert "52" in remark


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--block", "2"], "--block 2: the model has blocks 0 to 1"),
        (["--block", "-1"], "--block -1: the model has blocks 0 to 1"),
        (["--site", "blocks.0.atention.add"], "did you mean blocks.0.attention.add"),
        (["--site", "pooler", "--block", "0"], "no site 'pooler'"),
    ],
)
def test_what_is_not_there_is_named(cli: Cli, tiny: Path, arguments: list[str], says: str) -> None:
    result = cli("trace", TEXT, "--model", tiny, *arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("error: ")
    assert says in result.err
    assert len(result.err.splitlines()) == 1


def test_the_real_model_fits_100_columns_when_piped() -> None:
    """Also the only run as a user would: the default model, a pipe, the twin beside it."""
    command = [sys.executable, "-m", "addnorm", "trace", "--block", "0", "--compare"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "300"}
    result = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "sentence-transformers/all-MiniLM-L6-v2" in result.stdout
    assert "twin Δ" in result.stdout
    assert "blocks.0.feedforward" in result.stdout
    assert plain(result.stdout)
