"""Configs: what they read, refuse, count and stay."""

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import AddnormError, EncoderConfig
from addnorm.config import PRESETS, AttentionConfig, EmbeddingsConfig, FeedForwardConfig, Learned, NormConfig, Part
from addnorm.nn.encoder import Encoder, named_parts
from tests.nn.drawn import CONFIGS, SLOTS, small

SCALED = small(norm_in=NormConfig(), beta=Learned(init=0.1))


@settings(max_examples=50, deadline=None)
@given(CONFIGS)
def test_dict_and_json_give_the_same_config(config: EncoderConfig) -> None:
    assert EncoderConfig.from_dict(config.to_dict()) == config
    assert EncoderConfig.from_json(config.to_json()) == config
    assert hash(EncoderConfig.from_json(config.to_json())) == hash(config)


@settings(max_examples=20, deadline=None)
@given(CONFIGS, CONFIGS)
def test_configs_are_equal_when_their_data_are(one: EncoderConfig, other: EncoderConfig) -> None:
    assert (one == other) == (one.to_dict() == other.to_dict())


def place_of(path: str) -> tuple[dict[str, Any], Any, Any]:
    """The data of a config, and in it the place that holds the end of a path, and the key there."""
    data = json.loads(SCALED.to_json())
    *parents, leaf = (int(step) if step.isdecimal() else step for step in path.split("."))
    place = data
    for step in parents:
        place = place[step]
    return data, place, leaf


def changed(path: str, value: Any) -> dict[str, Any]:
    data, place, leaf = place_of(path)
    place[leaf] = value
    return data


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("colour", "colour"),
        ("embeddings.colour", "embeddings.colour"),
        ("init.colour", "init.colour"),
        ("blocks.1.colour", "blocks[1].colour"),
        ("blocks.0.attention.colour", "blocks[0].attention.colour"),
        ("blocks.1.feedforward.norm_in.colour", "blocks[1].feedforward.norm_in.colour"),
        ("blocks.1.feedforward.beta.colour", "blocks[1].feedforward.beta.colour"),
    ],
)
def test_an_unknown_key_is_refused_at_any_depth(path: str, named: str) -> None:
    with pytest.raises(AddnormError) as caught:
        EncoderConfig.from_dict(changed(path, 1))
    assert f"unknown key '{named}'" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("width", "10", "expected int"),
        ("width", 10.0, "expected int"),
        ("width", True, "expected int"),
        ("width", None, "expected int"),
        ("pooler", 1, "expected bool"),
        ("blocks", 3, "expected tuple"),
        ("blocks", {}, "expected tuple"),
        ("blocks.1", 3, "expected BlockConfig"),
        ("embeddings", None, "expected EmbeddingsConfig"),
        ("embeddings.positions", "rotary", "expected 'learned' | 'sinusoidal'"),
        ("embeddings.scale", "big", "expected float"),
        ("blocks.0.attention.norm_in", "layer", "expected NormConfig"),
        ("blocks.0.attention.norm_in.eps", "tiny", "expected float"),
        ("blocks.0.attention.norm_in.kind", ["layer"], "expected 'layer' | 'rms' | 'batch'"),
        ("blocks.0.attention.alpha", True, "expected float"),
        ("blocks.0.attention.alpha", "1", "expected float"),
        ("blocks.1.feedforward.activation", 7, "expected 'relu' | 'gelu'"),
    ],
)
def test_a_value_of_another_type_is_refused(path: str, value: object, expected: str) -> None:
    with pytest.raises(AddnormError) as caught:
        EncoderConfig.from_dict(changed(path, value))
    name = re.sub(r"\.(\d+)", r"[\1]", path)
    assert str(caught.value).startswith(f"config: '{name}' is")
    assert expected in str(caught.value)
    assert repr(value) in str(caught.value)


def test_whole_numbers_are_read_where_a_fraction_may_stand() -> None:
    alpha = EncoderConfig.from_dict(changed("blocks.0.attention.alpha", 2)).blocks[0].attention.alpha
    assert (alpha, type(alpha)) == (2.0, float)


@pytest.mark.parametrize("path", ["width", "embeddings.vocabulary", "blocks.0.attention.heads", "blocks.1.attention"])
def test_a_missing_key_is_named(path: str) -> None:
    data, place, leaf = place_of(path)
    del place[leaf]
    with pytest.raises(AddnormError, match=rf"{leaf}' is missing; \w+Config requires it"):
        EncoderConfig.from_dict(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"width"', '["width"]'])
def test_json_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(AddnormError, match="config"):
        EncoderConfig.from_json(text)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AttentionConfig(heads=0, head_width=4), "heads"),
        (lambda: AttentionConfig(heads=2, head_width=-4), "head_width"),
        (lambda: AttentionConfig(heads=2, head_width=4, dropout=1.0), "dropout 1.0"),
        (lambda: AttentionConfig(heads=2, head_width=4, weights_dropout=float("nan")), "weights_dropout nan"),
        (lambda: FeedForwardConfig(width=0), "feed-forward width 0"),
        (lambda: FeedForwardConfig(width=2, dropout=-0.1), "dropout -0.1"),
        (lambda: EmbeddingsConfig(vocabulary=0, max_positions=8), "vocabulary 0"),
        (lambda: EmbeddingsConfig(vocabulary=8, max_positions=0), "max_positions 0"),
        (lambda: EmbeddingsConfig(vocabulary=8, max_positions=8, dropout=2.0), "dropout 2.0"),
        (lambda: SCALED.replace(width=0), "width 0"),
    ],
)
def test_impossible_numbers_are_refused(make: Any, named: str) -> None:
    with pytest.raises(AddnormError, match=named):
        make()


