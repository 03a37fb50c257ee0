"""Ratios round by round, shares of the ceiling, JSON and back."""

from pathlib import Path

import pytest

from addnorm.bench.results import Ceiling, Ratio, from_json, ratio, to_json
from addnorm.errors import AddnormError
from tests.bench.made import RESULT

OURS, YARDSTICK, PEER, OURS8, YARDSTICK8, ALONE = RESULT.measured


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() -> None:
    assert ratio(YARDSTICK, OURS) == Ratio(3.0, 2.0, 4.0)
    assert ratio(PEER, OURS) == Ratio(1.5, 1.1, 2.0)
    assert ratio(OURS, OURS) == Ratio(1.0, 1.0, 1.0)
    assert ratio(None, OURS) is None
    assert ratio(OURS, None) is None


def test_others_are_compared_within_their_heat() -> None:
    assert RESULT.ours(PEER) is OURS
    assert RESULT.yardstick(PEER) is YARDSTICK
    assert RESULT.ours(YARDSTICK8) is OURS8
    assert RESULT.yardstick(OURS8) is YARDSTICK8
    assert RESULT.ours(ALONE) is None
    assert RESULT.peers("mixed", "float32") == [PEER, YARDSTICK]  # fastest first
    assert RESULT.peers("mixed", "int8") == []


def test_the_share_of_the_ceiling_is_that_of_the_precision() -> None:
    assert RESULT.of_ceiling(OURS) == pytest.approx(20e9 / 1.0 / 100e9)
    assert RESULT.of_ceiling(OURS8) == pytest.approx(20e9 / 0.5 / 400e9)


def test_the_larger_of_two_ceilings() -> None:
    later = Ceiling(
        {"float32": 90e9, "int8": 500e9, "bfloat16": 1.0}, {"float32": "a", "int8": "b", "bfloat16": "c"}, 9
    )
    best = RESULT.ceiling.best(later)
    assert best.flops == {"float32": 100e9, "int8": 500e9, "bfloat16": 1.0}
    assert best.how == {"float32": "mm", "int8": "b", "bfloat16": "c"}
    assert best.bytes == 10e9


def test_json_and_back(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(to_json([RESULT, RESULT]), encoding="utf-8")
    assert from_json(file) == [RESULT, RESULT]


@pytest.mark.parametrize("text", ["[]", "{}", '{"results": [{}]}', '{"results": 3}', "nothing"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(AddnormError):
        from_json(file)
