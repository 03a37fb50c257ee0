"""A process of its own: starting it, asking it, ending it; what fails in it becomes one line."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from addnorm.bench.machine import without_places
from addnorm.errors import AddnormError

Handler = Callable[[Any], Any]
# Seconds until an answer is no longer waited for.
PATIENCE = 600.0
# Seconds in which a process that only waits has put its things away.
GRACE = 5.0


class RefusalError(Exception):
    """What a process could not do, and why, in one line."""


class Worker:
    """A process that makes a handler and then answers a message at a time.

    `make` and its arguments are pickled; `threads`: for everything that computes in it; `patience`: in seconds.
    The process ends with `close`, with this one, or when it is left as a context.
    """

    def __init__(self, make: Callable[..., Handler], *args: Any, threads: int, patience: float = PATIENCE) -> None:
        # Not a fork: the libraries that compute do not survive one.
        context = multiprocessing.get_context("spawn")
        self.patience = patience
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads, make, args), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, message: Any) -> Any:
        """The answer to a message. Errors: `RefusalError`; a process that is gone or has no answer stays closed."""
        try:
            self.connection.send(message)
        except OSError:
            raise RefusalError(self._gone()) from None
        return self._answer()

    def close(self) -> None:
        """End the process: by itself where it only waits, by force where it is at work."""
        self.connection.close()
        self.process.join(GRACE)
        self.process.kill()
        self.process.join()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> Any:
        if not self.connection.poll(self.patience):
            self.close()
            raise RefusalError(f"gave no answer within {self.patience:.0f} s")
        try:
            good, answer = self.connection.recv()
        except (EOFError, OSError):
            raise RefusalError(self._gone()) from None
        if not good:
            raise RefusalError(answer)
        return answer

    def _gone(self) -> str:
        self.process.join()
        code = self.process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return f"its process ended {how}"


def reason(error: BaseException) -> str:
    """An error in one line, without the places of files on this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = without_places(lines[0] if lines else "")[:160]
    kind = "" if isinstance(error, AddnormError) else type(error).__name__
    return ": ".join(part for part in (kind, text) if part)


def _serve(connection: Connection, threads: int, make: Callable[..., Handler], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Before anything that computes is imported.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    with contextlib.suppress(EOFError, OSError):  # nobody is listening any more
        handler = _tried(connection, lambda: make(*args), lambda made: None)
        while handler is not None:
            message = connection.recv()
            _tried(connection, lambda message=message: handler(message), lambda answer: answer)  # type: ignore[misc]


def _end_with_parent() -> None:
    """Not even a process at work outlives the one that started it, however that ended."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _tried(connection: Connection, do: Callable[[], Any], shown: Callable[[Any], Any]) -> Any:
    try:
        done = do()
    except Exception as error:
        connection.send((False, reason(error)))
        return None
    connection.send((True, shown(done)))
    return done
