"""Whether an encoder is still the one that was lowered."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def state(*modules: nn.Module) -> tuple[Any, ...]:
    """What changes when parameters are written or replaced, moved or cast, or parts are exchanged.

    PyTorch counts the writes to a tensor; writes through `.data` or NumPy escape it.
    """
    seen: list[Any] = []
    for part in _parts(modules):
        tensors = (*part._parameters.values(), *part._buffers.values())
        seen.append((id(part), *(_state(tensor) for tensor in tensors if tensor is not None)))
    return tuple(seen)


def hooked(*modules: nn.Module) -> bool:
    """Whether someone watches or edits the modules' values, which an engine does not show."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in _parts(modules))


def _parts(modules: Iterable[nn.Module]) -> Iterable[nn.Module]:
    return (part for module in modules for part in module.modules())


def _state(tensor: Tensor) -> tuple[Any, ...]:
    version = 0 if tensor.is_inference() else tensor._version
    return id(tensor), tensor.data_ptr(), version, tensor.dtype, tensor.device
