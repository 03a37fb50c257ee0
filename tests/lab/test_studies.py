"""The studies: what their rows are, what they refuse, and that a run does not depend on how it is run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import addnorm
from addnorm import AddnormError
from addnorm.lab import tasks
from addnorm.lab import train as training
from addnorm.lab.ablate import ablate, spearman
from addnorm.lab.exact import with_units
from addnorm.lab.fresh import fresh, random_tokens, streams, transplant
from addnorm.lab.gradients import gradients
from addnorm.lab.position import probe
from addnorm.lab.predict import cosines, diagram, kernel, predict, score_spread, squashed_square
from addnorm.lab.signal import effective_rank, residue, signal, take_parts, token_cosine
from addnorm.lab.update import change_of, deepnet_bound, update
from addnorm.lab.variants import VARIANTS, build

SMALL: dict[str, Any] = {"width": 16, "heads": 2}
TEXTS = [
    "A cat sleeps on the sofa.",
    "The kitten naps on a couch.",
    "Stock markets fell today.",
    "How to bake bread?",
]


# --- every variant goes through every study -----------------------------------------------------------


@pytest.mark.parametrize("study", [gradients, signal, update])
def test_a_study_takes_every_variant(study: Any) -> None:
    found = study(tuple(VARIANTS), (2,), seeds=1, length=6, vocabulary=40, **SMALL)
    assert set(found.values("variant")) == set(VARIANTS)
    column = {gradients: "gradient", signal: "cosine", update: "change"}[study]
    assert all(math.isfinite(value) for value in found.values(column))


def test_the_same_seed_gives_the_same_rows() -> None:
    first, again, other = (
        signal(("pre-norm",), (2,), seeds=seeds, length=6, vocabulary=40, **SMALL) for seeds in (1, 1, 2)
    )
    assert first.rows == again.rows
    assert other.where(seed=0).rows == first.rows
    assert other.where(seed=1).values("norm") != first.values("norm")


def test_fresh_weights_leave_the_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    fresh(build("pre-norm", 1, **SMALL), 0)
    assert torch.equal(torch.rand(1), expected)


# --- gradients ----------------------------------------------------------------------------------------


def test_gradients_are_those_of_autograd() -> None:
    found = gradients(("post-norm",), (2,), seeds=1, texts=2, length=5, vocabulary=40, outputs=7, **SMALL)
    assert [row["layer"] for row in found.where(where="stream").rows] == [0, 1, 2]
    assert {row["where"] for row in found.rows} == {"stream", "query", "key", "value", "output", "up", "down"}
    encoder = fresh(build("post-norm", 2, vocabulary=40, outputs=7, **SMALL), 0)
    batch = random_tokens(2, 5, 40, 0)
    logits = encoder.read(encoder(batch), batch)
    assert logits is not None
    torch.manual_seed(1)
    targets = torch.randint(7, (10,))
    torch.nn.functional.cross_entropy(logits, targets).backward()
    expected = float(encoder.blocks[1].feedforward.sublayer.down.weight.grad.norm())
    assert found.where(where="down", layer=2).values("gradient")[0] == pytest.approx(expected)


# --- signal -------------------------------------------------------------------------------------------


def test_measures_of_tokens() -> None:
    same, apart = torch.ones(5, 8), torch.eye(8)[:5]
    assert (token_cosine(same), token_cosine(apart)) == pytest.approx((1, 0))
    assert (effective_rank(same.double()), effective_rank(apart.double())) == pytest.approx((1, 5), abs=1e-6)
    assert residue(same) == pytest.approx(0, abs=1e-6)
    assert residue(apart) > 0.5


def test_taking_parts_keeps_the_norms() -> None:
    config = build("post-norm", 2, **SMALL)
    alone = take_parts(config, residual=False, feedforward=False)
    assert [block.attention.alpha for block in alone.blocks] == [0, 0]
    assert all(block.attention.norm_out for block in alone.blocks)
    encoder = fresh(config, 0)
    batch = random_tokens(1, 4, 1000, 0)
    assert torch.equal(transplant(encoder, take_parts(config, True, True))(batch), encoder(batch))
    with pytest.raises(AddnormError, match="another wiring"):
        take_parts(build("b2t", 2, **SMALL), residual=False, feedforward=True)


def test_texts_of_one_token_have_no_cosine() -> None:
    with pytest.raises(AddnormError, match="at least 2 tokens"):
        signal(("pre-norm",), (1,), seeds=1, length=1, **SMALL)


# --- update -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["noise", "sgd", "adam"])
def test_weights_are_put_back(how: Any) -> None:
    encoder = fresh(build("pre-norm", 2, vocabulary=40, outputs=7, **SMALL), 0, torch.float64)
    batch = random_tokens(1, 5, 40, 0)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    change, steps = change_of(encoder, batch, how, "all", 1e-3, 0)
    assert change > 0
    assert len(steps) == 4
    assert min(steps) > 0
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_a_change_is_in_proportion_to_the_noise() -> None:
    one, two = (
        update(("pre-norm",), (2,), seeds=1, size_of_step=amount, **SMALL).values("change")[0]
        for amount in (1e-4, 2e-4)
    )
    assert two / one == pytest.approx(4, rel=1e-2)


# --- predict ------------------------------------------------------------------------------------------


def test_the_kernel_of_relu_is_that_of_quadrature() -> None:
    """ReLU in closed form against the other activations' way, on a smooth one with a known value."""
    assert kernel("relu", 2.0, 1.0) == pytest.approx(1.0)
    assert kernel("relu", 2.0, 0.0) == pytest.approx(1 / math.pi)
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, 400_000, generator=generator, dtype=torch.float64)
    v = 0.6 * u + 0.8 * v
    for activation, function in (("gelu", torch.nn.functional.gelu), ("tanh", torch.tanh), ("relu", torch.relu)):
        assert kernel(activation, 1.0, 0.6) == pytest.approx(float((function(u) * function(v)).mean()), rel=0.02)
    assert squashed_square("derf", 0.5, 3.0) == pytest.approx(
        float(torch.erf(0.5 * 3**0.5 * u).square().mean()), rel=0.02
    )


