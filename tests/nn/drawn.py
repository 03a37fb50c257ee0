"""Small encoders of every make, drawn by hypothesis, with no parameter left as it was made."""

from collections.abc import Iterable
from typing import Any, get_args

import torch
from hypothesis import strategies as st
from torch import nn

from addnorm.batch import Batch
from addnorm.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    ConvolutionConfig,
    DisentangledConfig,
    EmbeddingsConfig,
    EncoderConfig,
    FeedForwardConfig,
    HeadConfig,
    InitConfig,
    Learned,
    NormConfig,
    NormKind,
    PositionBiasConfig,
    RelativeConfig,
    RotaryConfig,
    ShapingConfig,
    Task,
)
from addnorm.model import Model
from addnorm.nn.encoder import Encoder

VOCABULARY, POSITIONS, LONGEST = 23, 32, 20

ACTIVATIONS = st.sampled_from(get_args(Activation))
EPS = st.sampled_from((1e-3, 1e-2))
NORMS = st.builds(
    NormConfig,
    kind=st.sampled_from(get_args(NormKind)),
    eps=EPS,
    bias=st.booleans(),
    slope=st.sampled_from((0.5, 1.0)),
    factor=st.sampled_from((1.0, 0.5)),
)
TOKEN_NORMS = st.builds(NormConfig, kind=st.sampled_from(("layer", "rms")), eps=EPS, bias=st.booleans())
SLOTS = st.none() | NORMS
SCALES = st.sampled_from((1.0, 0.0, 0.5, 1.25)) | st.builds(
    Learned, init=st.sampled_from((0.0, 1.0, 0.1)), shape=st.sampled_from(("scalar", "vector"))
)
UNIT: dict[str, Any] = {
    "norm_in": SLOTS,
    "norm_branch": SLOTS,
    "norm_out": SLOTS,
    "alpha": SCALES,
    "beta": SCALES,
    "dropout": st.sampled_from((0.0, 0.1)),
}
BIASES = st.none() | st.builds(
    PositionBiasConfig,
    kind=st.sampled_from(("buckets", "alibi")),
    buckets=st.sampled_from((8, 32)),
    max_distance=st.sampled_from((16, 128)),
)
ATTENTION: dict[str, Any] = UNIT | {
    "head_width": st.sampled_from((2, 4)),
    "scale": st.none() | st.just(0.3),
    "softcap": st.none() | st.just(5.0),
    "bias": st.booleans(),
    "key_bias": st.booleans(),
    "output_bias": st.booleans(),
    "weights_dropout": st.sampled_from((0.0, 0.2)),
    "query_norm": st.none() | TOKEN_NORMS,
    "key_norm": st.none() | TOKEN_NORMS,
    "value_norm": st.none() | TOKEN_NORMS,
    "head_scale": st.booleans(),
    "shaping": st.none() | st.builds(ShapingConfig, centre=st.sampled_from((0.0, 0.5))),
    "norm_heads": st.booleans(),
    "mix_norm": SLOTS,
    "rotary": st.none()
    | st.builds(
        RotaryConfig,
        theta=st.sampled_from((100.0, 10000.0)),
        width=st.none() | st.just(2),
        interleaved=st.booleans(),
        scaling=st.sampled_from((1.0, 2.0)),
        value=st.booleans(),
    ),
    "position_bias": BIASES,
    "window": st.none() | st.integers(0, 5),
}
FEEDFORWARD: dict[str, Any] = UNIT | {
    "width": st.integers(1, 11),
    "activation": ACTIVATIONS,
    "gated": st.booleans(),
    "bias": st.booleans(),
    "output_bias": st.booleans(),
    "inner_norm": SLOTS,
}


TERMS = st.sampled_from(((True, True), (True, False), (False, True))).flatmap(
    lambda terms: st.builds(
        DisentangledConfig,
        content_to_position=st.just(terms[0]),
        position_to_content=st.just(terms[1]),
        shared=st.booleans(),
        key_bias=st.booleans(),
    )
)
SPANS = {"span": st.sampled_from((4, 7)), "max_distance": st.sampled_from((None, 12))}
RELATIVE = st.builds(RelativeConfig, **SPANS, norm=st.none() | TOKEN_NORMS)
CONVOLUTIONS = st.builds(
    ConvolutionConfig, kernel=st.sampled_from((1, 3, 5)), activation=ACTIVATIONS, norm_out=st.none() | TOKEN_NORMS
)


