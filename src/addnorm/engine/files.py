"""A file of texts → a file of vectors, in chunks that survive a kill.

Beside the output, in `.NAME.parts`, a chunk is a file of its own, written under another name and renamed when it
is whole. In the end they are joined, the output is renamed into place, and the folder goes. Chunks hold the same
texts in every run and a text's vector does not depend on its company, so a resumed run gives the same bytes.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from addnorm.engine.rows import OUTPUTS, Row, parquet, read_rows
from addnorm.errors import AddnormError
from addnorm.files import writing_file

if TYPE_CHECKING:
    from addnorm.model import Model

# Texts a chunk: what a kill can cost, and what is held in memory.
CHUNK = 1024


def encode_file(
    source: Path, output: Path, name: str, column: str, precision: str, resume: bool, chunk: int = CHUNK
) -> tuple[int, int]:
    """Encode the texts of a file; gives how many there were, and the width of their vectors.

    Errors: an input that is empty, cannot be read or lacks the column; an output of an unknown kind, or that
    cannot be written. Then the output is as it was, and complete chunks wait for `resume`.
    """
    kind = output.suffix.lower()
    if kind not in OUTPUTS:
        raise AddnormError(f"'{output}' ends in '{output.suffix}'; give one of {', '.join(OUTPUTS)}")
    if output.is_dir():
        raise AddnormError(f"'{output}' is a folder; give a file name to write to")
    if output.exists() and source.exists() and output.samefile(source):
        raise AddnormError(f"'{output}' is the input itself; give another file to write to")
    if kind == ".parquet":
        parquet()
    rows = read_rows(source, column, whole=kind == ".parquet")
    first = next(rows, None)  # what is wrong with the input comes before the model is loaded
    if first is None:
        raise AddnormError(f"'{source}' holds no texts; nothing to encode")

    from addnorm.model import load

    model = load(name)
    width = model.pooling.width(model.config.width)
    parts = output.with_name(f".{output.name}.parts")
    with _writing(output):
        precision = model.engine(precision).precision  # what auto stands for here
        _prepare(parts, _identity(source, name, model, column, precision, chunk), resume)
        try:
            count, number = _chunks(chain([first], rows), model, precision, parts, kind, chunk)
        except AddnormError:  # the input is not what it should be: nothing to resume
            shutil.rmtree(parts)
            raise
        with writing_file(output) as temporary:
            OUTPUTS[kind].join([parts / f"{i:08d}{kind}" for i in range(number)], temporary, count, width)
        shutil.rmtree(parts)
    return count, width


def _chunks(
    rows: Iterator[Row], model: "Model", precision: str, parts: Path, kind: str, chunk: int
) -> tuple[int, int]:
    """Write the chunks that are not there yet; gives how many texts and how many chunks there are in all."""
    from addnorm.engine.stream import windows

    count = number = 0
    while (parts / f"{number:08d}{kind}").exists():  # they are made in order
        count, number = count + sum(1 for _ in islice(rows, chunk)), number + 1
    held: list[Row] = []

    def texts() -> Iterator[str]:
        for row in rows:
            held.append(row)
            yield row.text

    for vectors in windows(model, texts(), chunk, precision):
        with _whole(parts / f"{number:08d}{kind}") as temporary:
            OUTPUTS[kind].write(temporary, held, vectors)
        count, number = count + len(held), number + 1
        held.clear()
    return count, number


def _identity(source: Path, name: str, model: "Model", column: str, precision: str, chunk: int) -> dict[str, Any]:
    """What chunks depend on: those of another input or model are not taken."""
    status = source.stat()
    weights = hashlib.sha256()
    for key, tensor in sorted(model.encoder.state_dict().items()):
        weights.update(key.encode())
        weights.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).data)
    return {
        "input": [str(source.resolve()), status.st_size, status.st_mtime_ns],
        "model": [name, weights.hexdigest()],
        "column": column,
        "precision": precision,
        "chunk": chunk,
    }


def _prepare(parts: Path, identity: dict[str, Any], resume: bool) -> None:
    """An own folder for chunks; those that are there stay if they are to be resumed and are of the same run."""
    stated = parts / "run.json"
    if parts.exists():
        if resume and stated.exists():
            if json.loads(stated.read_text(encoding="utf-8")) == identity:
                return
            raise AddnormError(
                f"'{parts}' holds chunks of another input, model or option; run without --resume to start anew"
            )
        if not stated.exists() and any(not path.name.startswith("new-") for path in parts.iterdir()):
            raise AddnormError(f"'{parts}' is not a folder of chunks; move it away")
        shutil.rmtree(parts)
    parts.mkdir(parents=True)
    with _whole(stated) as temporary:
        temporary.write_text(json.dumps(identity), encoding="utf-8")


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A file that has its name when all of it is on the disk."""
    temporary = target.with_name(f"new-{target.name}")
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, target)


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise AddnormError(
            f"'{output}' cannot be written: {reason}; make room or choose another place, then --resume"
        ) from None
