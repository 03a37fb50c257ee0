"""A process of its own ends when it should, and what fails in it is one line."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from addnorm.bench.worker import RefusalError, Worker, reason
from addnorm.errors import AddnormError


def echo(*made: object) -> Callable[[object], object]:
    def answer(message: object) -> object:
        if message == "fail":
            raise ValueError("no\nyes")
        if message == "die":
            os._exit(4)
        if message == "sleep":
            time.sleep(60)
        return made, message, os.environ["OMP_NUM_THREADS"]

    return answer


def test_it_answers_goes_on_after_a_failure_and_ends() -> None:
    with Worker(echo, 1, threads=3) as worker:
        assert worker.ask("a") == ((1,), "a", "3")
        with pytest.raises(RefusalError, match=r"^ValueError: no$"):
            worker.ask("fail")
        assert worker.ask(2) == ((1,), 2, "3")
        process = worker.process
    assert not process.is_alive()
    assert process.exitcode == 0  # by itself
    assert not multiprocessing.active_children()


def test_a_process_that_is_gone_says_how_and_stays_so() -> None:
    with Worker(echo, threads=1) as worker:
        for _ in range(2):
            with pytest.raises(RefusalError, match="its process ended with status 4"):
                worker.ask("die")


def test_one_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addnorm.bench.worker.GRACE", 0.1)
    with Worker(echo, threads=1) as worker:
        worker.patience = 0.1
        with pytest.raises(RefusalError, match="gave no answer within 0 s"):
            worker.ask("sleep")
        assert not worker.process.is_alive()


def test_an_error_at_work_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addnorm.bench.worker.GRACE", 0.1)
    worker = Worker(echo, threads=1)

    def stopped() -> None:
        with worker:
            worker.connection.send("sleep")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not worker.process.is_alive()


ORPHAN = """
import os, sys
from addnorm.bench.worker import Worker
from tests.bench.test_worker import echo
if __name__ == "__main__":
    worker = Worker(echo, threads=1)
    worker.connection.send("sleep")
    print(worker.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_it_does_not_outlive_the_one_that_started_it(tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", env=environment)
    end = time.monotonic() + 20
    while alive := state(run.stdout.strip()):
        assert time.monotonic() < end, alive
        time.sleep(0.05)


def state(process: str) -> str:
    """What `ps` says of a process; nothing for one that is gone, or dead and not yet buried."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", process], capture_output=True, encoding="utf-8").stdout
    return "" if shown.startswith("Z") else shown


def test_reasons_are_one_line_without_places() -> None:
    assert reason(AddnormError("give at most 3\nor 4")) == "give at most 3"
    assert reason(OSError("no /home/someone/models/a.onnx there")) == "OSError: no …/a.onnx there"
    assert reason(ValueError("'/tmp/x/y z' and 3/4 of it")) == "ValueError: '…/y z' and 3/4 of it"
    assert reason(ValueError()) == "ValueError"
    assert len(reason(ValueError("a" * 500))) < 200
