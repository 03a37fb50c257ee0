"""precision="auto": what it picks, what it keeps, and when the cache is of no use."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import addnorm
from addnorm.engine import lower, speed
from addnorm.engine.operators import has_bfloat16
from addnorm.errors import Remark
from tests.nn.drawn import build, small


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, on a processor with bfloat16."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(speed, "has_bfloat16", lambda: True)
    speed.fastest.cache_clear()
    yield tmp_path / "addnorm" / "precision.json"
    speed.fastest.cache_clear()


@pytest.mark.parametrize(("ratio", "chosen"), [(1.9, "bfloat16"), (0.6, "float32")])
def test_it_is_timed_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, chosen: str) -> None:
    timed = []
    monkeypatch.setattr(speed, "measured", lambda: timed.append(1) or ratio)
    for _ in range(2):
        speed.fastest.cache_clear()  # as in another process
        with pytest.warns(Remark, match=f"auto: {chosen} .* {ratio} times"):
            assert speed.fastest() == chosen
    assert timed == [1]
    (key,) = json.loads(cache.read_text())
    assert f"torch {torch.__version__}" in key
    assert [path.name for path in cache.parent.iterdir()] == ["precision.json"]


@pytest.mark.parametrize("content", ["{", "[1]", '{"other": 2.0}', ""])
def test_a_cache_of_something_else(cache: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(speed, "measured", lambda: 2.0)
    cache.parent.mkdir()
    cache.write_text(content)
    with pytest.warns(Remark):
        assert speed.fastest() == "bfloat16"
    assert 2.0 in json.loads(cache.read_text()).values()


def test_a_cache_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measured", lambda: 2.0)
    cache.parent.write_text("a file where the folder should be")
    with pytest.warns(Remark):
        assert speed.fastest() == "bfloat16"


def test_without_bfloat16_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "has_bfloat16", lambda: False)
    assert speed.fastest() == "float32"


def test_the_engine_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measured", lambda: 0.5)
    with pytest.warns(Remark, match="precision auto: float32"):
        assert lower(build(small()).float(), "auto").precision == "float32"


@pytest.mark.skipif(not has_bfloat16(), reason="no bfloat16 products on this processor")
def test_the_real_measure(minilm: addnorm.Model) -> None:
    assert 0.1 < speed.measured() < 100
