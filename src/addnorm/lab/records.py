"""What a monitor recorded, as JSON lines and as TensorBoard events."""

import json
import math
from pathlib import Path
from typing import Any

from addnorm.errors import AddnormError, remark
from addnorm.lab.table import Row, Table

START = '{"step":'  # of a record's line


class Records:
    """Writes records: each at once, so that what was recorded is there whatever comes next.

    `file`: JSON lines, appended to; `tensorboard`: a folder of events.
    """

    def __init__(self, file: str | Path | None, tensorboard: str | Path | None) -> None:
        self.file = None if file is None else _opened(Path(file))
        self.writer = None if tensorboard is None else _tensorboard(tensorboard)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record."""
        if self.file is not None:
            try:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n")
            except OSError as error:  # a full disk is no reason to lose a training
                remark(f"'{self.file}' cannot be written ({error.strerror}); the monitor goes on without it")
                self.file = None
        if self.writer is not None:
            values = {"loss": record["loss"], "rate": record["rate"]}
            for unit, columns in record["units"].items():
                values |= {f"{key}/{unit}": value for key, value in columns.items()}
            for name, value in values.items():
                if value is not None:
                    self.writer.add_scalar(name, value, record["step"])
            self.writer.flush()

    def close(self) -> None:
        """End the events."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def read(file: str | Path) -> Table:
    """What a monitor wrote, a row a recorded step and unit: `step`, `loss`, `rate`, `unit` and its columns.

    Errors: no such file, or a line that is no record.
    """
    path = Path(file)
    if not path.is_file():
        raise AddnormError(f"no file '{path}'; check the path")
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        record = _parsed(line)
        if record is None:
            raise AddnormError(f"'{path}', line {number}: not a record of a monitor")
        told = {key: _number(record[key]) for key in ("step", "loss", "rate")}
        for unit, columns in record["units"].items():
            rows.append(told | {"unit": unit} | {key: _number(value) for key, value in columns.items()})
    return Table(f"What {path.name} recorded", tuple(rows))


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"step", "loss", "rate", "units"} <= record.keys() else None


def _opened(path: Path) -> Path:
    """A file to append to; a last line that was cut off goes. Errors: no monitor's file, or it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            text = file.read()
            whole = text[: text.rfind("\n") + 1]
            cut = text[len(whole) :]
            ours = cut.startswith(START) or START.startswith(cut)
            if not ours or any(_parsed(line) is None for line in whole.splitlines()):
                raise AddnormError(f"'{path}' holds something else than a monitor's records; give another file")
            if cut:
                file.truncate(len(whole.encode("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise AddnormError(f"'{path}' cannot be written ({reason}); choose another place") from None
    return path


def _tensorboard(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        remark("tensorboard is not installed (pip install tensorboard); the monitor goes on without it")
        return None
    return SummaryWriter(str(folder))


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
