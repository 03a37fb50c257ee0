"""Reading what users have, writing so that nothing half-written is left behind."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from addnorm.errors import AddnormError


def read_json(path: Path) -> Any:
    """The content of a JSON file. Errors: not there, not UTF-8, not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AddnormError(f"'{path.parent}' has no {path.name}; expected a model folder") from None
    except OSError as error:
        raise AddnormError(f"'{path}' cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise AddnormError(f"'{path}' is not valid JSON ({error}); download or copy it again") from None


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file that must be an object."""
    return expect(read_json(path), dict, f"'{path}'")


T = TypeVar("T")


def expect(value: Any, kind: type[T], where: str) -> T:
    """The value, which must be of a kind. Errors: it is not; `where` names it."""
    if not isinstance(value, kind):
        raise AddnormError(f"{where} is {value!r:.60}; expected a {NAMES.get(kind, kind.__name__)}")
    return value


NAMES: dict[type, str] = {dict: "JSON object", list: "JSON list", str: "text"}


@contextmanager
def writing_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, whose files are moved into `target` when all are written.

    Errors: the place cannot be written; then nothing of the attempt is left.
    """
    if target.exists() and not target.is_dir():
        raise AddnormError(f"'{target}' is a file; give a folder to save to")
    with _temporary_beside(target) as temporary:
        yield temporary
        for file in sorted(path for path in temporary.rglob("*") if path.is_file()):
            final = target / file.relative_to(temporary)
            final.parent.mkdir(parents=True, exist_ok=True)
            _publish(file, final)


@contextmanager
def writing_file(target: Path) -> Iterator[Path]:
    """A temporary file beside `target`, moved over it when it is written.

    Errors: the place cannot be written; then nothing of the attempt is left.
    """
    if target.is_dir():
        raise AddnormError(f"'{target}' is a folder; give a file name to write to")
    with _temporary_beside(target) as temporary:
        yield temporary / target.name
        _publish(temporary / target.name, target)


def _publish(file: Path, target: Path) -> None:
    # Some writers make private files: take the mode that the user's umask gives a new one.
    plain = file.with_name(f".{file.name}.mode")
    plain.touch()
    file.chmod(plain.stat().st_mode)
    plain.unlink()
    os.replace(file, target)


@contextmanager
def _temporary_beside(target: Path) -> Iterator[Path]:
    new = [folder for folder in target.parents if not folder.exists()]  # innermost first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
            yield Path(temporary)
    except BaseException as error:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise AddnormError(f"'{target}' cannot be written: {reason}; choose another place") from None
        raise
