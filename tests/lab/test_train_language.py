"""Masked-language training, end to end."""

import math
from pathlib import Path
from typing import Any

from addnorm.lab import train as training


def test_masked_language_is_learned_from_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    settings: dict[str, Any] = {"task": "masked language", "steps": 40, "every": 20, "width": 32, "heads": 2}
    found = training.train(("pre-norm",), (1,), (1e-2,), processes=1, file=file, **settings)
    assert [row["step"] for row in found.rows] == [20, 40]
    losses, chance = found.values("loss"), found.rows[0]["chance"]
    assert losses[-1] < min(losses[0], math.log(2002) - 1)  # far below guessing without having seen a text
    assert 5 < chance < 7
    assert not any(found.values("diverged"))
    assert training.train(("pre-norm",), (1,), (1e-2,), processes=1, file=file, **settings).rows == found.rows
