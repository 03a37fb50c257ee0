"""A name → a folder."""

from pathlib import Path

import pytest

import addnorm
from addnorm import hub


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_a_folder_comes_before_anything_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / hub.DEFAULT_MODEL).mkdir(parents=True)
    assert hub.locate(hub.DEFAULT_MODEL) == Path(hub.DEFAULT_MODEL)


def test_the_installed_package_is_found_by_its_sum() -> None:
    folder = hub.locate(hub.DEFAULT_MODEL)
    assert (folder / "model.safetensors").is_file()
    assert (folder / "modules.json").is_file()


def test_a_package_whose_weights_were_changed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_sha256", lambda path: "0" * 64)
    with (
        pytest.warns(addnorm.Remark, match="has been changed: skipped"),
        pytest.raises(addnorm.AddnormError, match="not an installed weight package"),
    ):
        hub.locate(hub.DEFAULT_MODEL)


def test_a_snapshot_in_the_cache_is_found(tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--someone--encoder"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(addnorm.AddnormError, match="model 'someone/encoder' has no weights in the cache"):
        hub.locate("someone/encoder")
    (snapshot / "model.safetensors").touch()
    assert hub.locate("someone/encoder") == snapshot


NOWHERE = {
    "./nowhere": "no folder './nowhere'",
    "a/b/c": "no folder 'a/b/c'",
    "someone/nothing": "no model 'someone/nothing'",
    "not a name!": "neither a folder nor a possible name",
}


@pytest.mark.parametrize("name", NOWHERE)
def test_what_is_nowhere_is_named(name: str) -> None:
    with pytest.raises(addnorm.AddnormError, match=NOWHERE[name]):
        hub.locate(name)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(addnorm.AddnormError, match="is a file"):
        hub.locate(tmp_path / "model.safetensors")
