"""What a monitor warns of and writes."""

import json
import math
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adam

from addnorm import AddnormError
from addnorm.errors import Remark
from addnorm.lab import tasks
from addnorm.lab.fresh import random_tokens, start
from addnorm.lab.monitor import Monitor, Rules, read
from tests.lab.watched import hooks_of, loss_of, small, steps


def watched(name: str, ramp: float, optimiser: Any = Adam, rate: float = 1e-3, count: int = 40) -> Iterator[Any]:
    """Masked copy with a learning rate that grows by `ramp` a step: loss, and what the monitor said."""
    task, generator = tasks.masked_copy(texts=16), torch.Generator().manual_seed(0)
    sizes: dict[str, Any] = {"width": 32, "heads": 4, "positions": "learned", "max_positions": 64}
    sizes |= {"vocabulary": task.vocabulary, "outputs": task.vocabulary}
    encoder = start(name, 2, 0, task.draw(generator).batch, **sizes).train()
    stepper = optimiser(encoder.parameters(), lr=rate)
    with Monitor(encoder, stepper, every=1) as monitor:
        for _ in range(count):
            examples = task.draw(generator)
            logits = encoder.read(encoder(examples.batch), examples.batch)
            assert logits is not None
            loss = F.cross_entropy(logits[examples.where], examples.targets)
            loss.backward()
            stepper.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Remark)
                record = monitor.step(loss)
            yield float(loss.detach()), record["warnings"]
            stepper.zero_grad()
            stepper.param_groups[0]["lr"] *= ramp


@pytest.mark.parametrize(
    ("name", "optimiser", "rate"), [("post-norm", Adam, 2e-3), ("pre-norm", Adam, 2e-3), ("none", SGD, 1e-2)]
)
def test_it_warns_before_the_loss_goes_up(name: str, optimiser: Any, rate: float) -> None:
    losses, said = zip(*watched(name, 1.3, optimiser, rate, 30), strict=True)
    blown = next(i for i, loss in enumerate(losses) if not loss < 2 * losses[0])
    warned = next(i for i, messages in enumerate(said) if messages)
    assert warned < blown
    assert "about to blow up" in said[warned][0]


@pytest.mark.parametrize("name", ["post-norm", "pre-norm", "rezero"])
def test_it_is_quiet_where_training_goes_well(name: str) -> None:
    losses, said = zip(*watched(name, 1.0), strict=True)
    assert losses[-1] < losses[0]
    assert not any(said)


def judged(values: Sequence[float], key: str, rules: Rules | None = None) -> list[list[str]]:
    """What a monitor says of a series of one unit's values."""
    encoder = small(depth=1)
    said = []
    with Monitor(encoder, SGD(encoder.parameters(), lr=1e-2), rules=rules) as monitor:
        for i, value in enumerate(values):
            units = {"blocks.0.attention": {key: value}}
            record = {"step": i, "loss": None, "rate": None, "not_finite": None, "units": units}
            said.append(monitor._warnings(record))
            monitor.last = record
    return said


def test_the_rules_are_as_stated() -> None:
    assert not any(judged([1, 1, 1, 9.9, 1, 1], "gradient"))
    assert [bool(said) for said in judged([1, 1, 1, 10.1, 11, 1, 10.1], "gradient")] == [False] * 3 + [
        True,
        False,  # said already
        False,
        True,
    ]
    assert not any(judged([1, 1, 100], "gradient"))  # too few before
    assert any(judged([1, 1, 100], "gradient", Rules(least=2)))
    assert "‖∂L/∂x‖ of blocks.0.attention is 20 times its median" in judged([1, 1, 1, 20], "stream_gradient")[3][0]
    assert not any(judged([1, 1.5, 2, 2.5, 3, 3.5, 3.9], "norm_out"))
    assert "before blocks.0.attention.norm_out is 4.1 times its smallest" in judged([1, 2, 3, 4.1], "norm_out")[3][0]
    assert not any(judged([1.3**i for i in range(9)], "norm_out", Rules(window=4)))
    assert [bool(said) for said in judged([0.02, 0.09, 0.11, 0.12], "update")] == [False, False, True, False]
    assert not any(judged([1e-9, 1, 1, 1e9, 1e9], "branch"))
    assert any(judged([1, 1, 1, math.inf], "norm_out"))
    assert not any(judged([0, 0, 0, 1], "gradient"))  # nothing to compare with


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda encoder: encoder.blocks[1].feedforward.sublayer.down.weight.data[0].fill_(math.nan), "weights"),
        (lambda encoder: encoder.blocks[1].feedforward.sublayer.up.weight.data.fill_(3e38), "feedforward.up"),
        (lambda encoder: encoder.embeddings.tokens.weight.data.fill_(3e38), "embeddings.sum"),
    ],
)
def test_what_is_not_finite_is_named_where_it_began(spoil: Any, where: str, tmp_path: Path) -> None:
    encoder = small()
    spoil(encoder)
    optimiser = SGD(encoder.parameters(), lr=1e-2)
    with Monitor(encoder, optimiser, every=1, file=tmp_path / "run.jsonl") as monitor:
        with pytest.warns(Remark, match=rf"step 0: not finite, first at .*{where}"):
            steps(encoder, optimiser, monitor, 1)
        assert not any("not finite" in text for text in steps(encoder, optimiser, monitor, 1, 1)[0]["warnings"])
    json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0], parse_constant=pytest.fail)


