"""Tables: means with confidence, selection, and what is written."""

import csv
import io
import json
import math

import pytest

from addnorm.lab.table import Table, half_width, slope, track

ROWS = tuple(
    {"variant": variant, "seed": seed, "loss": base + seed}
    for variant, base in (("a", 1.0), ("b", 5.0))
    for seed in (0, 1, 2)
)
TABLE = Table("losses", ROWS, "a note")


def test_means_are_over_what_is_not_named() -> None:
    means = TABLE.mean("loss", "variant")
    assert means.columns == ["variant", "loss", "confidence", "n"]
    assert means.values("loss") == [2.0, 6.0]
    assert means.values("n") == [3, 3]
    # Student's t for 2 degrees of freedom is 4.303, the standard deviation of 0, 1, 2 is 1.
    assert means.values("confidence") == pytest.approx([4.303 / math.sqrt(3)] * 2)


def test_one_value_has_no_confidence() -> None:
    assert half_width([1.0]) is None
    assert half_width([1.0, math.nan]) is None
    assert half_width([2.0] * 40) == 0


def test_a_value_that_is_not_finite_is_not_averaged_away() -> None:
    table = Table("", ({"x": 1.0}, {"x": math.inf}))
    assert math.isnan(table.mean("x").values("x")[0])


def test_rows_are_chosen_by_value_or_by_several() -> None:
    assert len(TABLE.where(variant="a").rows) == 3
    assert TABLE.where(variant=("a", "b"), seed=1).values("loss") == [2.0, 6.0]
    assert TABLE.where(variant="c").rows == ()


def test_csv_is_read_back() -> None:
    rows = list(csv.DictReader(io.StringIO(Table("", ({"a": 1}, {"a": 2, "b": "x, y"})).to_csv())))
    assert rows == [{"a": "1", "b": ""}, {"a": "2", "b": "x, y"}]


def test_json_has_no_numbers_that_json_does_not_know() -> None:
    data = json.loads(Table("t", ({"x": math.nan}, {"x": -math.inf}, {"x": 1.5}), "n").to_json())
    assert data == {"title": "t", "note": "n", "rows": [{"x": "NaN"}, {"x": "-inf"}, {"x": 1.5}]}


def test_a_power_law_has_its_exponent() -> None:
    assert slope((1, 2, 4, 8), (3, 12, 48, 192)) == pytest.approx(2)


def test_progress_is_told_each_step_and_the_end() -> None:
    told: list[tuple[int, int, str]] = []
    assert list(track("ab", str.upper, lambda *step: told.append(step))) == ["a", "b"]
    assert told == [(0, 2, "A"), (1, 2, "B"), (2, 2, "done")]
