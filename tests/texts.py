"""Varied real texts: the standard library's docstrings, and what breaks tokenizers."""

import importlib
import inspect

MODULES = ("argparse", "ast", "asyncio", "collections", "csv", "datetime", "decimal", "difflib", "email", "fractions")
MODULES += ("functools", "heapq", "http", "inspect", "itertools", "json", "logging", "os", "pathlib", "random", "re")


def docstrings(count: int) -> list[str]:
    """The first `count` docstrings of the standard library's modules, classes and functions."""
    found: dict[str, None] = {}
    for name in MODULES:
        for _, member in sorted(inspect.getmembers(importlib.import_module(name))):
            text = inspect.getdoc(member) if inspect.isclass(member) or inspect.isroutine(member) else None
            if text:
                found.setdefault(text)
    assert len(found) >= count
    return list(found)[:count]


VARIED = [
    "",
    " ",
    "word",
    "😀 👩‍👩‍👧 emoji 🇨🇭",
    "你好，世界。这是一个测试句子。",
    "Zoë naïvely ate a Crème brûlée in São Tomé.",
    "ВЕЛИКИЙ и могучий русский язык",
    "עברית ועربية مختلطة",
    "tabs\tand\nnew\r\nlines",
    "[CLS] a text that names [MASK] and [SEP] itself",
    "a" * 300,
    "3.14159 × 10⁻² ≈ ½",
    "\x00 control \x7f characters \u200b and zero width",
    "word " * 5000,
    "The residual connection lets a block learn only a change of its input.",
]