def test_configs_are_frozen() -> None:
    for config in (SCALED, SCALED.embeddings, SCALED.blocks[0].attention, SCALED.init):
        for field in dataclasses.fields(config):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(config, field.name, None)


# --- counting -----------------------------------------------------------------------------------------


def part_of(module: str) -> Part:
    first, last = module.partition(".")[0], module.rpartition(".")[2]
    if first == "wiring":
        return "wiring"
    if ".convolution." in module and "norm" not in last:
        return "convolution"
    if first in ("pooler", "head"):
        return "pooler" if first == "pooler" else "head"
    if "norm" in last or last in ("branch", "alpha"):
        return "norms"
    if first == "embeddings":
        return "embeddings"
    return "attention" if ".attention." in module or first in ("position_bias", "relative") else "feedforward"


def counted(encoder: Encoder) -> dict[Part, int]:
    counts: dict[Part, int] = dict.fromkeys(encoder.config.num_params_by_part(), 0)
    seen: set[int] = set()
    for name, module in named_parts(encoder).items():
        for parameter in module.parameters(recurse=False):
            counts[part_of(name)] += parameter.numel() * (id(parameter) not in seen)
            seen.add(id(parameter))
    return counts


@settings(max_examples=80, deadline=None)
@given(CONFIGS)
def test_parameters_are_counted_as_built(config: EncoderConfig) -> None:
    encoder = Encoder(config)
    assert config.num_params_by_part() == counted(encoder)
    assert config.num_params() == sum(parameter.numel() for parameter in encoder.parameters())
    for part, count in counted(encoder).items():
        assert config.num_params(part) == count


@settings(max_examples=40, deadline=None)
@given(SLOTS, st.integers(1, 50))
def test_an_absent_norm_costs_nothing(norm: NormConfig | None, width: int) -> None:
    unit = FeedForwardConfig(width=3, norm_out=norm)
    assert unit.num_slot_params(width) == (norm.num_params(width) if norm else 0)
    assert unit.norms == ({"norm_out": norm} if norm else {})


# --- presets ------------------------------------------------------------------------------------------


def test_transformer_base_has_the_sizes_of_the_paper() -> None:
    config = EncoderConfig.transformer_base()
    assert (len(config.blocks), config.width) == (6, 512)
    assert (config.embeddings.positions, config.embeddings.scale**2) == ("sinusoidal", pytest.approx(512))
    for block in config.blocks:
        assert (block.attention.heads, block.attention.head_width) == (8, 64)
        inner = block.feedforward
        assert (inner.width, inner.activation, inner.gated) == (2048, "relu", False)
        for unit in (block.attention, inner):
            assert set(unit.norms) == {"norm_out"}
            assert (unit.alpha, unit.beta, unit.dropout) == (1, 1, 0.1)
    assert config.num_params("attention") == 6 * 4 * 512 * 512
    assert config.num_params("feedforward") == 6 * (2 * 512 * 2048 + 2048 + 512)


def test_the_feed_forward_holds_two_thirds_of_the_blocks() -> None:
    config = EncoderConfig.transformer_base()
    feedforward = config.num_params("feedforward")
    assert feedforward / (feedforward + config.num_params("attention")) == pytest.approx(2 / 3, abs=1e-3)


def test_the_prenorm_sibling_has_as_many_feed_forward_parameters() -> None:
    base, sibling = (PRESETS[name]() for name in ("transformer-base", "transformer-base-prenorm"))
    biases = 6 * (2048 + 512)  # the sibling has none
    assert sibling.num_params("feedforward") == pytest.approx(base.num_params("feedforward") - biases, rel=1e-3)
    assert sibling.num_params("attention") == base.num_params("attention")
    assert sibling.norm is not None
    for block in sibling.blocks:
        assert set(block.attention.norms) == set(block.feedforward.norms) == {"norm_in"}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_take_vocabulary_and_positions(preset: str) -> None:
    config = PRESETS[preset](vocabulary=31, max_positions=9)
    assert (config.embeddings.vocabulary, config.embeddings.max_positions) == (31, 9)
    assert EncoderConfig.from_json(config.to_json()) == config
