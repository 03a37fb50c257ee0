"""The fast, inference-only lowering of an encoder."""

from addnorm.engine.lower import PRECISIONS, Engine, lower
from addnorm.engine.state import State

__all__ = ["PRECISIONS", "Engine", "State", "lower"]
