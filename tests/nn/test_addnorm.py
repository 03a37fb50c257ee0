"""The unit: x ← N_out(α·x + β·N_branch(F(N_in(x))))."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from addnorm.config import EncoderConfig, Learned, NormConfig, UnitConfig
from addnorm.model import Model
from addnorm.nn.addnorm import AddNorm, Scale
from tests.nn.drawn import CONFIGS, UNIT, batch_of, build, largest, model_of, perturb, small

SLOTS = ("norm_in", "norm_branch", "norm_out")
WIDTH = 7


def unit_of(config: UnitConfig) -> AddNorm:
    torch.manual_seed(0)
    unit = AddNorm(nn.Linear(WIDTH, WIDTH), config, WIDTH).double().eval()
    perturb(unit)
    return unit


def factor(scale: Scale) -> Any:
    return scale.weight if isinstance(scale.value, Learned) else scale.value


@settings(max_examples=60, deadline=None)
@given(st.builds(UnitConfig, **UNIT))
def test_the_unit_is_its_equation(config: UnitConfig) -> None:
    unit = unit_of(config)
    x = torch.randn(5, WIDTH, dtype=torch.float64)
    h = x if unit.norm_in is None else unit.norm_in(x)
    h = unit.sublayer(h)
    h = h if unit.norm_branch is None else unit.norm_branch(h)
    total = factor(unit.add.alpha) * x + factor(unit.branch) * h
    expected = total if unit.norm_out is None else unit.norm_out(total)
    assert largest(unit(x), expected) <= 1e-12


@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.integers(0, 99))
def test_add_is_exactly_alpha_x_plus_branch_at_every_unit(config: EncoderConfig, seed: int) -> None:
    encoder = build(config, seed)
    seen: list[tuple[AddNorm, Tensor, Tensor, Tensor]] = []

    def keep(unit: AddNorm) -> None:
        sums: dict[str, Tensor] = {}
        unit.branch.register_forward_hook(lambda module, inputs, output: sums.update(branch=output))
        unit.add.register_forward_hook(lambda module, inputs, output: sums.update(add=output))
        unit.register_forward_hook(
            lambda module, inputs, output: seen.append((unit, inputs[0], sums["branch"], sums["add"]))
        )

    for block in encoder.blocks:
        keep(block.attention)
        keep(block.feedforward)
    with torch.no_grad():
        encoder(batch_of(3, 1, 5, seed=seed))
        assert len(seen) == 2 * len(config.blocks)
        for unit, x, branch, add in seen:
            assert torch.equal(add, unit.add.alpha(x) + branch)
            assert torch.equal(add, factor(unit.add.alpha) * x + branch)


@settings(max_examples=30, deadline=None)
@given(st.builds(UnitConfig, **UNIT))
def test_an_absent_slot_is_no_module(config: UnitConfig) -> None:
    modules = dict(unit_of(config).named_modules())
    for slot in SLOTS:
        assert (slot in modules) == (getattr(config, slot) is not None)
    assert len(set(map(id, modules.values()))) == len(modules)


def test_no_encoder_shares_a_module_or_holds_an_identity() -> None:
    encoder = build(small(norm_out=NormConfig(), feedforward={"gated": True}))
    named = list(encoder.named_modules(remove_duplicate=False))
    assert len({id(module) for _, module in named}) == len(named)
    assert not any(isinstance(module, nn.Identity) for _, module in named)


@pytest.mark.parametrize("one", [1.0, 1])
def test_a_factor_of_1_multiplies_nothing(one: float) -> None:
    x = torch.randn(3, WIDTH)
    assert Scale(one, WIDTH)(x) is x
    assert not list(Scale(one, WIDTH).parameters())


@pytest.mark.parametrize(("shape", "size"), [("scalar", ()), ("vector", (WIDTH,))])
@pytest.mark.parametrize("init", [0.25, 0.0, 0, 1])
def test_a_learned_factor_starts_where_it_is_told(shape: Any, size: tuple[int, ...], init: float) -> None:
    scale = Scale(Learned(init=init, shape=shape), WIDTH)
    assert scale.weight.shape == size
    assert torch.equal(scale(torch.ones(2, WIDTH)), torch.full((2, WIDTH), float(init)))


@pytest.mark.parametrize("zero", [0, 0.0])
def test_alpha_0_leaves_only_the_branch(zero: float) -> None:
    trace = model_of(small(depth=1, alpha=zero)).trace([1, 2, 3])
    assert torch.equal(trace["blocks.0.attention.add"], trace["blocks.0.attention.branch"])
    assert torch.equal(trace["blocks.0"], trace["blocks.0.feedforward.branch"])


def test_rezero_is_the_identity_at_the_start() -> None:
    trace = Model(small(depth=3, beta=Learned(init=0.0))).trace([4, 3, 2, 1])
    assert trace["blocks.2.feedforward.down"].abs().max() > 0
    assert torch.equal(trace["blocks.2"], trace["embeddings"])