def test_the_spread_of_scores_is_that_of_the_init() -> None:
    config = build("post-norm", 1, width=128, heads=2)
    encoder = fresh(config, 0)
    found: list[torch.Tensor] = []
    encoder.blocks[0].attention.sublayer.scores.register_forward_hook(lambda *call: found.append(call[-1]))
    with torch.no_grad():
        encoder(random_tokens(1, 128, 1000, 0), "eager")
    assert float(found[0].std()) == pytest.approx(score_spread(config, 128) * math.sqrt(math.log(128)), rel=0.1)


def test_the_recursion_refuses_what_it_is_not_about() -> None:
    for name in ("pre-norm", "b2t", "rezero"):
        with pytest.raises(AddnormError, match="post-norm stack"):
            list(cosines(build(name, 2, **SMALL), 64))
    unscaled = with_units(build("post-norm", 2, **SMALL), beta=0.0)
    with pytest.raises(AddnormError, match="plain attention"):
        list(cosines(unscaled, 64))
    with pytest.raises(AddnormError, match="give length or beta"):
        list(cosines(build("post-norm", 2, **SMALL), None))


def test_the_recursion_ends_where_the_paper_says() -> None:
    plain = list(cosines(build("post-norm", 48, **SMALL), None, 0.05, beta=0.5))
    assert plain == sorted(plain)
    assert plain[-1] > 0.999
    deepnorm = list(cosines(build("deepnorm", 48, **SMALL), None, 0.05, beta=0.5))
    assert deepnorm[-1] < 0.2


