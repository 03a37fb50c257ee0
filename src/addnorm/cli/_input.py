"""How the commands read text."""

import sys

from addnorm.errors import AddnormError


def read_text(text: str) -> str:
    """The text, or what standard input holds where it is `-`."""
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            raise AddnormError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from None
    return text
