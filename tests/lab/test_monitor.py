"""The monitor: it changes nothing, measures what autograd and the trace measure, and warns in time."""

import json
import math
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import addnorm
from addnorm import AddnormError
from addnorm.batch import Batch
from addnorm.errors import Remark
from addnorm.lab import tasks
from addnorm.lab import train as training
from addnorm.lab.fresh import fresh, random_tokens, start
from addnorm.lab.monitor import Monitor, Rules, read
from addnorm.lab.variants import build
from addnorm.nn.encoder import Encoder
from tests.twins import build_twin, float64_throughout, random_ids

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "vocabulary": 40, "outputs": 7}
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 40,
}


def small(name: str = "post-norm", depth: int = 2, dropout: float = 0.0, dtype: Any = torch.float32) -> Encoder:
    config = build(name, depth, **SMALL)
    if dropout:
        blocks = tuple(
            block.replace(
                attention=block.attention.replace(dropout=dropout, weights_dropout=dropout),
                feedforward=block.feedforward.replace(dropout=dropout),
            )
            for block in config.blocks
        )
        config = config.replace(blocks=blocks)
    return fresh(config, 0, dtype).train()


def loss_of(encoder: Encoder, batch: Batch) -> Tensor:
    logits = encoder.read(encoder(batch), batch)
    assert logits is not None
    return F.cross_entropy(logits, batch.ids % 7)


def steps(encoder: Encoder, optimiser: Any, monitor: Monitor | None, count: int, first: int = 0) -> list[Any]:
    records = []
    for i in range(first, first + count):
        loss = loss_of(encoder, random_tokens(3, 5, 40, i))
        loss.backward()
        optimiser.step()
        records.append(monitor.step(loss) if monitor else None)
        optimiser.zero_grad()
    return records


def hooks_of(module: nn.Module, *optimisers: Any) -> int:
    held = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
    held += [len(p._post_accumulate_grad_hooks or ()) for p in module.parameters()]
    held += [len(o._optimizer_step_pre_hooks) + len(o._optimizer_step_post_hooks) for o in optimisers]
    return sum(held)


def hf_bert(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(**(TINY | changes))
    config._attn_implementation = "eager"
    return transformers.BertForMaskedLM(config).train()


# --- it changes nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["post-norm", "pre-norm", "hyper-connections", "rezero"])
def test_training_is_the_same_to_the_bit(name: str) -> None:
    finals = []
    for watched in (False, True):
        torch.manual_seed(3)
        encoder = small(name, dropout=0.2)
        optimiser = AdamW(encoder.parameters(), lr=1e-3)
        monitor = Monitor(encoder, optimiser, every=2) if watched else None
        steps(encoder, optimiser, monitor, 5)
        finals.append([p.detach().clone() for p in encoder.parameters()] + [torch.rand(1)])
        if monitor:
            assert len(monitor.last["units"]) >= 5
            monitor.close()
    assert all(map(torch.equal, *finals))


def test_training_of_transformers_is_the_same_to_the_bit() -> None:
    finals = []
    for watched in (False, True):
        model = hf_bert()
        torch.manual_seed(3)
        optimiser = Adam(model.parameters(), lr=1e-3)
        monitor = Monitor(model, optimiser, every=1, entropy=True) if watched else None
        for _ in range(3):
            ids = torch.randint(40, (2, 6))
            mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
            model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
            optimiser.step()
            if monitor:
                monitor.step()
            optimiser.zero_grad()
        finals.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *finals))


def test_hooks_are_there_for_recorded_steps_only() -> None:
    encoder = small()
    optimiser = SGD(encoder.parameters(), lr=1e-2)
    with Monitor(encoder, optimiser, every=3, entropy=True) as monitor:
        for i in range(7):
            assert (hooks_of(encoder, optimiser) > 0) == (i % 3 == 0)
            assert encoder.kernel == ("eager" if i % 3 == 0 else "auto")
            assert (steps(encoder, optimiser, monitor, 1, i)[0] is None) == (i % 3 != 0)
    assert hooks_of(encoder, optimiser) == 0