def test_the_diagram_has_its_three_phases() -> None:
    found = diagram(betas=(0.5, 3.0), skips=(0.0, 4.0), depth=12)
    phases = {(row["beta"], row["skip"]): row["phase"] for row in found.rows}
    assert phases[0.5, 0.0] == "rank collapse"
    assert phases[0.5, 4.0] == "trainable"
    assert phases[3.0, 4.0] == "entropy collapse"


def test_predict_has_a_row_a_layer() -> None:
    found = predict((0.5,), depth=3, seeds=2, length=16, width=32, vocabulary=40)
    assert [row["layer"] for row in found.where(seed=1).rows] == [0, 1, 2, 3]
    assert found.rows[0]["measured"] == found.rows[0]["predicted"]


def test_deepnets_bound_of_equal_steps() -> None:
    config = build("deepnorm", 8, **SMALL)
    alpha, beta = 16**0.25, 64**-0.25
    assert deepnet_bound(config, [0.5] * 16) == pytest.approx(16 * 0.5 * math.sqrt(2) * beta / alpha)


# --- position -----------------------------------------------------------------------------------------


def test_a_probe_reads_what_is_linear_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (300,), generator=generator)
    x = torch.randn(4, 12, generator=generator)[labels] + 0.01 * torch.randn(300, 12, generator=generator)
    assert probe(x[:200], labels[:200], x[200:], labels[200:]) == 1
    noise = torch.randn(300, 12, generator=generator)
    assert probe(noise[:200], labels[:200], noise[200:], labels[200:]) < 0.5


# --- training -----------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"depths": (1,), "steps": 4, "every": 2, "width": 16, "heads": 2}


def test_curves_do_not_depend_on_the_number_of_processes() -> None:
    one, two = (training.train(("post-norm", "rezero"), processes=count, **QUICK) for count in (1, 2))
    assert one.rows == two.rows
    assert [row["step"] for row in one.where(variant="rezero").rows] == [2, 4]
    assert one.rows[0]["chance"] == pytest.approx(math.log(63))


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.jsonl"
    whole = training.train(("post-norm", "rezero"), processes=1, file=file, **QUICK)
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    file.write_text(lines[0] + "\n" + lines[1][:40])  # cut off while it was written
    done: list[str] = []
    train_one = training.train_one
    monkeypatch.setattr(training, "train_one", lambda run, text: done.append(run.variant) or train_one(run, text))
    again = training.train(("post-norm", "rezero"), processes=1, file=file, **QUICK)
    assert done == ["rezero"]
    assert again.rows == whole.rows
    file.write_text("something else\n" + lines[0] + "\n")
    with pytest.raises(AddnormError, match="line 1: not a run"):
        training.train(("post-norm",), processes=1, file=file, **QUICK)


