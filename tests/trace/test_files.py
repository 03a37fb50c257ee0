"""Traces as files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from addnorm import AddnormError
from addnorm.trace.record import FORMAT, Trace
from tests.nn.drawn import ids_of
from tests.trace.test_record import MODEL, same


@pytest.mark.parametrize("lengths", [(4,), (3, 1, 3)])
def test_a_saved_trace_is_the_same(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    trace = MODEL.trace(ids_of(*lengths))
    trace.save(tmp_path / "new" / "t.safetensors")
    again = Trace.load(tmp_path / "new" / "t.safetensors")
    assert same(trace, again)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.safetensors"]


def test_a_trace_is_plain_safetensors(tmp_path: Path) -> None:
    trace = MODEL.trace(ids_of(4, 2), sites="blocks.*.add")
    trace.save(str(tmp_path / "t.safetensors"))
    tensors = load_file(tmp_path / "t.safetensors")
    assert tensors.keys() == {f"{i}/{site}" for i in range(2) for site in trace.sites}
    assert torch.equal(tensors["1/blocks.0.attention.add"], trace[1]["blocks.0.attention.add"])


def facts(**changes: object) -> dict[str, str]:
    whole = {"tokens": [["1"]], "sites": ["blocks.0"], "kernel": "eager"} | changes
    return {"format": FORMAT, "trace": json.dumps(whole)}


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (None, "no trace"),
        ({"format": "pt"}, "no trace"),
        ({"format": "addnorm-trace-0"}, "no trace"),
        ({"format": FORMAT}, "damaged or not a trace"),
        ({"format": FORMAT, "trace": "{"}, "damaged or not a trace"),
        ({"format": FORMAT, "trace": "[]"}, "damaged or not a trace"),
        (facts(sites=["blocks.1"]), "damaged or not a trace"),
        (facts(tokens=[["1"], ["2"]]), "damaged or not a trace"),
    ],
)
def test_another_safetensors_file_is_no_trace(tmp_path: Path, metadata: dict[str, str] | None, says: str) -> None:
    save_file({"0/blocks.0": torch.ones(2)}, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(AddnormError, match=says) as caught:
        Trace.load(tmp_path / "x.safetensors")
    assert "x.safetensors" in str(caught.value)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.99])
def test_a_damaged_file_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "t.safetensors"
    MODEL.trace(ids_of(4)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(AddnormError, match="damaged or not a trace"):
        Trace.load(path)


@pytest.mark.parametrize("name", ["nowhere.safetensors", "."])
def test_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(AddnormError, match="no trace file"):
        Trace.load(tmp_path / name)
