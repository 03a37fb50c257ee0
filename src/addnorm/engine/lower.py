"""Encoder → Engine, in the precision asked for."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.batch import Batch
from addnorm.engine.attention import FastAttention
from addnorm.engine.int8 import ByteWalk, measure, random_ids
from addnorm.engine.operators import has_bfloat16, has_bytes, widens
from addnorm.engine.program import program_of
from addnorm.engine.shared import Pass, in_order
from addnorm.engine.speed import fastest
from addnorm.engine.walk import FastNorm, FastUnit, Walk
from addnorm.errors import AddnormError, remark
from addnorm.nn.encoder import Block, Encoder
from addnorm.nn.heads import SentencePooling

PRECISIONS = ("float32", "bfloat16", "int8", "auto")


class Engine:
    """The fast form of an encoder, for inference: a batch → the stream after the last block (and final norm).

    `dtype`: of the stream between the blocks. It has no state of a pass, so several threads may call it. It holds
    packed copies of the encoder's matrices: an encoder that changes needs a new one (`Model.engine` sees to that).
    """

    def __init__(
        self, encoder: Encoder, pooling: SentencePooling | None, precision: str, dtype: torch.dtype | None = None
    ) -> None:
        self.precision = precision
        self.encoder, self.pooling, self.dtype = encoder, pooling, dtype
        # Whether every block's attention takes positions from the pass, not computed anew for each group.
        self.fast = all(isinstance(block.attention.sublayer, FastAttention) for block in encoder.blocks)  # type: ignore[union-attr]
        self.kernel = encoder.kernel_for()
        stream = encoder.embeddings.tokens.weight.dtype if dtype is None else dtype
        self.program = program_of(encoder, stream)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Batch → (N, D). Errors: as the encoder's."""
        encoder, ordered = self.encoder, in_order(batch)
        x: Tensor = encoder.embeddings(ordered).to(self.dtype)
        shared = Pass(
            ordered,
            self.kernel,
            () if self.fast else self._biases(x, ordered),
            relative=None if self.fast or encoder.relative is None else encoder.relative(ordered),
            position_bias=encoder.position_bias,
            table=encoder.relative,
        )
        if self.program is not None:
            x = self.program(x, shared)
        elif encoder.wiring is not None:
            x = encoder.wiring(x, encoder.blocks, shared)
        else:
            for block in encoder.blocks:
                x = block(x, shared)
        x = x if encoder.norm is None else encoder.norm(x)
        return x if ordered is batch else x[batch.ungroup]

    @torch.no_grad()
    def encode(self, batch: Batch, normalize: bool | None = None) -> Tensor:
        """Batch → sentence vectors, (B, D)."""
        assert self.pooling is not None, "an engine lowered without pooling has no sentence vectors"
        return self.pooling(self(batch), batch, normalize)

    def _biases(self, x: Tensor, batch: Batch) -> tuple[Tensor | None, ...]:
        bias = self.encoder.position_bias
        return tuple(None if bias is None else bias(group.rows.shape[1]).to(x) for group in batch.groups)


def lower(
    encoder: Encoder,
    precision: str = "float32",
    pooling: SentencePooling | None = None,
    sample: Sequence[Sequence[int]] | None = None,
) -> Engine:
    """The engine of an encoder, and of the pooling that follows.

    float32: the encoder as it is, in its own dtype; bfloat16: its matrices and what flows between its parts, but
    embeddings, norms and a stream that no norm follows (it grows from block to block) as they are; int8: the
    blocks' matrices and what they read, all else as it is, attention in bfloat16 where the processor has it;
    auto: float32 or bfloat16, the faster one here. `sample`: token ids of texts to measure on what sizes the
    inputs of int8 matrices have; without any, random ones.
    Errors: a precision that is unknown, or that cannot be had here or for an encoder in another dtype.
    """
    if precision not in PRECISIONS:
        raise AddnormError(f"precision '{precision}' is unknown; known: {', '.join(PRECISIONS)}")
    if precision == "auto":
        precision = fastest()
    dtype = encoder.embeddings.tokens.weight.dtype
    if precision != "float32" and dtype != torch.float32:
        raise AddnormError(f"precision '{precision}' is for encoders in float32, this one is in {str(dtype)[6:]}")
    keep_freed()
    with torch.no_grad():
        return LOWERINGS[precision](encoder, pooling, sample)


def _float32(encoder: Encoder, pooling: SentencePooling | None, sample: Any) -> Engine:
    walk = Walk(encoder)
    return Engine(walk.copied(encoder), walk.pooling(pooling), "float32")


def _bfloat16(encoder: Encoder, pooling: SentencePooling | None, sample: Any) -> Engine:
    wide = encoder.embeddings.tokens.weight.device.type == "cpu" and widens()
    if wide:
        remark("this processor has no bfloat16 products: the matrices are in bfloat16, all else is in float32")
    elif not has_bfloat16():
        remark("this processor has no bfloat16 products; computed by others, they are slower than float32")
    walk = Walk(encoder, torch.bfloat16, torch.float32 if wide else torch.bfloat16)
    lowered = walk.copied(encoder)
    normed = not wide and _is_normed(lowered)
    return Engine(lowered, walk.pooling(pooling), "bfloat16", torch.bfloat16 if normed else None)


def _int8(encoder: Encoder, pooling: SentencePooling | None, sample: Any) -> Engine:
    if not has_bytes():
        raise AddnormError("precision 'int8' needs products of bytes, which do not work here; take float32")
    texts = Batch.pack(sample or random_ids(encoder))
    found, stream = measure(encoder, texts)
    walk = ByteWalk(encoder, found, torch.bfloat16 if has_bfloat16() else torch.float32)
    engine = Engine(walk.copied(encoder), walk.pooling(pooling), "int8")
    agreement = float(F.cosine_similarity(engine(texts).float(), stream.float()).mean())
    if not agreement > CLOSE:
        remark(f"int8 changes this model much (cosine to float32 on sample texts: {agreement:.3f}); take bfloat16")
    return engine


@cache
def keep_freed() -> None:
    """Let glibc keep what is freed for the next pass, instead of asking the system for clean pages each time.

    It keeps blocks as large as the largest one that was freed before, up to 32 MB: so free one of that size.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


# The mean cosine of a stream in int8 to float32's below which its user is told.
CLOSE = 0.98

LOWERINGS = {"float32": _float32, "bfloat16": _bfloat16, "int8": _int8}


def _is_normed(lowered: Encoder) -> bool:
    """Whether a norm follows every sum of the stream: then it does not grow, and rounding it costs little."""
    for block in lowered.blocks:
        assert isinstance(block, Block)
        for unit in (block.attention, block.feedforward, *block.further):
            if type(unit) is not FastUnit or not isinstance(unit.norm_out, FastNorm) or not unit.norm_out.centred:
                return False
        if block.bottleneck is not None or block.convolution is not None:
            return False
    return lowered.wiring is None
