"""Blocks in a row: gradients, dropout, batch norm, names, fresh weights."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from addnorm import Batch
from addnorm.config import EncoderConfig, InitConfig, Learned, NormConfig, PositionBiasConfig
from addnorm.nn.encoder import Encoder, named_parts
from addnorm.nn.kernels import KERNELS
from tests.nn.drawn import batch_of, build, ids_of, largest, small

LAYER, RMS, BATCH = NormConfig(), NormConfig(kind="rms"), NormConfig(kind="batch")


# --- gradients ----------------------------------------------------------------------------------------

STACKS: dict[str, EncoderConfig] = {
    "post-norm": small(pooler=True, norm_out=LAYER),
    "pre-norm": small(pooler=True, norm_in=RMS, feedforward={"gated": True, "activation": "silu"}).replace(norm=RMS),
    "sandwich": small(
        norm_in=LAYER, norm_branch=RMS, alpha=Learned(init=1.0), beta=Learned(init=0.5, shape="vector")
    ),
}


def gradients(config: EncoderConfig) -> dict[str, torch.Tensor]:
    """Of a random linear function of the stream (and the pooler), for texts that use both token types."""
    encoder = build(config)
    texts = ids_of(5, 2, 7)
    batch = Batch.pack(texts, [[0, 1] * 2 + [1], [1, 0], [0] * 7])
    stream = encoder(batch)
    torch.manual_seed(1)
    loss = (stream * torch.randn_like(stream)).sum()
    if encoder.pooler is not None:
        loss = loss + (encoder.pooler(stream, batch) * torch.randn(3, config.width, dtype=stream.dtype)).sum()
    loss.backward()
    found = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    assert not [name for name, gradient in found.items() if gradient is None]
    return {name: gradient for name, gradient in found.items() if gradient is not None}


@pytest.mark.parametrize("stack", STACKS)
def test_gradients_reach_every_parameter(stack: str) -> None:
    for name, gradient in gradients(STACKS[stack]).items():
        assert torch.isfinite(gradient).all(), name
        if name.endswith("key.bias"):
            # It adds the same number to all scores of a row (query · bias), which softmax takes out again.
            assert gradient.abs().max() <= 1e-12, name
        elif not name.startswith("embeddings."):
            assert (gradient != 0).all(), name


def test_only_the_rows_that_were_looked_up_get_a_gradient() -> None:
    found = gradients(STACKS["post-norm"])
    used = {
        "tokens": {i for ids in ids_of(5, 2, 7) for i in ids},
        "types": {0, 1},
        "positions": set(range(7)),
    }
    for table, rows in used.items():
        gradient = found[f"embeddings.{table}.weight"]
        assert {i for i, row in enumerate(gradient) if row.any()} == rows


# --- dropout ------------------------------------------------------------------------------------------


def dropped(where: str, p: float) -> EncoderConfig:
    unit = {"attention": {"attention": {"dropout": p}}, "weights": {"attention": {"weights_dropout": p}}}
    unit["feedforward"] = {"feedforward": {"dropout": p}}
    config = small(norm_out=LAYER, **unit.get(where, {}))
    return config.replace(embeddings=config.embeddings.replace(dropout=p * (where == "embeddings")))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("where", ["embeddings", "weights", "attention", "feedforward"])
def test_dropout_acts_only_in_training(where: str, kernel: str) -> None:
    encoder, batch = build(dropped(where, 0.5)), batch_of(6, 6, 3)
    plain = build(dropped(where, 0.0))(batch, kernel)
    assert torch.equal(encoder(batch, kernel), plain)
    encoder.train()
    torch.manual_seed(0)
    first, second = encoder(batch, kernel), encoder(batch, kernel)
    assert largest(first, second) > 1e-3
    torch.manual_seed(0)
    assert torch.equal(encoder(batch, kernel), first)
    encoder.eval()
    assert torch.equal(encoder(batch, kernel), plain)


# --- batch norm ---------------------------------------------------------------------------------------


def test_batch_norm_sees_only_real_tokens() -> None:
    encoder = build(small(depth=1, norm_in=BATCH))
    norm = encoder.blocks[0].attention.norm_in
    assert isinstance(norm, nn.BatchNorm1d)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    batch = batch_of(1, 9, 4)
    stream = encoder.embeddings(batch)
    seen: list[torch.Tensor] = []
    norm.register_forward_hook(lambda module, inputs, output: seen.extend([inputs[0], output]))
    encoder.train()
    encoder(batch)
    assert torch.equal(seen[0], stream)
    tokens = list(stream)
    assert len(tokens) == 1 + 9 + 4
    average = sum(tokens) / 14
    spread = sum((token - average) ** 2 for token in tokens)
    assert largest(norm.running_mean, 0.9 * mean + 0.1 * average) <= 1e-12
    assert largest(norm.running_var, 0.9 * variance + 0.1 * spread / 13) <= 1e-12
    expected = norm.weight * (stream - average) / (spread / 14 + norm.eps).sqrt() + norm.bias
    assert largest(seen[1], expected) <= 1e-12


# --- names and fresh weights --------------------------------------------------------------------------


def test_names_have_no_sublayer_level() -> None:
    names = named_parts(build(small(norm_out=LAYER, pooler=True)))
    assert {"embeddings.norm", "blocks.1.attention.query", "blocks.0.feedforward.down", "pooler"} <= names.keys()
    assert {"blocks.1.attention.branch", "blocks.1.attention.norm_out", "blocks.0"} <= names.keys()
    assert not any(".sublayer." in name for name in names)
    assert len(set(map(id, names.values()))) == len(names)


def test_blocks_that_share_have_the_very_same_parameters() -> None:
    shared, own = small(depth=3).replace(shared=(0, 1, 0)), small(depth=3)
    encoder = build(shared)
    first, last = (dict(encoder.blocks[i].named_parameters()) for i in (0, 2))
    assert all(first[name] is last[name] for name in first)
    assert not set(map(id, first.values())) & set(map(id, encoder.blocks[1].parameters()))
    unshared = build(own)
    unshared.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(batch_of(4, 2)), unshared(batch_of(4, 2)))


@pytest.mark.parametrize("kind", ["normal", "xavier"])
def test_fresh_weights_are_drawn_as_told(kind: Any) -> None:
    plain = small(norm_out=LAYER, feedforward={"width": 400})
    config = plain.replace(init=InitConfig(kind=kind, std=0.3), embeddings=plain.embeddings.replace(vocabulary=500))
    torch.manual_seed(0)
    encoder = Encoder(config)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(7.0)
    encoder.init_weights()
    up = encoder.blocks[1].feedforward.sublayer.up
    weight, tokens = up.weight.detach(), encoder.embeddings.tokens.weight.detach()
    bound = math.sqrt(6 / (10 + 400))
    expected = {"normal": (0.3, 0.3), "xavier": (bound / math.sqrt(3), 10**-0.5)}[kind]
    assert (float(weight.std()), float(tokens.std())) == pytest.approx(expected, rel=0.05)
    assert (float(weight.abs().max()) <= bound) == (kind == "xavier")
    assert not up.bias.any()


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_a_shared_bias_has_the_dtype_of_the_stream(kernel: str) -> None:
    config = small().replace(position_bias=PositionBiasConfig(kind="alibi"))
    encoder, batch = build(config).float(), batch_of(5, 9)
    with torch.no_grad():
        assert largest(encoder(batch, kernel), encoder.double()(batch, "eager")) <= 1e-4
