"""Every site of a block, computed again by equations.py from the weights."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import Model
from addnorm.config import EncoderConfig, Learned, NormConfig
from addnorm.trace.rebuild import check_block
from tests.nn.drawn import CONFIGS, ids_of, magnitude, model_of, small

NORMS = {"layer": NormConfig(), "rms": NormConfig(kind="rms"), "batch": NormConfig(kind="batch")}
PLACEMENTS: dict[str, Any] = {
    "post-norm": lambda norm: {"norm_out": norm},
    "pre-norm": lambda norm: {"norm_in": norm},
    "sandwich": lambda norm: {
        "norm_in": norm,
        "norm_branch": norm,
        "alpha": Learned(init=1.0),
        "beta": Learned(init=0.5, shape="vector"),
    },
    "no norm, constants": lambda norm: {"alpha": 0.0, "beta": 0.25},
}


def check(model: Model, ids: list[int], size: float = 1.0) -> None:
    trace = model.trace(ids)
    for i in range(len(model.config.blocks)):
        differences = check_block(model.encoder, trace, i)
        # Every site of the block is rebuilt, and the stream after it is the last of them.
        assert differences.keys() == {name for name in trace.sites if name.startswith(f"blocks.{i}.")}
        for site, difference in differences.items():
            assert difference <= 1e-12 * size, site
        assert torch.equal(trace[list(differences)[-1]], trace[f"blocks.{i}"])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_torch_block_equals_the_equations(placement: str, activation: str, gated: bool, norm: str) -> None:
    inner = {"activation": activation, "gated": gated}
    check(model_of(small(feedforward=inner, **PLACEMENTS[placement](NORMS[norm]))), ids_of(9)[0])


@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.integers(1, 20), st.integers(0, 99))
def test_any_block_equals_the_equations(config: EncoderConfig, length: int, seed: int) -> None:
    model, (ids,) = model_of(config, seed), ids_of(length, seed=seed)
    values = model.trace(ids)
    check(model, ids, magnitude(values[site] for site in values.sites))


@pytest.mark.parametrize("changes", [{"alpha": 0}, {"beta": 2}, {"alpha": 1, "beta": 1}])
def test_constants_may_be_whole_numbers(changes: dict[str, int]) -> None:
    check(model_of(small(norm_out=NORMS["layer"], **changes)), ids_of(4)[0])


def test_a_changed_weight_shows_where_it_acts() -> None:
    model = model_of(small(norm_out=NORMS["layer"]))
    trace = model.trace(ids_of(5)[0])
    model.encoder.blocks[1].attention.sublayer.output.weight.data += 0.1
    differences = check_block(model.encoder, trace, 1)
    first = next(site for site, difference in differences.items() if difference > 1e-12)
    assert first == "blocks.1.attention.output"