def test_hooks_go_after_an_error() -> None:
    encoder = small()
    optimiser = SGD(encoder.parameters(), lr=1e-2)

    def fails() -> None:
        with Monitor(encoder, optimiser, entropy=True) as monitor:
            steps(encoder, optimiser, monitor, 100)
            assert hooks_of(encoder, optimiser) > 0
            encoder(Batch.pack([[99999]]))

    with pytest.raises(AddnormError, match="token id 99999"):
        fails()
    assert hooks_of(encoder, optimiser) == 0
    assert encoder.kernel == "auto"
    loss_of(encoder, random_tokens(1, 5, 40, 0)).backward()  # and nothing is left in the way


def test_a_copy_made_while_hooks_are_set_goes_its_own_way() -> None:
    encoder = small()
    optimiser = SGD(encoder.parameters(), lr=1e-2)
    with Monitor(encoder, optimiser) as monitor:
        copy = deepcopy(encoder)
        loss_of(copy, random_tokens(3, 5, 40, 1)).backward()
        alone = steps(encoder, optimiser, monitor, 1)[0]
    loss_of(copy, random_tokens(3, 5, 40, 1)).backward()
    other = small()
    stepper = SGD(other.parameters(), lr=1e-2)
    with Monitor(other, stepper) as monitor:
        assert steps(other, stepper, monitor, 1)[0]["units"] == alone["units"]


# --- what it measures ---------------------------------------------------------------------------------


def test_values_are_those_of_autograd_and_of_the_trace() -> None:
    encoder = small("pre-norm", dtype=torch.float64)
    batch = random_tokens(3, 5, 40, 0)
    unit = encoder.blocks[1].feedforward
    held: dict[str, Tensor] = {}
    handles = [
        unit.norm_in.register_forward_hook(lambda module, inputs, output: held.update(entering=inputs[0])),
        unit.add.register_forward_hook(lambda module, inputs, output: held.update(branch=inputs[1], after=output)),
    ]
    loss = loss_of(encoder, batch)
    held["after"].retain_grad()
    loss.backward()
    for handle in handles:
        handle.remove()
    gradients = [p.grad.clone() for p in unit.parameters()]
    before = [p.detach().clone() for p in unit.parameters()]
    encoder.zero_grad()
    optimiser = SGD(encoder.parameters(), lr=0.1)
    with Monitor(encoder, optimiser, entropy=True) as monitor:
        record = steps(encoder, optimiser, monitor, 1)[0]
    row = record["units"]["blocks.1.feedforward"]
    matrices = [(w, g) for w, g in zip(before, gradients, strict=True) if w.ndim == 2]
    together = {name: torch.cat([pair[i].flatten() for pair in matrices]) for i, name in enumerate("wg")}
    assert row["gradient"] == pytest.approx(float(torch.cat([g.flatten() for g in gradients]).norm()), rel=1e-9)
    assert row["stream_gradient"] == pytest.approx(float(held["after"].grad.norm()), rel=1e-9)
    assert row["update"] == pytest.approx(0.1 * float(together["g"].norm() / together["w"].norm()), rel=1e-9)
    x = held["after"] - held["branch"]
    assert row["branch"] == pytest.approx(float((held["branch"].norm() / x.norm()).detach()), rel=1e-9)
    assert row["norm_in"] == pytest.approx(float(held["entering"].detach().square().mean().sqrt()), rel=1e-9)
    assert record["loss"] == pytest.approx(float(loss.detach()))
    assert record["rate"] == 0.1
    assert list(record["units"])[:2] == ["embeddings", "blocks.0.attention"]


