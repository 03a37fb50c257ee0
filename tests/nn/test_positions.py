"""Positions inside attention: rotations, terms of the scores, windows, counting around pads."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from addnorm import Batch
from addnorm.config import EmbeddingsConfig, PositionBiasConfig, RotaryConfig
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.positions import Rotary, Sinusoidal, alibi_slopes, build_position_bias
from tests.nn.drawn import largest, model_of, perturb, small


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(0, 5000), min_size=1, max_size=6))
def test_sinusoidal_positions_are_the_papers_formula(width: int, positions: list[int]) -> None:
    table = Sinusoidal(10_000, width)(torch.tensor(positions))
    assert table.shape == (len(positions), width)
    for row, position in zip(table, positions, strict=True):
        for i in range(width):
            angle = position / 10000 ** ((i - i % 2) / width)
            assert abs(float(row[i]) - (math.cos(angle) if i % 2 else math.sin(angle))) <= 1e-11


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "scaling"), [(None, 1.0), (4, 1.0), (2, 3.0)])
def test_rotations_multiply_complex_numbers(interleaved: bool, width: int | None, scaling: float) -> None:
    config = RotaryConfig(theta=100.0, width=width, interleaved=interleaved, scaling=scaling)
    torch.manual_seed(0)
    x, positions, turning = torch.randn(5, 2, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 7, 30]), width or 8
    turned = Rotary(config, 8)(x, positions)
    for n, position in enumerate(positions.tolist()):
        for head in range(2):
            row, result = x[n, head].tolist(), turned[n, head].tolist()
            for i in range(turning // 2):
                a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + turning // 2)
                angle = position / scaling * 100.0 ** (-2 * i / turning)
                expected = complex(row[a], row[b]) * complex(math.cos(angle), math.sin(angle))
                # The frequencies are float32 numbers.
                assert abs(complex(result[a], result[b]) - expected) <= 1e-5
            assert result[turning:] == row[turning:]


def test_rotated_products_depend_on_distance_alone() -> None:
    turn, positions = Rotary(RotaryConfig(), 8), torch.arange(20)
    query, key = torch.randn(2, 1, 1, 8, dtype=torch.float64).expand(2, 20, 1, 8)
    products = turn(query, positions)[:, 0] @ turn(key, positions)[:, 0].T
    for distance in range(-19, 20):
        along = products.diagonal(distance)
        assert largest(along, along[0].expand_as(along)) <= 1e-12
    assert products[0].std() > 1e-3


@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (16, 64)])
def test_buckets_equal_t5s(buckets: int, furthest: int) -> None:
    config = PositionBiasConfig(buckets=buckets, max_distance=furthest)
    bias = build_position_bias(config, 3)
    assert bias is not None
    perturb(bias)
    place = torch.arange(300)
    theirs = T5Attention._relative_position_bucket(place[None] - place[:, None], True, buckets, furthest)
    assert torch.equal(bias(300), bias.table.weight[theirs].permute(2, 0, 1))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-i for i in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (12, [*(2**-i for i in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_falls_with_distance(heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(heads) == pytest.approx(slopes, rel=1e-12)
    bias = build_position_bias(PositionBiasConfig(kind="alibi"), heads)
    assert bias is not None
    for h in range(heads):
        for q, k in ((0, 0), (0, 3), (4, 1)):
            assert float(bias(5)[h, q, k]) == pytest.approx(-slopes[h] * abs(q - k))


@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_window_hides_what_is_further(window: int) -> None:
    model = model_of(small(attention={"window": window}))
    trace, open_ = model.trace(list(range(8))), model_of(small()).trace(list(range(8)))
    weights, scores = trace["blocks.0.attention.weights"], open_["blocks.0.attention.scores"]
    for q in range(8):
        seen = [k for k in range(8) if abs(q - k) <= window]
        assert largest(weights[:, q, seen], scores[:, q, seen].softmax(-1)) <= 1e-12
        assert not weights[:, q, [k for k in range(8) if k not in seen]].any()


def test_a_window_as_wide_as_the_text_changes_nothing() -> None:
    narrow, full = (model_of(small(attention={"window": window})).trace(list(range(8))) for window in (7, None))
    assert torch.equal(narrow["blocks.1"], full["blocks.1"])


@pytest.mark.parametrize("changes", [{"scale": 0.7}, {"softcap": 2.0}, {"scale": 0.7, "softcap": 2.0}])
def test_scores_are_scaled_and_capped_as_told(changes: dict[str, Any]) -> None:
    trace = model_of(small(attention=changes)).trace([5, 6, 7, 8])
    query, key = (trace[f"blocks.0.attention.{name}"].view(4, 3, 4).transpose(0, 1) for name in ("query", "key"))
    scores = query @ key.mT * changes.get("scale", 4**-0.5)
    if cap := changes.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    assert largest(trace["blocks.0.attention.scores"], scores) <= 1e-12


def test_heads_that_share_a_key_are_as_if_it_were_repeated() -> None:
    shared, own = (model_of(small(attention={"heads": 4, "kv_heads": kv})) for kv in (2, 4))
    with torch.no_grad():
        for ours, theirs in zip(own.encoder.blocks, shared.encoder.blocks, strict=True):
            ours.load_state_dict(theirs.state_dict() | _repeated(theirs.state_dict()))
        own.encoder.embeddings.load_state_dict(shared.encoder.embeddings.state_dict())
    ids = [3, 1, 4, 1, 5]
    assert largest(shared.trace(ids)["blocks.1"], own.trace(ids)["blocks.1"]) <= 1e-12


def _repeated(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keys and values of two heads of width 4, each twice."""
    names = [f"attention.sublayer.{name}.{leaf}" for name in ("key", "value") for leaf in ("weight", "bias")]
    return {name: state[name].unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for name in names}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=4), st.integers(0, 2))
def test_positions_pass_over_pads(texts: list[list[int]], offset: int) -> None:
    config = EmbeddingsConfig(vocabulary=4, max_positions=9, position_offset=offset, pad=1)
    module = Embeddings(config, 2)
    seen: list[torch.Tensor] = []
    assert module.positions is not None
    module.positions.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    module(Batch.pack(texts))
    expected = []
    for ids in texts:
        count = offset
        for i in ids:
            expected.append(1 if i == 1 else count)
            count += i != 1
    assert seen[0].tolist() == expected
