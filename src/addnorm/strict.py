"""Frozen dataclasses that read and write plain data, strictly."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from addnorm.errors import AddnormError


@dataclass(frozen=True, kw_only=True)
class Config:
    """A frozen dataclass that reads and writes plain data and refuses what it does not know."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> Self:
        """Build from nested plain data. Errors: unknown key, missing key, value of another type."""
        hints = _hints(cls)
        path = f"{where}." if where else ""
        for key in data:
            if key not in hints:
                raise AddnormError(
                    f"config: unknown key '{path}{key}'; {cls.__name__} knows {', '.join(sorted(hints))}"
                )
        values = {key: _read(hints[key], value, f"{path}{key}") for key, value in data.items()}
        for field in dataclasses.fields(cls):
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and field.name not in values:
                raise AddnormError(f"config: '{path}{field.name}' is missing; {cls.__name__} requires it")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The same config as nested plain data; `from_dict` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Errors: not JSON, not an object, and those of `from_dict`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise AddnormError(f"config: not valid JSON ({error}); expected what to_json writes") from None
        if not isinstance(data, dict):
            raise AddnormError(f"config: a JSON {type(data).__name__}; expected an object")
        return cls.from_dict(data)

    def to_json(self) -> str:
        """The config as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _hints(cls: type[Config]) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        nested = [option for option in options if isinstance(option, type) and issubclass(option, Config)]
        plain = [option for option in options if option not in nested and option is not type(None)]
        return _read((nested if isinstance(value, Mapping) and nested else plain or nested)[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Literal and value in get_args(hint):
        return value
    if isinstance(hint, type):
        if issubclass(hint, Config) and isinstance(value, Mapping):
            return hint.from_dict(value, where)
        if hint is float and type(value) in (int, float):
            return float(value)
        if type(value) is hint:
            return value
    expected = " | ".join(map(repr, get_args(hint))) if origin is Literal else getattr(hint, "__name__", hint)
    raise AddnormError(f"config: '{where}' is {value!r}; expected {expected}")


def require(condition: bool, message: str) -> None:
    """Refuse a config for which a condition does not hold."""
    if not condition:
        raise AddnormError(f"config: {message}")
