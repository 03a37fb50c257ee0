"""What can go wrong, in one line each."""

import warnings


class AddnormError(ValueError):
    """Something the user can mend: the message says what was wrong, where, and what to do."""


class Remark(UserWarning):
    """Something the user should know although the work went on."""


def remark(message: str) -> None:
    """Issue a `Remark`; the command line prints it to stderr."""
    warnings.warn(message, Remark, stacklevel=3)
