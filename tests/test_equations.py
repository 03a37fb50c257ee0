"""The block in plain NumPy: its functions, and that PyTorch says the same."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import nn

from addnorm import Batch
from addnorm import equations as eq
from addnorm.config import AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig
from addnorm.nn.attention import Context
from addnorm.nn.encoder import Block
from addnorm.nn.kernels import KERNELS
from tests.nn.drawn import perturb

WIDTH, INNER, HEADS, LENGTH, EPS = 8, 32, 2, 4, 1e-6
SHAPES = {
    "WQ": (WIDTH, WIDTH),
    "WK": (WIDTH, WIDTH),
    "WV": (WIDTH, WIDTH),
    "WO": (WIDTH, WIDTH),
    "W1": (WIDTH, INNER),
    "W2": (INNER, WIDTH),
}

rows = arrays(np.float64, array_shapes(min_dims=2, max_dims=3, max_side=6), elements=st.floats(-1e3, 1e3))


def seed_42() -> tuple[dict[str, eq.Array], eq.Array]:
    """The weights and the input, in the order in which they are drawn."""
    np.random.seed(42)
    weights = {name: np.random.randn(*shape) * 0.1 for name, shape in SHAPES.items()}
    return weights, np.random.randn(LENGTH, WIDTH)


def numpy_block(weights: dict[str, eq.Array], x: eq.Array) -> eq.Steps:
    norm = partial(eq.layer_norm, gain=np.ones(WIDTH), bias=np.zeros(WIDTH), eps=EPS)
    projections = {name: weights[name] for name in ("WQ", "WK", "WV", "WO")}
    attention = partial(eq.multi_head_attention, **projections, heads=HEADS)
    feedforward = partial(
        eq.feed_forward,
        W1=weights["W1"],
        W2=weights["W2"],
        b1=np.zeros(INNER),
        b2=np.zeros(WIDTH),
        activation=eq.relu,
    )
    return eq.block(x, {"sublayer": attention, "norm_out": norm}, {"sublayer": feedforward, "norm_out": norm})


def torch_block(weights: dict[str, eq.Array]) -> Block:
    norm = NormConfig(eps=EPS)
    config = BlockConfig(
        attention=AttentionConfig(heads=HEADS, head_width=WIDTH // HEADS, norm_out=norm),
        feedforward=FeedForwardConfig(width=INNER, activation="relu", norm_out=norm),
    )
    block = Block(config, WIDTH).double().eval()
    attention, feedforward = block.attention.sublayer, block.feedforward.sublayer
    linears = {
        "WQ": attention.query,
        "WK": attention.key,
        "WV": attention.value,
        "WO": attention.output,
        "W1": feedforward.up,
        "W2": feedforward.down,
    }
    with torch.no_grad():
        for name, linear in linears.items():
            linear.weight.copy_(torch.from_numpy(weights[name].T))
            linear.bias.zero_()
    return block


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_block_of_seed_42_in_numpy_and_in_torch(kernel: str) -> None:
    weights, x = seed_42()
    ours = eq.result(numpy_block(weights, x))
    with torch.no_grad():
        context = Context(Batch.pack([[0] * LENGTH]), KERNELS[kernel], (None,))
        theirs = torch_block(weights)(torch.from_numpy(x), context)
    assert ours.shape == x.shape
    assert np.abs(ours - x).max() > 0.1
    assert np.abs(ours - theirs.numpy()).max() <= 1e-12


def layer_weights(layer: nn.TransformerEncoderLayer) -> tuple[dict[str, Any], dict[str, Any], list[eq.Function]]:
    """The arguments of our equations for one of PyTorch's own layers."""
    tensors = {name: tensor.detach().numpy() for name, tensor in layer.named_parameters()}
    WQ, WK, WV = np.split(tensors["self_attn.in_proj_weight"].T, 3, axis=1)
    bQ, bK, bV = np.split(tensors["self_attn.in_proj_bias"], 3)
    attention = {"WQ": WQ, "WK": WK, "WV": WV, "bQ": bQ, "bK": bK, "bV": bV}
    attention |= {"WO": tensors["self_attn.out_proj.weight"].T, "bO": tensors["self_attn.out_proj.bias"]}
    feedforward = {"W1": tensors["linear1.weight"].T, "b1": tensors["linear1.bias"]}
    feedforward |= {"W2": tensors["linear2.weight"].T, "b2": tensors["linear2.bias"]}
    norms: list[eq.Function] = [
        partial(eq.layer_norm, gain=tensors[f"norm{i}.weight"], bias=tensors[f"norm{i}.bias"], eps=EPS)
        for i in (1, 2)
    ]
    return attention, feedforward, norms


