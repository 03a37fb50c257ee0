"""`mixing`: the terms add up to what the model computed, and say what Kobayashi 2021 says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import addnorm
from addnorm import AddnormError
from addnorm.cli import app
from addnorm.config import EncoderConfig, Learned, NormConfig, RotaryConfig
from addnorm.lab.fresh import fresh
from addnorm.lab.mixing import (
    METHODS,
    check,
    decompose,
    errors_of,
    expansion,
    linear,
    mixing,
    norm_expansion,
    paragraphs,
    summary,
)
from addnorm.lab.table import Table
from addnorm.lab.variants import build
from addnorm.model import Model
from tests.twins import perturb

TEXT = "Return a shallow copy of the dictionary, or of any other mapping that was given."
# Measured once on other texts (VARIANTS.md, 2.2-K), means in per cent.
MEANS = {"Attn-W": 96.9, "Attn-N": 90.1, "AttnRes-W": 48.5, "AttnRes-N": 28.7, "AttnResLn-N": 25.1}
LAST = (24.7, 26.5, 25.9, 23.4, 21.9, 27.9)
EXPANSIONS = [0.676, 1.070, 1.265, 1.392, 1.161, 1.074]


@pytest.fixture(scope="module")
def found(minilm: addnorm.Model) -> Table:
    return mixing(minilm, paragraphs(8))


def test_minilm_keeps_most_of_a_token(found: Table) -> None:
    assert len(found.rows) == 6 * len(METHODS)
    means = {row["method"]: 100 * row["ratio"] for row in found.mean("ratio", "method").rows}
    assert means == pytest.approx(MEANS, abs=1.5)
    assert sorted(means, key=means.__getitem__, reverse=True) == list(METHODS)
    by_block = [100 * ratio for ratio in found.where(method="AttnResLn-N").values("ratio")]
    assert by_block == pytest.approx(LAST, abs=3)
    assert all(0 < row["least"] <= row["ratio"] <= row["most"] < 1 for row in found.rows)


def test_the_terms_of_a_trained_model_add_up(found: Table) -> None:
    errors = [error for error in found.values("error") if error is not None]
    assert len(errors) == 6 * 3
    assert max(errors) < 1e-4


def test_expansion_is_that_of_the_published_program(minilm: addnorm.Model) -> None:
    units = [block.attention for block in minilm.encoder.blocks]
    assert [round(expansion(unit, published=True), 3) for unit in units] == EXPANSIONS
    assert [expansion(unit) for unit in units] == pytest.approx(EXPANSIONS, abs=0.01)


def test_expansion_is_the_mean_square_of_singular_values(minilm: addnorm.Model, found: Table) -> None:
    unit = minilm.encoder.blocks[2].attention
    x = torch.randn(4000, 384, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = torch.ones(4000, 1, dtype=torch.float64)
    value, output = unit.sublayer.value, unit.sublayer.output
    with torch.no_grad():
        y = torch.nn.functional.linear(x, value.weight.double(), value.bias.double())
        y = torch.nn.functional.linear(y, output.weight.double(), output.bias.double())
    measured = float(torch.cat((y, one), 1).square().sum() / torch.cat((x, one), 1).square().sum()) ** 0.5
    assert expansion(unit) == pytest.approx(measured, rel=0.02)
    assert found.where(block=2, method="Attn-N").values("expansion") == [expansion(unit)]
    z = torch.randn(1, 384, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = torch.stack([linear(unit, row[None], z)[0] for row in torch.eye(384, dtype=torch.float64)])
    assert float(norm_expansion(unit, z)) == pytest.approx(float(matrix.norm()) / 384**0.5)


def changed(**slots: Any) -> EncoderConfig:
    config = build("post-norm", 2, width=16, heads=2, vocabulary=40)
    blocks = tuple(block.replace(attention=block.attention.replace(**slots)) for block in config.blocks)
    return config.replace(blocks=blocks)


@pytest.mark.parametrize(
    "config",
    [
        build("post-norm", 2, width=16, heads=2, vocabulary=40),
        build("deepnorm", 2, width=16, heads=2, vocabulary=40),
        build("admin", 2, width=16, heads=2, vocabulary=40),
        changed(norm_out=NormConfig(kind="rms")),
        changed(norm_out=NormConfig(kind="affine")),
        changed(beta=Learned(init=0.3, shape="vector"), output_bias=False, window=2),
    ],
    ids=["post-norm", "deepnorm", "admin", "rms", "affine", "scaled"],
)
def test_the_terms_add_up_exactly(config: EncoderConfig) -> None:
    encoder = fresh(config, 0, torch.float64)
    perturb(encoder)
    trace = Model(config, encoder=encoder).trace(list(range(3, 12)))
    for block in range(2):
        assert max(errors_of(encoder, trace, block).values()) < 1e-12


def test_a_token_alone_keeps_everything(minilm: addnorm.Model) -> None:
    for terms in decompose(minilm.encoder, minilm.trace([2023]), 1).values():
        assert terms.ratio.tolist() == [0]


def test_other_tokens_are_in_mix_and_nowhere_else() -> None:
    """Another second token changes the first one's mix alone, where weights are even and tokens are not mixed yet."""
    config = build("post-norm", 1, width=16, heads=2, vocabulary=40)
    encoder = fresh(config, 0, torch.float64)
    perturb(encoder)
    encoder.blocks[0].attention.sublayer.query.weight.data.zero_()
    encoder.blocks[0].attention.sublayer.query.bias.data.zero_()
    model = Model(config, encoder=encoder)
    one, other = (decompose(encoder, model.trace([3, second, 5]), 0)["AttnRes-N"] for second in (7, 8))
    assert torch.allclose(one.keep[0], other.keep[0], atol=1e-12)
    assert (one.mix[0] - other.mix[0]).norm() > 0.1


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: build("pre-norm", 2, width=16, heads=2), r"block 0 normalises before attention \(pre-norm\)"),
        (lambda: build("b2t", 2, width=16, heads=2), "wiring 'b2t'"),
        (lambda: build("rezero", 2, width=16, heads=2), "no norm after the residual sum"),
        (lambda: changed(kv_heads=1), "shares 1 heads of keys and values among 2"),
        (lambda: changed(norm_branch=NormConfig()), "normalises the branch"),
        (lambda: changed(norm_out=NormConfig(kind="dyt")), "kind 'dyt'"),
        (lambda: changed(mix_norm=NormConfig()), "changes values"),
        (lambda: changed(rotary=RotaryConfig(value=True)), "turns values"),
        (lambda: changed(value_residual=0.5), "first block's values"),
        (lambda: changed().replace(blocks=()), "no blocks"),
    ],
)
def test_what_it_is_not_about_is_refused(config: Callable[[], EncoderConfig], reason: str) -> None:
    with pytest.raises(AddnormError, match=reason):
        check(config())


