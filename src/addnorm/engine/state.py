"""Whether an encoder is still the one that was lowered."""

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, eq, is_
from typing import Any

from torch import Tensor, nn

WRITES = attrgetter("_version")


class State:
    """What modules consist of now, to see later whether that has changed. Cheap to ask: it is, for each text alone.

    Seen: parameters written, replaced, moved or cast, parts exchanged. PyTorch counts the writes to a tensor;
    writes through `.data` or NumPy escape it.
    """

    def __init__(self, *modules: nn.Module) -> None:
        parts = [part for module in modules for part in module.modules()]
        held = (own for part in parts for own in (part._modules, part._parameters, part._buffers))
        self.held = [own for own in held if own]  # what is added to an empty one is not what was lowered
        self.hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self.values = list(self._values())
        tensors = chain.from_iterable((*part._parameters.values(), *part._buffers.values()) for part in parts)
        self.tensors = [tensor for tensor in tensors if tensor is not None]
        self.places = list(map(Tensor.data_ptr, self.tensors))
        self.counted = [tensor for tensor in self.tensors if not tensor.is_inference()]
        self.writes = list(map(WRITES, self.counted))

    def holds(self) -> bool:
        """Whether nothing has changed."""
        return (
            sum(map(len, self.held)) == len(self.values)
            and all(map(is_, self._values(), self.values))
            and all(map(eq, map(Tensor.data_ptr, self.tensors), self.places))
            and all(map(eq, map(WRITES, self.counted), self.writes))
        )

    @property
    def hooked(self) -> bool:
        """Whether someone watches or edits the modules' values, which an engine does not show."""
        return any(self.hooks)

    def _values(self) -> Iterator[Any]:
        return chain.from_iterable(held.values() for held in self.held)