@pytest.mark.parametrize("slot", ["norm_in", "norm_out"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_block_equals_pytorchs_own_layer(slot: str, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH,
        HEADS,
        INNER,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=EPS,
        norm_first=slot == "norm_in",
        batch_first=True,
        dtype=torch.float64,
    )
    perturb(layer)
    attention, feedforward, norms = layer_weights(layer)
    x = np.random.default_rng(0).normal(size=(LENGTH, WIDTH))
    ours = eq.block(
        x,
        {"sublayer": partial(eq.multi_head_attention, **attention, heads=HEADS), slot: norms[0]},
        {
            "sublayer": partial(
                eq.feed_forward, **feedforward, activation={"relu": eq.relu, "gelu": eq.gelu}[activation]
            ),
            slot: norms[1],
        },
    )
    theirs = layer(torch.from_numpy(x)[None])[0].detach().numpy()
    assert np.abs(eq.result(ours) - theirs).max() <= 1e-12


def test_steps_come_in_the_order_of_the_sites() -> None:
    assert list(numpy_block(*seed_42())) == [
        *(f"attention.{name}" for name in ("query", "key", "value", "scores", "weights", "mix", "output")),
        *(f"attention.{name}" for name in ("branch", "add", "norm_out")),
        *(f"feedforward.{name}" for name in ("up", "activation", "down", "branch", "add", "norm_out")),
    ]


# --- functions of one row -----------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(rows)
def test_softmax_rows_sum_to_one(x: eq.Array) -> None:
    weights = eq.softmax(x)
    assert (weights >= 0).all()
    assert np.abs(weights.sum(-1) - 1).max() <= 1e-12
    assert np.abs(weights - eq.softmax(x + 500)).max() <= 1e-12


def test_softmax_survives_large_values() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        weights = eq.softmax(np.array([[1e300, 1e300, -1e3], [700.0, 710.0, 720.0]]))
    assert weights[0].tolist() == [0.5, 0.5, 0.0]
    assert weights[1].sum() == pytest.approx(1, abs=1e-12)
    assert weights[1].argmax() == 2


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 40))
def test_layer_norm_gives_mean_0_and_variance_1(seed: int, length: int, width: int) -> None:
    x = np.random.default_rng(seed).normal(3, 5, size=(length, width))
    normed = eq.layer_norm(x, gain=np.ones(width), bias=0.0, eps=0.0)
    assert np.abs(normed.mean(-1)).max() <= 1e-9
    assert np.abs(normed.var(-1) - 1).max() <= 1e-9


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 40))
def test_rms_norm_gives_mean_square_1(seed: int, length: int, width: int) -> None:
    x = np.random.default_rng(seed).normal(3, 5, size=(length, width))
    normed = eq.rms_norm(x, gain=np.ones(width), eps=0.0)
    assert np.abs((normed**2).mean(-1) - 1).max() <= 1e-9


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eq.relu, F.relu),
        (eq.gelu, F.gelu),
        (eq.gelu_tanh, partial(F.gelu, approximate="tanh")),
        (eq.silu, F.silu),
        (eq.softmax, partial(F.softmax, dim=-1)),
        (
            partial(eq.layer_norm, gain=np.ones(5), bias=0.0, eps=1e-3),
            partial(F.layer_norm, normalized_shape=[5], eps=1e-3),
        ),
        (partial(eq.rms_norm, gain=np.ones(5), eps=1e-3), partial(F.rms_norm, normalized_shape=[5], eps=1e-3)),
    ],
)
def test_functions_equal_pytorchs(ours: Any, theirs: Any) -> None:
    x = np.random.default_rng(0).normal(0, 3, size=(7, 5))
    assert np.abs(ours(x) - theirs(torch.from_numpy(x)).numpy()).max() <= 1e-14


@pytest.mark.parametrize("function", [eq.relu, eq.gelu, eq.gelu_tanh, eq.silu])
def test_activations_do_not_overflow(function: eq.Function) -> None:
    x = np.array([-1e9, -1000.0, -710.0, 0.0, 710.0, 1000.0, 1e9])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert function(x).tolist() == [0, 0, 0, 0, 710, 1000, 1e9]
