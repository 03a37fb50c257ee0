"""Fresh encoders and random tokens: what the studies run on."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.config import EncoderConfig
from addnorm.lab.variants import VARIANTS, build
from addnorm.nn.addnorm import Add, AddNorm, Scale
from addnorm.nn.attention import Attention
from addnorm.nn.encoder import Encoder


def fresh(config: EncoderConfig, seed: int, dtype: torch.dtype = torch.float32) -> Encoder:
    """An encoder with fresh weights that depend on config and seed alone; batch norms use the batch they see."""
    with seeded(seed):
        encoder = Encoder(config)
        encoder.init_weights()
    encoder.to(dtype).eval()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.train()
    return encoder


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from `seed`; afterwards the state is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def random_tokens(texts: int, length: int, vocabulary: int, seed: int) -> Batch:
    """Texts of random tokens; within a text no token twice as long as the vocabulary suffices.

    Two equal tokens have cosine 1 from the start, which would hide what a stack does to different ones.
    """
    generator = torch.Generator().manual_seed(seed)
    repeats = math.ceil(length / vocabulary)
    rows = []
    for _ in range(texts):
        drawn = [torch.randperm(vocabulary, generator=generator) for _ in range(repeats)]
        rows.append(torch.cat(drawn)[:length].tolist())
    return Batch.pack(rows)


def start(name: str, depth: int, seed: int, batch: Batch, dtype: torch.dtype = torch.float32, **size: Any) -> Encoder:
    """A variant with fresh weights, measured on the batch where the variant asks for that (Admin)."""
    encoder = fresh(build(name, depth, **size), seed, dtype)
    if VARIANTS[name].profiled:
        with seeded(seed):
            profile(encoder, batch)
    return encoder


def run(
    encoder: Encoder, batch: Batch, keep_gradients: bool = False, kernel: str | None = None
) -> tuple[list[Tensor], Tensor]:
    """The stream before the first block and after each, N + 1 tensors, and what the encoder gives, (N, D).

    A stream is (N, D), or (N, n, D) where a wiring has n of them; `keep_gradients`: their .grad is filled later.
    """
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        if keep_gradients:
            output.retain_grad()
        seen.append(output)

    handles = [module.register_forward_hook(keep) for module in (encoder.embeddings, *encoder.blocks)]
    try:
        output = encoder(batch, kernel)
    finally:
        for handle in handles:
            handle.remove()
    return seen, output


@torch.no_grad()
def streams(encoder: Encoder, batch: Batch) -> list[Tensor]:
    """The stream before the first block and after each, N + 1 tensors of (N, D); of several streams their mean."""
    return [x if x.ndim == 2 else x.mean(1) for x in run(encoder, batch)[0]]


def units(encoder: Encoder) -> list[AddNorm]:
    """All units in forward order."""
    return [
        unit for block in encoder.blocks for unit in (block.attention, block.feedforward) if isinstance(unit, AddNorm)
    ]


def attentions(encoder: Encoder) -> list[Attention]:
    """The attention sub-layers of all blocks."""
    return [unit.sublayer for unit in units(encoder) if isinstance(unit.sublayer, Attention)]


@torch.no_grad()
def profile(encoder: Encoder, batch: Batch) -> list[float]:
    """Admin's measurement (Liu 2020, section 4.2): w_{i+1}² = Var(w_i x) + Var(F_i), w_1 = 1, in one pass.

    The skips (learned vectors α) get their w, the matrices are drawn anew. Gives the w of all units.
    """
    skips: list[float] = []
    w = 1.0

    def measure(add: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        nonlocal w
        assert isinstance(add, Add)
        assert isinstance(add.alpha, Scale)
        x, branch = inputs
        add.alpha.weight.fill_(w)
        skips.append(w)
        w = math.sqrt(float((w * x).var(correction=0) + branch.var(correction=0)))

    handles = [unit.add.register_forward_pre_hook(measure) for unit in units(encoder)]
    try:
        encoder(batch)
    finally:
        for handle in handles:
            handle.remove()
    encoder.init_weights()
    return skips


@torch.no_grad()
def transplant(encoder: Encoder, config: EncoderConfig) -> Encoder:
    """An encoder of another config with the same weights; what only the new one has keeps its start.

    Errors: none for weights that have no place any more, they are dropped.
    """
    made = Encoder(config, encoder.kernel).to(next(encoder.parameters()).dtype)
    old = dict(encoder.named_parameters()) | dict(encoder.named_buffers())
    for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
        if name in old and old[name].shape == tensor.shape:
            tensor.copy_(old[name])
    return made.train(encoder.training)