def test_a_loss_that_is_not_finite_is_a_result(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    settings = {**QUICK, "steps": 40, "every": 5}
    found = training.train(("none",), rates=(1e8,), processes=1, file=file, **settings)
    last = training.finals(found).rows[0]
    assert last["diverged"]
    assert last["step"] < 40
    assert not math.isfinite(last["loss"])
    assert json.loads(file.read_text())["losses"][-1] in ("nan", "inf")
    assert training.train(("none",), rates=(1e8,), processes=1, file=file, **settings).to_json() == found.to_json()


def test_hidden_letters_can_be_found_in_another_copy() -> None:
    task = tasks.masked_copy(letters=9, period=3, length=12, texts=5)
    examples = task.draw(torch.Generator().manual_seed(0))
    ids = examples.batch.ids.view(5, 4, 3)
    assert (ids == tasks.MASK).sum() == 15 == len(examples.targets)
    for text in range(5):
        shown = [copy for copy in ids[text] if not (copy == tasks.MASK).any()]
        assert len(shown) == 3
        assert all(torch.equal(copy, shown[0]) for copy in shown)
        assert torch.equal(examples.targets.view(5, 3)[text], shown[0])


def test_language_is_cut_to_the_frequent_tokens() -> None:
    ids = tuple([7] * 50 + [8] * 30 + [9] * 2) * 4
    task = tasks.masked_language(ids, kept=2, length=10, texts=3)
    assert task.vocabulary == 4
    examples = task.draw(torch.Generator().manual_seed(0))
    assert set(examples.batch.ids.tolist()) <= {0, 1, 2, 3}
    assert (examples.batch.ids == tasks.MASK).sum() == len(examples.targets) == 3 * 2
    shares = [50 / 82, 30 / 82, 2 / 82]
    assert task.chance == pytest.approx(-sum(p * math.log(p) for p in shares))


def test_docstrings_are_read_without_running_modules() -> None:
    found = list(tasks._documented("json"))
    assert found[0].startswith("JSON (JavaScript Object Notation)")


@pytest.mark.parametrize(
    ("settings", "reason"), [({"task": "translation"}, "masked copy or masked language"), ({"steps": 0}, "above 0")]
)
def test_what_cannot_be_trained_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(AddnormError, match=reason):
        training.train(("post-norm",), **settings)


# --- ablate -------------------------------------------------------------------------------------------


def test_ablation_switches_one_part_off_and_on_again(minilm: addnorm.Model) -> None:
    batch = minilm.batch(minilm.as_tokens(TEXTS))
    with torch.no_grad():
        before = minilm.encoder(batch)
    found = ablate(minilm, TEXTS, ("residual", "norm", "attention", "feedforward", "head", "block"), blocks=(0, 5))
    with torch.no_grad():
        assert torch.equal(minilm.encoder(batch), before)
    intact = found.rows[0]
    assert (intact["kind"], intact["rank"], intact["loss"]) == ("intact", pytest.approx(1), None)
    assert intact["vectors"] == pytest.approx(1)
    counts = {kind: len(found.where(kind=kind).rows) for kind in ("residual", "norm", "attention", "head", "block")}
    assert counts == {"residual": 4, "norm": 4, "attention": 2, "head": 24, "block": 2}
    for row in found.rows[1:]:
        assert row["vectors"] < 1 - 1e-6, row


def test_a_block_that_is_off_hands_on_its_stream(minilm: addnorm.Model) -> None:
    from addnorm.lab.ablate import parts_of

    part = next(part for part in parts_of(minilm.encoder) if part.where == "blocks.2")
    with part.off():
        seen = streams(minilm.encoder, minilm.batch(minilm.as_tokens(TEXTS)))
    assert torch.equal(seen[3], seen[2])
    assert not torch.equal(seen[2], seen[1])


def test_ablation_measures_masked_language_where_there_is_a_head(minilm: addnorm.Model) -> None:
    from addnorm.config import HeadConfig
    from addnorm.model import Model

    config = minilm.config.replace(
        head=HeadConfig(task="fill", outputs=minilm.config.embeddings.vocabulary, tied=True)
    )
    model = Model(config, encoder=transplant(minilm.encoder, config), tokenizer=minilm.tokenizer)
    rows = ablate(model, TEXTS, ("attention",), blocks=(0,)).rows
    assert all(row["loss"] > 0 for row in rows)
    assert len({row["loss"] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("texts", "kinds", "reason"), [(TEXTS[:2], ("block",), "at least 3"), (TEXTS, ("brain",), "'brain'")]
)
def test_ablation_refuses(minilm: addnorm.Model, texts: list[str], kinds: tuple[str, ...], reason: str) -> None:
    with pytest.raises(AddnormError, match=reason):
        ablate(minilm, texts, kinds)


def test_ranks_are_shared_by_equal_values() -> None:
    a = torch.tensor([1.0, 2.0, 2.0, 5.0])
    assert spearman(a, a.exp()) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    assert spearman(a, torch.ones(4)) == 0
    assert spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 2.0])) == pytest.approx(3**0.5 / 2)
