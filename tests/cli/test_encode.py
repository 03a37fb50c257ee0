"""`addnorm encode`: kinds of files, bad input, and runs that are killed."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import addnorm
from addnorm.engine import files
from tests.cli.conftest import Cli

TEXTS = ["this is a test sentence", "", "a b c", 'test, "quoted"', "is this"] * 3


@pytest.fixture(scope="module")
def expected(tiny: Path) -> np.ndarray:
    return addnorm.load(tiny).encode(TEXTS)


def write(folder: Path, kind: str) -> Path:
    path = folder / f"in.{kind}"
    if kind == "txt":
        path.write_text("".join(f"{text}\n" for text in TEXTS))
    elif kind == "csv":
        rows = [f'{i},"{text.replace(chr(34), chr(34) * 2)}"\n' for i, text in enumerate(TEXTS)]
        path.write_text("".join(["id,text\n", *rows]))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    else:
        pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), path)
    return path


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl", "parquet"])
def test_kinds_in_and_out(cli: Cli, tiny: Path, tmp_path: Path, expected: np.ndarray, kind: str) -> None:
    source = write(tmp_path, kind)
    result = cli("encode", source, "-o", tmp_path / "out.npy", "--model", tiny)
    assert (result.status, result.err) == (0, "")
    assert result.out == f"{tmp_path / 'out.npy'}: 15 vectors of 12 features\n"
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)
    assert cli("encode", source, "-o", tmp_path / "out.parquet", "--model", tiny).status == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["text"].to_pylist() == TEXTS
    assert np.array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), expected)
    if kind != "txt":
        assert [int(i) for i in table["id"].to_pylist()] == list(range(len(TEXTS)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, "out.npy", "out.parquet"])


BAD = {
    "in.txt": (b"", "holds no texts"),
    "none.txt": (None, "cannot be read: No such file"),
    "latin.txt": (b"caf\xe9\n", "is not UTF-8"),
    "head.csv": (b"id,text\n", "holds no texts"),
    "other.csv": (b"id,body\n1,a\n", "has no column 'text'; it has id, body"),
    "short.csv": (b"id,text\n1,a\n2\n", "line 3 has another number of fields"),
    "open.csv": (b'id,text\n1,"a\n', "is not valid csv"),
    "other.jsonl": (b'{"body": "a"}\n', "line 1 has no column 'text'; it has body"),
    "number.jsonl": (b'{"text": "a"}\n{"text": 3}\n', "line 2: 'text' is 3; expected a text"),
    "half.jsonl": (b'{"text": "a"}\n{"text": ', "line 2 is not valid JSON"),
    "half.parquet": (b"PAR1half", "is no whole parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(cli: Cli, tiny: Path, tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.npy").write_bytes(b"as it was")
    result = cli("encode", tmp_path / name, "-o", tmp_path / "out.npy", "--model", tiny)
    assert result.status == 1
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert message in result.err
    assert (tmp_path / "out.npy").read_bytes() == b"as it was"
    assert {path.name for path in tmp_path.iterdir()} <= {name, "out.npy"}


def test_bad_output_is_one_line(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    source = write(tmp_path, "txt")
    assert "give one of .npy, .parquet" in cli("encode", source, "-o", tmp_path / "out.txt", "-m", tiny).err
    blocked = cli("encode", source, "-o", source / "out.npy", "-m", tiny)
    assert blocked.status == 1
    assert "cannot be written: Not a directory" in blocked.err
    assert cli("encode", source, "-o", tmp_path / "o.npy", "--precision", "int3").status == 2


def test_a_full_disk_keeps_what_is_whole(
    cli: Cli, tiny: Path, tmp_path: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write(tmp_path, "txt"), tmp_path / "out.npy"
    monkeypatch.setattr(files.encode_file, "__defaults__", (4,))
    calls = []
    save = np.save

    def full(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "save", full)
    result = cli("encode", source, "-o", output, "-m", tiny)
    assert result.status == 1
    assert "No space left on device" in result.err
    assert result.err.count("\n") == 1
    assert not output.exists()
    assert cli("encode", source, "-o", output, "-m", tiny, "--resume").status == 0
    assert len(calls) == 5  # two chunks were whole, of four
    assert np.array_equal(np.load(output), expected)


RUN = """
import sys, time
import addnorm.engine.files as files, addnorm.engine.stream as stream
compute = stream._vectors
def slow(*arguments):
    time.sleep(0.02)
    return compute(*arguments)
stream._vectors = slow
from pathlib import Path
files.encode_file(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], "text", "float32", resume=True, chunk=8)
"""


@pytest.mark.parametrize(("kind", "kills"), [(".npy", 10), (".parquet", 3)])
def test_killed_and_resumed_is_as_undisturbed(tiny: Path, tmp_path: Path, kind: str, kills: int) -> None:
    """Killed after some chunks and a moment: before, in or after writing one."""
    source = tmp_path / "in.jsonl"
    texts = [" ".join("abcdefgh"[i % 7 : i % 7 + 1 + i % 5]) for i in range(500)]
    source.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    calm, killed = tmp_path / f"calm{kind}", tmp_path / f"killed{kind}"
    files.encode_file(source, calm, str(tiny), "text", "float32", resume=False, chunk=8)
    parts = tmp_path / f".{killed.name}.parts"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, draw = 0, random.Random(0)
    for _ in range(kills):
        wanted = before + draw.randint(1, 50 // kills)
        process = subprocess.Popen([sys.executable, "-c", RUN, source, killed, tiny], env=environment)
        while process.poll() is None and len(list(parts.glob(f"0*{kind}"))) < wanted:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not killed.exists()
        before = len(list(parts.glob(f"0*{kind}")))
    assert kills <= before < 63
    files.encode_file(source, killed, str(tiny), "text", "float32", resume=True, chunk=8)
    assert killed.read_bytes() == calm.read_bytes()
    assert not parts.exists()


def test_chunks_of_another_run_are_not_taken(tiny: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path, "txt"), tmp_path / "out.npy"
    parts = tmp_path / ".out.npy.parts"
    parts.mkdir()
    (parts / "run.json").write_text("{}")
    with pytest.raises(addnorm.AddnormError, match="another input, model or option"):
        files.encode_file(source, output, str(tiny), "text", "float32", resume=True)
    files.encode_file(source, output, str(tiny), "text", "float32", resume=False)
    assert len(np.load(output)) == len(TEXTS)
    shutil.rmtree(parts, ignore_errors=True)


def test_help_is_quick_and_names_the_kinds(cli: Cli) -> None:
    result = cli("encode", "--help")
    assert result.status == 0
    assert ".parquet" in result.out
