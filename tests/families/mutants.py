"""One plausible mistake for each family: what a loader could get wrong without anyone noticing.

Each function changes our encoder in place after loading. `test_mutants.py` shows that the comparison with the
twin sees it.
"""

from collections.abc import Callable
from typing import Any

# The modules are reached by attribute, as a user would; their types are not of interest here.
Mutate = Callable[[Any], None]


def swap_norms(encoder: Any) -> None:
    block = encoder.blocks[1]
    block.attention.norm_out, block.feedforward.norm_out = block.feedforward.norm_out, block.attention.norm_out


MUTANTS: dict[str, Mutate] = {
    "bert": swap_norms,
}