def test_it_wants_texts(minilm: addnorm.Model) -> None:
    with pytest.raises(AddnormError, match="no texts"):
        mixing(minilm, [])


def test_paragraphs_are_of_one_size() -> None:
    found = paragraphs(8)
    assert len(found) == 8
    assert all(60 <= len(text.split()) <= 120 for text in found)


def test_the_summary_has_a_row_a_block_and_the_mean(found: Table) -> None:
    ratios, expansions = summary(found)
    assert ratios.columns == ["block", *METHODS]
    assert ratios.values("block") == [0, 1, 2, 3, 4, 5, "mean"]
    assert ratios.rows[-1]["Attn-N"] == pytest.approx(sum(ratios.values("Attn-N")[:6]) / 6)
    assert expansions.columns == ["block", "f", "norm"]


def test_the_command_shows_ratios(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(TEXT + "\n\nA cat sleeps on the sofa.\n", encoding="utf-8")
    shown = CliRunner().invoke(app, ["lab", "mixing", "--texts", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "AttnResLn-N" in shown.stdout
    assert "Expansion" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100
    listed = CliRunner().invoke(app, ["lab", "mixing", "--texts", str(file), "--csv", "-"])
    assert listed.stdout.splitlines()[0] == "block,method,ratio,least,most,error,expansion"
    lost = CliRunner().invoke(app, ["lab", "mixing", "--texts", str(tmp_path / "none.txt")])
    assert "no file" in str(lost.exception)
