"""What the papers say about Add & Norm, measured at small size; each test is one claim.

Seeds are fixed and means are over them. The margins are those of the claims' list, not fitted to what came out.
"""

import pytest

import addnorm
from addnorm.lab.gradients import gradients
from addnorm.lab.norms import norms
from addnorm.lab.position import position
from addnorm.lab.predict import growth, predict, squashed
from addnorm.lab.signal import closed_form, fresh_parts, parts
from addnorm.lab.table import Table, slope
from addnorm.lab.train import finals, train
from addnorm.lab.update import exponents, update

TEXTS = (
    "Permission is granted to use, copy, modify and distribute the work in any form.",
    "Residual connections are said to keep the tokens of one text apart from each other.",
    "The quick brown fox jumps over the lazy dog while the cat sleeps on the warm sofa.",
)


# --- gradients ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh_gradients() -> Table:
    return gradients(("post-norm", "pre-norm", "no-residual"), (6, 12, 24), seeds=2, width=96, outputs=500)


def last_gradient(table: Table, variant: str) -> float:
    """The exponent over depth of the last feed-forward's gradient."""
    last = tuple(row for row in table.where(variant=variant, where="down").rows if row["layer"] == row["depth"])
    means = Table("", last).mean("gradient", "depth")
    return slope(means.values("depth"), means.values("gradient"))


def test_the_last_gradient_is_flat_over_depth_after_post_norm(fresh_gradients: Table) -> None:
    """Xiong 2020, theorem 1: O(d √ln d)."""
    assert abs(last_gradient(fresh_gradients, "post-norm")) < 0.2


def test_the_last_gradient_falls_over_depth_with_pre_norm(fresh_gradients: Table) -> None:
    """Xiong 2020, theorem 1: O(d √(ln d / L)), an exponent of −½."""
    assert last_gradient(fresh_gradients, "pre-norm") < -0.3


@pytest.mark.parametrize("depth", [6, 12, 24])
def test_post_norm_encoders_do_not_vanish_at_the_start(fresh_gradients: Table, depth: int) -> None:
    """Liu 2020: only decoders do. An exponential loss would leave less than a tenth after 24 blocks."""
    stream = fresh_gradients.where(variant="post-norm", where="stream", depth=depth)
    before, after = (stream.where(layer=layer).mean("gradient").values("gradient")[0] for layer in (0, depth))
    assert before / after > 0.1


def test_without_residuals_queries_get_no_gradient(fresh_gradients: Table) -> None:
    """Noci 2022, theorem 3.2: where tokens have become equal, W_Q and W_K learn nothing."""

    def query(variant: str, layer: int) -> float:
        rows = fresh_gradients.where(variant=variant, where="query", depth=12, layer=layer)
        return float(rows.mean("gradient").values("gradient")[0])

    assert query("no-residual", 6) < 1e-4 * query("no-residual", 1)
    assert query("pre-norm", 6) > 1e-2 * query("pre-norm", 1)


# --- updates ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noise_exponents() -> dict[str, float]:
    return exponents(update(("post-norm", "pre-norm", "admin"), (6, 12, 24, 48), seeds=2))


def test_post_norm_moves_in_proportion_to_depth(noise_exponents: dict[str, float]) -> None:
    """Liu 2020, theorem 2: O(N)."""
    assert noise_exponents["post-norm"] > 0.9


@pytest.mark.parametrize("variant", ["pre-norm", "admin"])
def test_pre_norm_and_admin_move_with_the_logarithm(noise_exponents: dict[str, float], variant: str) -> None:
    """Liu 2020, corollary 2: O(log N)."""
    assert noise_exponents[variant] < 0.6


def test_deepnorms_step_does_not_depend_on_depth() -> None:
    """Wang 2022, theorem 4.2, matrices only; post-norm's grows with it."""
    found = exponents(update(("deepnorm", "post-norm"), (6, 12, 24, 50), seeds=1, how="sgd"))
    assert abs(found["deepnorm"]) < 0.2
    assert found["post-norm"] > 0.5


def test_deepnorms_step_does_once_biases_and_norms_move_too() -> None:
    """What the bound leaves out."""
    found = exponents(update(("deepnorm",), (6, 12, 24, 50), seeds=1, how="sgd", what="all"))
    assert found["deepnorm"] > 0.5


