"""A study's result: tidy rows, one measured value each, and means with confidence over seeds."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Self, TypeVar

Row = dict[str, Any]
Item = TypeVar("Item")
# done, of how many, at what
Progress = Callable[[int, int, str], None]

# Student's t for 95 %, by degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Table:
    """Rows with the same columns. `title`: what was measured; `note`: what to know when reading it."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def columns(self) -> list[str]:
        """All columns, in the order in which rows bring them."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def where(self, **equal: Any) -> Self:
        """The rows that have these values; a tuple or list allows any of its values."""

        def matches(row: Row) -> bool:
            return all(
                row.get(key) in value if isinstance(value, tuple | list) else row.get(key) == value
                for key, value in equal.items()
            )

        return type(self)(self.title, tuple(row for row in self.rows if matches(row)), self.note)

    def values(self, column: str) -> list[Any]:
        """One column."""
        return [row[column] for row in self.rows]

    def mean(self, value: str, *by: str) -> Self:
        """The mean of a column over all rows that agree in `by`, with the half width of its 95 % confidence.

        Columns `value`, `confidence` (None for a single row), `n`. A value that is not finite makes the mean so.
        """
        groups: dict[tuple[Any, ...], list[float]] = {}
        for row in self.rows:
            if row.get(value) is not None:
                groups.setdefault(tuple(row[key] for key in by), []).append(row[value])
        rows = tuple(
            dict(zip(by, key, strict=True)) | {value: _mean(found), "confidence": half_width(found), "n": len(found)}
            for key, found in groups.items()
        )
        return type(self)(self.title, rows, self.note)

    def to_csv(self) -> str:
        """Rows as comma-separated values with a header; a missing value is an empty field."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Title, note and rows as plain data."""
        return {"title": self.title, "note": self.note, "rows": list(self.rows)}

    def to_json(self) -> str:
        """The same as JSON text; what is not finite is written as text ("NaN", "inf", "-inf")."""
        return json.dumps(_plain(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if all(map(math.isfinite, values)) else math.nan


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of a mean (Student); None for fewer than 2 finite values."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    freedom = len(values) - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom
    return quantile * stdev(values) / math.sqrt(len(values))


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """The exponent of a power law y ~ x^slope: least squares on the logarithms."""
    xs, ys = [math.log(value) for value in x], [math.log(value) for value in y]
    mx, my = fmean(xs), fmean(ys)
    return sum((a - mx) * (b - my) for a, b in zip(xs, ys, strict=True)) / sum((a - mx) ** 2 for a in xs)


def track(items: Iterable[Item], label: Callable[[Item], str], progress: Progress | None) -> Iterator[Item]:
    """The items, telling `progress` which is next."""
    listed = list(items)
    for i, item in enumerate(listed):
        if progress is not None:
            progress(i, len(listed), label(item))
        yield item
    if progress is not None:
        progress(len(listed), len(listed), "done")


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "inf" if data > 0 else "-inf"
    return data