def test_a_loss_and_a_gradient_that_are_not_finite() -> None:
    encoder = small()
    optimiser = SGD(encoder.parameters(), lr=1e-2)
    with Monitor(encoder, optimiser, every=1) as monitor:
        loss_of(encoder, random_tokens(3, 5, 40, 0)).backward()
        with pytest.warns(Remark, match="first at the loss"):
            monitor.step(math.inf)
    with Monitor(encoder, optimiser, every=1) as monitor:
        (math.inf * loss_of(encoder, random_tokens(3, 5, 40, 0))).backward()
        with pytest.warns(Remark, match="first at the gradient of head"):
            monitor.step(1.0)


def test_each_record_is_a_line_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "run.jsonl"
    encoder = small()
    optimiser = Adam(encoder.parameters(), lr=1e-3)
    for first in (0, 4):
        with Monitor(encoder, optimiser, every=2, file=file, first_step=first) as monitor:
            steps(encoder, optimiser, monitor, 4, first)
            assert json.loads(file.read_text().splitlines()[-1])["step"] == first + 2  # written while it runs
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 2, 4, 6]
    table = read(file)
    row = table.where(step=6, unit="blocks.1.attention").rows[0]
    assert row["gradient"] == records[-1]["units"]["blocks.1.attention"]["gradient"]
    assert row["loss"] == records[-1]["loss"]


def test_a_line_that_was_cut_off_goes(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    encoder = small()
    optimiser = Adam(encoder.parameters(), lr=1e-3)
    with Monitor(encoder, optimiser, every=1, file=file) as monitor:
        steps(encoder, optimiser, monitor, 2)
    whole = file.read_text()
    file.write_text(whole + whole[:50])
    with Monitor(encoder, optimiser, every=1, file=file, first_step=2) as monitor:
        steps(encoder, optimiser, monitor, 1, 2)
    assert file.read_text().startswith(whole)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.parametrize("held", ["my notes\n", "my notes", '{"a": 1}\n{"a": 2}\n', '{"a": 1}'])
def test_another_file_is_left_alone(held: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(held)
    encoder = small()
    with pytest.raises(AddnormError, match="something else than a monitor's records"):
        Monitor(encoder, SGD(encoder.parameters(), lr=1e-2), file=file)
    assert file.read_text() == held
    assert hooks_of(encoder) == 0
    with pytest.raises(AddnormError, match="line 1: not a record"):
        read(file)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    encoder = small()
    optimiser = SGD(encoder.parameters(), lr=1e-2)
    with pytest.raises(AddnormError, match="cannot be written"):
        Monitor(encoder, optimiser, file=tmp_path)
    with pytest.raises(AddnormError, match="no file"):
        read(tmp_path / "none.jsonl")
    file = tmp_path / "run.jsonl"
    with Monitor(encoder, optimiser, every=1, file=file) as monitor:
        file.unlink()
        file.mkdir()  # as when a disk is lost while training runs
        with pytest.warns(Remark, match="goes on without it"):
            steps(encoder, optimiser, monitor, 1)
        assert steps(encoder, optimiser, monitor, 1, 1)[0]["step"] == 1


def test_tensorboard_is_asked_for_and_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    encoder = small()
    with pytest.warns(Remark, match="pip install tensorboard"):
        Monitor(encoder, SGD(encoder.parameters(), lr=1e-2), tensorboard=tmp_path).close()


def test_tensorboard_gets_every_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            calls.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def flush(self) -> None:
            calls.append("flush")

        def close(self) -> None:
            calls.append("close")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    encoder = small()
    optimiser = SGD(encoder.parameters(), lr=1e-2)
    with Monitor(encoder, optimiser, tensorboard=tmp_path) as monitor:
        record = steps(encoder, optimiser, monitor, 1)[0]
    assert (calls[0], calls[-2:]) == (str(tmp_path), ["flush", "close"])
    units = record["units"]
    expected = {f"{key}/{unit}": value for unit, columns in units.items() for key, value in columns.items()}
    assert {call[0]: call[1] for call in calls[1:-2]} == expected | {"loss": record["loss"], "rate": 0.01}