# --- signal -------------------------------------------------------------------------------------------


def test_without_residuals_tokens_become_equal_within_three_blocks() -> None:
    """Dong 2021, figure 2, at the start."""
    found = fresh_parts(seeds=2, depth=6, length=48)
    for name in ("attention", "attention + feed-forward"):
        assert all(residue < 0.01 for residue in found.where(parts=name, layer=3).values("residue")), name
    assert all(residue > 0.3 for residue in found.where(parts="full", layer=6).values("residue"))


def test_without_residuals_a_trained_model_collapses_too(minilm: addnorm.Model) -> None:
    """Dong 2021, figure 2, after training: later than at the start, but all the way."""
    found = parts(minilm.encoder, minilm.batch(minilm.as_tokens(list(TEXTS))))
    ends = {row["parts"]: row["residue"] for row in found.where(layer=6).rows}
    assert ends["attention"] < 0.01
    assert ends["attention + feed-forward"] < 0.01
    assert ends["full"] > 0.3


def test_likeness_of_tokens_has_its_closed_form() -> None:
    """Noci 2022: logit r grows by ln(1 + a²) a block, so a = 1/√N stops collapse."""
    found = closed_form(depth=8, seeds=3, width=384)
    for scale in dict.fromkeys(found.values("scale")):
        rows = found.where(scale=scale)
        for measured, predicted in zip(
            rows.mean("measured", "layer").values("measured"),
            rows.mean("predicted", "layer").values("predicted"),
            strict=True,
        ):
            assert abs(measured - predicted) < 0.05
        assert (rows.where(layer=8).mean("measured").values("measured")[0] > 0.5) == (scale == 1)


def test_residuals_keep_position_and_token_readable() -> None:
    """A linear probe finds both after 6 pre-norm blocks, and neither without residuals."""
    found = position(("pre-norm", "no-residual"), depth=6, seeds=1).where(layer=6)
    for row in found.rows:
        if row["variant"] == "pre-norm":
            assert row["accuracy"] > 0.9, row
        else:
            assert row["accuracy"] < 3 * row["chance"], row


# --- predicted before anything is trained -------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_the_recursion_predicts_token_cosine_over_24_blocks(beta: float) -> None:
    """Giorlandino & Goldt, ICLR 2026."""
    found = predict((beta,), depth=24, seeds=16, length=128, width=256)
    measured = found.mean("measured", "layer").values("measured")
    predicted = found.mean("predicted", "layer").values("predicted")
    assert max(abs(a - b) for a, b in zip(measured, predicted, strict=True)) < 0.03


@pytest.mark.parametrize("a", [0.5, 1.0])
def test_derf_grows_as_its_recursion_says(a: float) -> None:
    found = squashed(("derf",), (a,), depth=24, width=512, seeds=4)
    measured = found.mean("measured", "layer").values("measured")
    predicted = found.mean("predicted", "layer").values("predicted")
    assert max(abs(a / b - 1) for a, b in zip(measured, predicted, strict=True)) < 0.02


def test_pre_norm_streams_grow_between_xiongs_lines() -> None:
    """Xiong 2020, lemma 2; the lines are expectations, so the lower one is met up to 5 %."""
    for row in growth(depth=12, seeds=2).mean("measured", "layer", "lower", "upper").rows:
        assert 0.95 * row["lower"] <= row["measured"] <= 1.05 * row["upper"], row


# --- training and norms -------------------------------------------------------------------------------


def test_24_post_norm_blocks_do_not_learn_and_deepnorms_do() -> None:
    """Masked copy, Adam at 1e-3 without warm-up: chance is ln 63."""
    found = finals(train(("post-norm", "deepnorm"), (24,), steps=120, processes=1))
    loss = {row["variant"]: row["loss"] for row in found.rows}
    assert loss["post-norm"] > found.rows[0]["chance"] - 0.1
    assert loss["deepnorm"] < 0.3


def test_only_batch_norm_knows_the_company() -> None:
    found = norms(("layer", "rms", "batch"), depth=4, companies=(3,), seeds=1).where(layer=4)
    change = {row["norm"]: row["change"] for row in found.rows}
    assert change["layer"] < 1e-12
    assert change["rms"] < 1e-12
    assert change["batch"] > 0.1