def _blocks(heads: tuple[int, int | None]) -> st.SearchStrategy[list[BlockConfig]]:
    of_heads = {"heads": st.just(heads[0]), "kv_heads": st.just(heads[1])}
    of_heads |= {"disentangled": st.none() | TERMS if heads[1] in (None, heads[0]) else st.none()}
    attention = st.builds(AttentionConfig, **ATTENTION, **of_heads)
    feedforward = st.builds(FeedForwardConfig, **FEEDFORWARD)
    convolution = st.none() | CONVOLUTIONS
    block = st.builds(BlockConfig, attention=attention, feedforward=feedforward, convolution=convolution)
    return st.lists(block, max_size=2)


# Blocks with as many heads as each other, so that they can share a position bias.
BLOCKS = st.sampled_from(((1, None), (2, None), (2, 1), (3, 3), (4, 2))).flatmap(_blocks)
EMBEDDINGS = st.builds(
    EmbeddingsConfig,
    vocabulary=st.just(VOCABULARY),
    positions=st.sampled_from(("learned", "sinusoidal", None)),
    max_positions=st.just(POSITIONS),
    position_offset=st.integers(0, 2),
    pad=st.none() | st.just(1),
    types=st.integers(0, 2),
    tasks=st.integers(0, 2),
    width=st.none() | st.integers(2, 7),
    scale=st.sampled_from((1.0, 2.5)),
    norm=SLOTS,
    dropout=st.sampled_from((0.0, 0.1)),
)
INITS = st.builds(InitConfig, kind=st.sampled_from(("normal", "xavier")), std=st.sampled_from((0.02, 0.3)))
WIDTHS = st.integers(2, 9)


@st.composite
def encoders(draw: st.DrawFn) -> EncoderConfig:
    """Encoders with any filling of the slots."""
    width, embeddings, pooler = draw(WIDTHS), draw(EMBEDDINGS), draw(st.booleans())
    blocks = tuple(draw(BLOCKS))
    shared = len(blocks) == 2 and draw(st.booleans())
    return EncoderConfig(
        width=width,
        embeddings=embeddings,
        blocks=blocks[:1] * 3 if shared else blocks,
        shared=(0, 0, 0) if shared else None,
        position_bias=draw(BIASES) if blocks else None,
        relative=draw(RELATIVE) if any(block.attention.disentangled for block in blocks) else None,
        norm=draw(SLOTS),
        pooler=pooler,
        head=draw(st.none() | heads(embeddings, width, pooler)),
        init=draw(INITS),
    )


@st.composite
def heads(draw: st.DrawFn, embeddings: EmbeddingsConfig, width: int, pooler: bool) -> HeadConfig:
    tied, dense = draw(st.booleans()), draw(st.none() | st.integers(1, 8))
    if tied:
        dense = embeddings.width or width
    return HeadConfig(
        task=draw(st.sampled_from(get_args(Task))),
        outputs=VOCABULARY if tied else draw(st.integers(1, 4)),
        pool=draw(st.sampled_from((None, "first", "mean", *(["pooler"] if pooler else [])))),
        dense=dense,
        dense_bias=draw(st.booleans()),
        activation=draw(st.none() | ACTIVATIONS),
        norm=draw(SLOTS),
        tied=tied,
        bias=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.1))),
    )


CONFIGS = encoders()


def perturb(module: nn.Module, seed: int = 0) -> None:
    """Random values in every parameter and every running statistic."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif name.endswith("logits.weight"):  # made empty
                tensor.copy_(0.3 * noise)
            elif tensor.is_floating_point():
                tensor.add_(0.3 * noise)


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
    """The largest element-wise difference of two tensors of one shape; equal infinities differ by nothing."""
    assert a.shape == b.shape
    return float((a - b).detach().masked_fill(a == b, 0).abs().max())


def magnitude(values: Iterable[torch.Tensor]) -> float:
    """The largest finite number among the values, and at least 1: what rounding is measured against.

    Without norms a stream may grow, and what lies beyond a window scores −∞.
    """
    return max(1.0, *(float(value.masked_fill(value.isinf(), 0).abs().max()) for value in values))