def test_entropy_is_that_of_the_weights() -> None:
    encoder = small(dtype=torch.float64)
    texts = [[3, 4, 5], [6, 7, 8, 9, 10], [11]]  # a text of one token has nothing to choose from
    trace = addnorm.Model(encoder.config, encoder=encoder).trace(texts, sites="blocks.1.attention.weights")
    weights = [trace[i]["blocks.1.attention.weights"] for i in range(2)]
    relative = torch.cat([torch.special.entr(w).sum(-1).mean(0) / math.log(w.shape[-1]) for w in weights])
    with Monitor(encoder, SGD(encoder.parameters(), lr=0.1), entropy=True) as monitor:
        loss_of(encoder, Batch.pack(texts)).backward()
        units = monitor.step()["units"]  # the optimiser made no step: no update
    assert units["blocks.1.attention"]["entropy"] == pytest.approx(float(relative.mean()), rel=1e-6)
    assert "update" not in units["blocks.1.attention"]


FAMILIES = ("bert", "roberta-prelayernorm", "modernbert", "albert", "t5", "deberta-v2", "mobilebert", "nomic_bert")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_transformers_gives_what_ours_gives(family: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path)
    ids = random_ids(9, twin.ours.config.embeddings.vocabulary)
    batch = Batch.pack([ids])
    found = []
    for model in (twin.ours.encoder, twin.hf):
        with float64_throughout(), Monitor(model, SGD(model.parameters(), lr=1e-4), entropy=True) as monitor:
            if isinstance(model, Encoder):
                stream = model(batch)
            else:
                stream = model(input_ids=torch.tensor([ids]), output_attentions=True).last_hidden_state[0]
            weight = torch.randn(stream.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            (stream * weight).sum().backward()
            monitor._optimisers[0].step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Remark)
                found.append(monitor.step()["units"])
    ours, theirs = found
    units = [name for name in ours if name.startswith("blocks.")]
    assert set(units) == {name for name in theirs if name.startswith("blocks.")}
    compared: set[str] = set()
    for name in units:
        for key in ours[name].keys() & theirs[name].keys():
            assert theirs[name][key] == pytest.approx(ours[name][key], rel=1e-6), (name, key)
            compared.add(key)
    assert {"gradient", "stream_gradient", "update", "branch", "entropy"} <= compared
    assert any("norm" in key for key in compared)


def test_padding_does_not_count() -> None:
    model = hf_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    texts = [[3, 4, 5, 6, 7], [8, 9]]
    found = []
    for width, padded in ((5, True), (None, False)):
        with Monitor(model, SGD(model.parameters(), lr=1e-3), entropy=True) as monitor:
            for rows in [texts] if padded else [[text] for text in texts]:
                ids = torch.tensor([row + [0] * ((width or len(row)) - len(row)) for row in rows])
                mask = torch.tensor([[1] * len(row) + [0] * (ids.shape[1] - len(row)) for row in rows])
                model(input_ids=ids, attention_mask=mask).logits[mask.bool()].sum().backward()
            found.append(monitor.step()["units"]["blocks.1.attention"])
        model.zero_grad()
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_accumulated_gradients_are_those_of_one_batch() -> None:
    texts = [random_tokens(1, 5, 40, i).ids.tolist() for i in range(4)]
    found = []
    for parts in ([texts], [texts[:2], texts[2:]], [[text] for text in texts]):
        encoder = small(dtype=torch.float64)
        optimiser = SGD(encoder.parameters(), lr=1e-2)
        with Monitor(encoder, optimiser) as monitor:
            for part in parts:
                (loss_of(encoder, Batch.pack(part)) / len(parts)).backward()
            optimiser.step()
            found.append(monitor.step()["units"])
    for name, row in found[0].items():
        assert found[1][name] == pytest.approx(row, rel=1e-9)
        assert found[2][name] == pytest.approx(row, rel=1e-9)


