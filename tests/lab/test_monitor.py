"""The monitor: it changes nothing, measures what autograd and the trace measure, and warns in time."""

import math
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import addnorm
from addnorm import AddnormError
from addnorm.batch import Batch
from addnorm.errors import Remark
from addnorm.lab.fresh import random_tokens
from addnorm.lab.monitor import Monitor, Rules
from addnorm.lab.variants import build
from addnorm.nn.encoder import Encoder
from tests.lab.watched import SMALL, hf_bert, hooks_of, loss_of, small, steps
from tests.twins import build_twin, float64_throughout, random_ids


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
