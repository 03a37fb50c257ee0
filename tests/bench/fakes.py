"""Systems that compute nothing, and some that fail, for a process of their own."""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from addnorm.bench.padded import Encode, Setting, Vectors
from addnorm.bench.systems import OURS, YARDSTICK, System


def vectors(texts: Sequence[str], size: int, max_tokens: int) -> Vectors:
    return np.array([[len(text), 1.0, 2.0] for text in texts], dtype=np.float32)


def works(setting: Setting) -> dict[str, Callable[[], Encode]]:
    return {"": lambda: vectors}


def dies_at_start(setting: Setting) -> dict[str, Callable[[], Encode]]:
    os._exit(3)


def cannot_be_built(setting: Setting) -> dict[str, Callable[[], Encode]]:
    raise ValueError(f"no such kernel in {setting.scratch}/deep/file.onnx\nand much more")


def dies_at_work(setting: Setting) -> dict[str, Callable[[], Encode]]:
    def encode(texts: Sequence[str], size: int, max_tokens: int) -> Vectors:
        os.abort()

    return {"": lambda: encode}


def is_not_finite(setting: Setting) -> dict[str, Callable[[], Encode]]:
    return {"broken": lambda: lambda texts, size, max_tokens: np.full((len(texts), 3), np.nan, dtype=np.float32)}


def has_one_good_way(setting: Setting) -> dict[str, Callable[[], Encode]]:
    return {**is_not_finite(setting), "good": lambda: vectors}


def hangs(setting: Setting) -> dict[str, Callable[[], Encode]]:
    def encode(texts: Sequence[str], size: int, max_tokens: int) -> Vectors:
        time.sleep(60)
        return vectors(texts, size, max_tokens)

    return {"": lambda: encode}


def system(name: str, build: Callable[[Setting], dict[str, Callable[[], Encode]]], *needs: str) -> System:
    return System(name, "float32", build, needs=needs)


FAILING = (
    system(OURS, works),
    system(YARDSTICK, works),
    system("absent", works, "a-package-that-is-not-there"),
    system("dies at start", dies_at_start),
    system("cannot be built", cannot_be_built),
    system("dies at work", dies_at_work),
    system("is not finite", is_not_finite),
    system("has one good way", has_one_good_way),
)
