"""Writing so that nothing half-written is left behind, reading with errors that name the file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from addnorm import AddnormError
from addnorm.files import read_json, read_object, writing_file, writing_folder


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its text, and every empty folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
        elif not any(path.iterdir()):
            found[str(path.relative_to(folder))] = "(empty)"
    return found


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "t.txt"
    with writing_file(target) as file:
        file.write_text("whole")
        assert not target.exists()
    assert tree(tmp_path) == {"a/b/t.txt": "whole"}


def test_a_folder_is_there_when_it_is_whole(tmp_path: Path) -> None:
    with writing_folder(tmp_path / "model") as folder:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text("{}")
        (folder / "weights").write_text("w")
        assert not (tmp_path / "model").exists()
    assert tree(tmp_path) == {"model/1_Pooling/config.json": "{}", "model/weights": "w"}


def test_what_was_there_is_replaced_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    (tmp_path / "model" / "notes").write_text("mine")
    with writing_folder(tmp_path / "model") as folder:
        (folder / "weights").write_text("new")
    assert tree(tmp_path) == {"model/notes": "mine", "model/weights": "new"}


@pytest.mark.parametrize("error", [ValueError, AddnormError, KeyboardInterrupt])
@pytest.mark.parametrize("target", ["t.txt", "new/t.txt", "new/and/deep/t.txt"])
def test_a_failure_leaves_no_file(tmp_path: Path, error: type[BaseException], target: str) -> None:
    def fail() -> None:
        with writing_file(tmp_path / target) as file:
            file.write_text("half")
            raise error("broken")

    with pytest.raises(error, match="broken"):
        fail()
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("target", ["model", "new/model"])
def test_a_failure_leaves_no_folder(tmp_path: Path, target: str) -> None:
    def fail() -> None:
        with writing_folder(tmp_path / target) as folder:
            (folder / "half").write_text("half")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert tree(tmp_path) == {}


def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")

    def fail_file() -> None:
        with writing_file(tmp_path / "model" / "weights") as file:
            file.write_text("half")
            raise ValueError("broken")

    def fail_folder() -> None:
        with writing_folder(tmp_path / "model") as folder:
            (folder / "weights").write_text("half")
            raise ValueError("broken")

    for fail in (fail_file, fail_folder):
        with pytest.raises(ValueError, match="broken"):
            fail()
        assert tree(tmp_path) == {"model/weights": "old"}


@pytest.mark.usefixtures("umask")
def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    with writing_file(tmp_path / "t.txt") as file:
        file.touch(mode=0o600)
    with writing_folder(tmp_path / "model") as folder:
        (folder / "weights").touch(mode=0o600)
    for path in (tmp_path / "t.txt", tmp_path / "model" / "weights"):
        assert path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(AddnormError, match="is a folder; give a file name"), writing_file(tmp_path):
        pass
    with pytest.raises(AddnormError, match="is a file; give a folder"), writing_folder(tmp_path / "file"):
        pass
    for below in (writing_file, writing_folder):
        with (
            pytest.raises(AddnormError, match=r"x' cannot be written: .*; choose another place"),
            below(tmp_path / "file" / "x"),
        ):
            pass
    assert tree(tmp_path) == {"file": "kept"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "has no x.json; expected a model folder"),
        (b"", "x.json' is not valid JSON"),
        (b"{", "x.json' is not valid JSON"),
        (b"\xff{}", "x.json' is not valid JSON"),
        (b"[1]", "x.json' is [1]; expected a JSON object"),
        (b"null", "x.json' is None; expected a JSON object"),
    ],
)
def test_reading_what_is_no_object(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(AddnormError) as caught:
        read_object(tmp_path / "x.json")
    assert says in str(caught.value)


def test_reading_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"ü": [1, null]}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == read_object(tmp_path / "x.json") == {"ü": [1, None]}
