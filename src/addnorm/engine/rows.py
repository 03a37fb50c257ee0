"""Kinds of files with texts, and of files with vectors."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from addnorm.errors import AddnormError


@dataclass(frozen=True)
class Row:
    """A text, and all columns of its row where they are asked for."""

    text: str
    columns: dict[str, Any]


def parquet() -> tuple[Any, Any]:
    """pyarrow and its parquet module. Errors: it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise AddnormError("parquet needs pyarrow; pip install 'addnorm[encode]', or use .npy and .jsonl") from None
    return pyarrow, pyarrow.parquet


def read_rows(source: Path, column: str, whole: bool) -> Iterator[Row]:
    """The rows of a file in turn; `whole`: with all its columns.

    Errors: it cannot be read, or lacks the column; a row without a text, by its number.
    """
    read = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}.get(source.suffix.lower())
    try:
        if read is _parquet:
            yield from _parquet(source, column, whole)
            return
        with source.open(encoding="utf-8-sig", newline="" if read is _csv else None) as file:
            yield from (read or _lines)(file, f"'{source}'", column, whole)  # type: ignore[operator]
    except UnicodeDecodeError as error:
        raise AddnormError(f"'{source}' is not UTF-8 ({error.reason}); convert it first") from None
    except OSError as error:
        raise AddnormError(f"'{source}' cannot be read: {error.strerror or error}; check the path") from None


def _lines(file: TextIO, where: str, column: str, whole: bool) -> Iterator[Row]:
    for line in file:
        text = line.removesuffix("\n")
        yield Row(text, {"text": text} if whole else {})


def _csv(file: TextIO, where: str, column: str, whole: bool) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        rows = csv.DictReader(file, strict=True)
        if rows.fieldnames is not None and column not in rows.fieldnames:
            raise _missing(where, column, rows.fieldnames)
        for row in rows:
            if None in row or None in row.values():
                raise AddnormError(f"{where} line {rows.line_num} has another number of fields than the first line")
            yield Row(row[column], row if whole else {})
    except csv.Error as error:
        raise AddnormError(f"{where} is not valid csv ({error}); mend it") from None


def _jsonl(file: TextIO, where: str, column: str, whole: bool) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise AddnormError(f"{where} line {number} is not valid JSON ({error}); mend it") from None
        if not isinstance(row, dict):
            raise AddnormError(f"{where} line {number} is no JSON object; expected one a line")
        if column not in row:
            raise _missing(f"{where} line {number}", column, row)
        yield _row(row, column, f"{where} line {number}", whole)


def _parquet(source: Path, column: str, whole: bool) -> Iterator[Row]:
    arrow, files = parquet()
    number = 0
    try:
        with files.ParquetFile(source) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise _missing(f"'{source}'", column, names)
            for batch in file.iter_batches(1024, columns=None if whole else [column]):
                for row in batch.to_pylist():
                    number += 1
                    yield _row(row, column, f"'{source}' row {number}", whole)
    except arrow.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise AddnormError(f"'{source}' is no whole parquet file ({reason}); write it again") from None


def _row(row: dict[str, Any], column: str, where: str, whole: bool) -> Row:
    text = row[column]
    if not isinstance(text, str):
        raise AddnormError(f"{where}: '{column}' is {text!r:.40}; expected a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AddnormError(f"{where}: '{column}' is not valid Unicode; mend it") from None
    return Row(text, row if whole else {})


def _missing(where: str, column: str, known: Any) -> AddnormError:
    return AddnormError(f"{where} has no column '{column}'; it has {', '.join(map(str, known))} (--column)")


Write = Callable[[Path, Sequence[Row], NDArray[np.float32]], None]
Join = Callable[[Sequence[Path], Path, int, int], None]


@dataclass(frozen=True)
class Output:
    """How a chunk is written, and how chunks become one file, of so many vectors, so wide."""

    write: Write
    join: Join


def _write_npy(path: Path, rows: Sequence[Row], vectors: NDArray[np.float32]) -> None:
    with path.open("wb") as file:
        np.save(file, vectors)


def _join_npy(parts: Sequence[Path], path: Path, count: int, width: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.load(part).astype("<f4").tobytes())


def _write_parquet(path: Path, rows: Sequence[Row], vectors: NDArray[np.float32]) -> None:
    arrow, files = parquet()
    table = arrow.Table.from_pylist([row.columns for row in rows])
    if "vector" in table.column_names:
        raise AddnormError("the input has a column 'vector' already; rename it")
    flat = arrow.array(vectors.reshape(-1), arrow.float32())
    files.write_table(
        table.append_column("vector", arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])), path
    )


def _join_parquet(parts: Sequence[Path], path: Path, count: int, width: int) -> None:
    arrow, files = parquet()
    # A column may be empty in one chunk and not in another.
    schemas = [files.read_schema(part) for part in parts]
    try:
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
    except (arrow.ArrowInvalid, arrow.ArrowTypeError) as error:
        raise AddnormError(f"a column holds different kinds of values ({str(error).splitlines()[0]})") from None
    with files.ParquetWriter(path, schema) as writer:
        for part in parts:
            table = files.read_table(part)
            columns = {
                name: table[name].cast(schema.field(name).type)
                if name in table.column_names
                else arrow.nulls(len(table), schema.field(name).type)
                for name in schema.names
            }
            writer.write_table(arrow.table(columns, schema=schema))


OUTPUTS = {".npy": Output(_write_npy, _join_npy), ".parquet": Output(_write_parquet, _join_parquet)}
