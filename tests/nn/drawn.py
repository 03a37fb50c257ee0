"""Small encoders of every make, drawn by hypothesis, with no parameter left as it was made."""

from typing import Any, get_args

import torch
from hypothesis import strategies as st
from torch import nn

from addnorm.batch import Batch
from addnorm.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbeddingsConfig,
    EncoderConfig,
    FeedForwardConfig,
    InitConfig,
    Learned,
    NormConfig,
    NormKind,
)
from addnorm.model import Model
from addnorm.nn.encoder import Encoder

VOCABULARY, POSITIONS = 23, 32

NORMS = st.builds(
    NormConfig,
    kind=st.sampled_from(get_args(NormKind)),
    eps=st.sampled_from((1e-12, 1e-5, 1e-3)),
    bias=st.booleans(),
)
SLOTS = st.none() | NORMS
SCALES = st.sampled_from((1.0, 0.0, 0.5, 2.25)) | st.builds(
    Learned, init=st.sampled_from((0.0, 1.0, 0.1)), shape=st.sampled_from(("scalar", "vector"))
)
UNITS: dict[str, Any] = {
    "norm_in": SLOTS,
    "norm_branch": SLOTS,
    "norm_out": SLOTS,
    "alpha": SCALES,
    "beta": SCALES,
    "dropout": st.sampled_from((0.0, 0.1)),
}
BLOCKS = st.builds(
    BlockConfig,
    attention=st.builds(
        AttentionConfig,
        heads=st.integers(1, 3),
        head_width=st.integers(1, 4),
        bias=st.booleans(),
        output_bias=st.booleans(),
        weights_dropout=st.sampled_from((0.0, 0.2)),
        **UNITS,
    ),
    feedforward=st.builds(
        FeedForwardConfig,
        width=st.integers(1, 11),
        activation=st.sampled_from(get_args(Activation)),
        gated=st.booleans(),
        bias=st.booleans(),
        **UNITS,
    ),
)
CONFIGS = st.builds(
    EncoderConfig,
    width=st.integers(2, 9),
    embeddings=st.builds(
        EmbeddingsConfig,
        vocabulary=st.just(VOCABULARY),
        positions=st.sampled_from(("learned", "sinusoidal", None)),
        max_positions=st.just(POSITIONS),
        types=st.integers(0, 2),
        width=st.none() | st.integers(2, 7),
        scale=st.sampled_from((1.0, 3.5)),
        norm=SLOTS,
        dropout=st.sampled_from((0.0, 0.1)),
    ),
    blocks=st.lists(BLOCKS, max_size=2).map(tuple),
    norm=SLOTS,
    pooler=st.booleans(),
    init=st.builds(InitConfig, kind=st.sampled_from(("normal", "xavier")), std=st.sampled_from((0.02, 0.3))),
)


def perturb(module: nn.Module, seed: int = 0) -> None:
    """Random values in every parameter and every running statistic."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name.endswith("running_var"):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            elif tensor.is_floating_point():
                tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype))


def build(config: EncoderConfig, seed: int = 0) -> Encoder:
    """A perturbed encoder in float64, as it is for inference."""
    torch.manual_seed(seed)
    encoder = Encoder(config).double().eval()
    perturb(encoder, seed)
    return encoder


def model_of(config: EncoderConfig, seed: int = 0) -> Model:
    return Model(config, encoder=build(config, seed))


def small(depth: int = 2, pooler: bool = False, **slots: Any) -> EncoderConfig:
    """A small config with the same slots in every unit; `attention` and `feedforward` are changes of their own."""
    attention, feedforward = slots.pop("attention", {}), slots.pop("feedforward", {})
    block = BlockConfig(
        attention=AttentionConfig(**{"heads": 3, "head_width": 4, **slots, **attention}),
        feedforward=FeedForwardConfig(**{"width": 17, **slots, **feedforward}),
    )
    embeddings = EmbeddingsConfig(vocabulary=VOCABULARY, max_positions=POSITIONS, types=2, norm=NormConfig())
    return EncoderConfig(width=10, embeddings=embeddings, blocks=(block,) * depth, pooler=pooler)


def ids_of(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random token ids, one list for each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def batch_of(*lengths: int, seed: int = 0) -> Batch:
    return Batch.pack(ids_of(*lengths, seed=seed))


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest element-wise difference of two tensors of one shape."""
    assert a.shape == b.shape
    return float((a - b).abs().max())
