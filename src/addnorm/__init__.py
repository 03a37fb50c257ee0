"""addnorm: Transformer encoders, open at every sub-layer.

Importing this loads nothing heavy: each public name brings what it needs on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.batch import Batch
    from addnorm.checkup import check
    from addnorm.config import EncoderConfig
    from addnorm.errors import AddnormError, Remark
    from addnorm.model import Model, load
    from addnorm.trace.compare import compare
    from addnorm.trace.record import Trace

__version__ = "0.1.0"
__all__ = ["AddnormError", "Batch", "EncoderConfig", "Model", "Remark", "Trace", "check", "compare", "load"]

_HOMES = {
    "AddnormError": "errors",
    "Batch": "batch",
    "EncoderConfig": "config",
    "Model": "model",
    "Remark": "errors",
    "Trace": "trace.record",
    "check": "checkup",
    "compare": "trace.compare",
    "load": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'addnorm' has no attribute '{name}'")
    value = getattr(import_module(f"addnorm.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