def test_validation_is_not_counted_and_clipping_comes_later() -> None:
    found = []
    for disturbed in (False, True):
        encoder = small(dtype=torch.float64)
        optimiser = SGD(encoder.parameters(), lr=1e-2)
        with Monitor(encoder, optimiser) as monitor:
            if disturbed:
                with torch.no_grad():
                    encoder(random_tokens(2, 9, 40, 7))
            loss_of(encoder, random_tokens(3, 5, 40, 0)).backward()
            if disturbed:
                nn.utils.clip_grad_norm_(encoder.parameters(), 1e-6)
            optimiser.step()
            found.append(monitor.step()["units"])
    for name, row in found[0].items():
        assert {key: v for key, v in row.items() if key != "update"} == pytest.approx(
            {key: v for key, v in found[1][name].items() if key != "update"}
        )
    assert found[1]["blocks.0.attention"]["update"] < 1e-5


def test_an_encoder_inside_another_module() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = small()
            self.out = nn.Linear(16, 3)

        def forward(self, batch: Batch) -> Tensor:
            return self.out(self.encoder(batch)[batch.offsets[:-1]])

    model = Classifier()
    optimisers = [SGD(model.encoder.parameters(), lr=1e-2), Adam(model.out.parameters(), lr=1e-3)]
    with Monitor(model, optimisers) as monitor:
        model(random_tokens(3, 5, 40, 0)).sum().backward()
        for optimiser in optimisers:
            optimiser.step()
        units = monitor.step()["units"]
    assert set(units["outside"]) == {"gradient", "update"}
    assert units["blocks.1.attention"]["update"] > 0


# --- warnings -----------------------------------------------------------------------------------------


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


# --- the files ----------------------------------------------------------------------------------------


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


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "settings", "reason"),
    [
        (lambda: nn.Linear(3, 3), {}, "contains no encoder"),
        (lambda: nn.ModuleList([small(), small()]), {}, "contains 2 encoders"),
        (lambda: addnorm.Model(build("post-norm", 1, **SMALL)), {}, "give a model's encoder"),
        (lambda: small(), {"every": 0}, "at least 1"),
        (lambda: hf_bert().to(torch.float32), {"entropy": True, "kernel": "sdpa"}, 'attn_implementation="eager"'),
        (lambda: transformers.GPT2Model(transformers.GPT2Config(n_layer=1, n_embd=12)), {}, "gpt2"),
    ],
)
def test_what_cannot_be_watched_is_refused(module: Any, settings: dict[str, Any], reason: str) -> None:
    model = module()
    if (kernel := settings.pop("kernel", None)) is not None:
        model.config._attn_implementation = kernel
    parameter = nn.Parameter(torch.zeros(1))
    with pytest.raises(AddnormError, match=reason):
        Monitor(model, SGD([parameter], lr=1e-2), **settings)


def test_rules_that_make_no_sense_are_refused() -> None:
    for settings in ({"gradient": 1.0}, {"update": 0.0}, {"least": 11}):
        with pytest.raises(AddnormError, match="factors above 1"):
            Rules(**settings)


def test_a_closed_monitor_is_closed() -> None:
    encoder = small()
    monitor = Monitor(encoder, SGD(encoder.parameters(), lr=1e-2))
    monitor.close()
    monitor.close()
    with pytest.raises(AddnormError, match="closed"):
        monitor.step()


# --- masked-language training, end to end -------------------------------------------------------------


def test_masked_language_is_learned_from_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    settings: dict[str, Any] = {"task": "masked language", "steps": 40, "every": 20, "width": 32, "heads": 2}
    found = training.train(("pre-norm",), (1,), (1e-2,), processes=1, file=file, **settings)
    assert [row["step"] for row in found.rows] == [20, 40]
    losses, chance = found.values("loss"), found.rows[0]["chance"]
    assert losses[-1] < min(losses[0], math.log(2002) - 1)  # far below guessing without having seen a text
    assert 5 < chance < 7
    assert not any(found.values("diverged"))
    assert training.train(("pre-norm",), (1,), (1e-2,), processes=1, file=file, **settings).rows == found.rows
