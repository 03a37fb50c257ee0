"""`ablate`: switch one part of a trained model off at a time and see what its numbers owe to it.

Parts: a unit's residual (α = 0), a norm (it hands on what it gets), attention, feed-forward (β = 0: the stream passes
the unit's norms only), a head, a whole block. Weights stay as they are, so this says what the trained model relies
on, not what a model trained without the part would do.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.errors import AddnormError
from addnorm.lab.fresh import seeded
from addnorm.lab.signal import token_cosine
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.model import Model
from addnorm.nn.addnorm import Add, AddNorm
from addnorm.nn.attention import Attention
from addnorm.nn.encoder import Encoder
from addnorm.nn.feedforward import FeedForward

Kind = Literal["residual", "norm", "attention", "feedforward", "head", "block"]
KINDS: tuple[Kind, ...] = ("residual", "norm", "attention", "feedforward", "head", "block")
NOTE = (
    "`rank` is how far the order of likeness among the texts stays that of the intact model (Spearman): 1 unchanged, "
    "0 nothing left. `cosine` is that of two tokens of one text after the last block: 1 means they became the same."
)


@dataclass(frozen=True)
class Part:
    """Something that can be switched off: its kind, its place by name, and how, as a context."""

    kind: Kind
    where: str
    off: Callable[[], Any]


def ablate(
    model: Model,
    texts: Sequence[str],
    kinds: Sequence[str] = KINDS,
    blocks: Sequence[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Table:
    """Each part off in turn, the intact model first.

    Rows: `kind`, `where`, `block`; `cosine` of tokens after the last block, `vectors` (mean cosine between a text's
    vector and its intact one), `rank` (Spearman over all pairs of texts), `loss` of masked tokens where the model
    has a masked-LM head, else None. Errors: fewer than 3 texts, an encoder on another wiring, unknown kinds.
    """
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise AddnormError(f"nothing called '{unknown[0]}' can be switched off; choose {', '.join(KINDS)}")
    if len(texts) < 3:
        raise AddnormError(f"{len(texts)} texts give no order of likeness; give at least 3")
    encoder = model.encoder
    if encoder.config.wiring is not None:
        raise AddnormError("parts can be switched off on one stream, not on another wiring")
    batch = model.batch(model.as_tokens(list(texts)))
    chosen = [
        part
        for part in parts_of(encoder)
        if part.kind in kinds and (blocks is None or int(part.where.split(".")[1]) in blocks)
    ]
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            intact = _vectors(model, batch)[0]
            rows: list[Row] = [{"kind": "intact", "where": "", "block": None} | _measure(model, batch, intact, seed)]
            for part in track(chosen, lambda part: f"{part.where} without {part.kind}", progress):
                with part.off():
                    key = {"kind": part.kind, "where": part.where, "block": int(part.where.split(".")[1])}
                    rows.append(key | _measure(model, batch, intact, seed))
    finally:
        encoder.train(training)
    return Table(f"What {model.name} owes to its parts", tuple(rows), NOTE)


def parts_of(encoder: Encoder) -> Iterator[Part]:
    """Everything that can be switched off, block by block."""
    for i, block in enumerate(encoder.blocks):
        yield Part("block", f"blocks.{i}", partial(_passing, block))
        for name, unit in block.named_modules():
            if isinstance(unit, AddNorm):
                yield from _parts_of_unit(unit, f"blocks.{i}.{name}")


def _parts_of_unit(unit: AddNorm, path: str) -> Iterator[Part]:
    yield Part("residual", path, partial(_without_skip, unit))
    for slot in ("norm_in", "norm_branch", "norm_out"):
        norm = getattr(unit, slot)
        if norm is not None:
            yield Part("norm", f"{path}.{slot}", partial(_passing, norm))
    if isinstance(unit.sublayer, FeedForward):
        yield Part("feedforward", path, partial(_scaled, unit.branch, 0.0))
    if isinstance(unit.sublayer, Attention):
        yield Part("attention", path, partial(_scaled, unit.branch, 0.0))
        for head in range(unit.sublayer.config.heads):
            yield Part("head", f"{path}.heads.{head}", partial(_without_head, unit.sublayer, head))


@contextmanager
def _hooked(module: nn.Module, hook: Any) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(module.register_forward_hook(hook))
        yield


def _passing(module: nn.Module) -> Any:
    """The module gives what it got."""
    return _hooked(module, lambda module, inputs, output: inputs[0])


def _scaled(module: nn.Module, factor: float) -> Any:
    return _hooked(module, lambda module, inputs, output: factor * output)


def _without_skip(unit: AddNorm) -> Any:
    def hook(add: nn.Module, inputs: tuple[Tensor, Tensor], output: Tensor) -> Tensor:
        assert isinstance(add, Add)
        return inputs[1]

    return _hooked(unit.add, hook)


def _without_head(attention: Attention, head: int) -> Any:
    width = attention.config.head_width

    def hook(mix: nn.Module, inputs: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, head * width : (head + 1) * width] = 0
        return output

    return _hooked(attention.mix, hook)


# --- what is measured ---------------------------------------------------------------------------------


def _vectors(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    stream = model.encoder(batch)
    return model.pooling(stream, batch, False), stream


def _measure(model: Model, batch: Batch, intact: Tensor, seed: int) -> Row:
    vectors, stream = _vectors(model, batch)
    if not bool(stream.isfinite().all()):
        return {"cosine": math.nan, "vectors": math.nan, "rank": math.nan, "loss": _masked_loss(model, batch, seed)}
    long = [stream[span] for span in batch.spans if span.stop - span.start > 1]
    return {
        "cosine": sum(map(token_cosine, long)) / len(long) if long else None,
        "vectors": float(F.cosine_similarity(vectors, intact).mean()),
        "rank": spearman(_pairs(vectors), _pairs(intact)),
        "loss": _masked_loss(model, batch, seed),
    }


def _pairs(vectors: Tensor) -> Tensor:
    """The cosine of each pair of texts, (B·(B−1)/2,)."""
    unit = F.normalize(vectors, dim=1)
    i, j = torch.triu_indices(len(unit), len(unit), offset=1)
    return (unit @ unit.T)[i, j]


def spearman(a: Tensor, b: Tensor) -> float:
    """The correlation of ranks; equal values share the mean of their ranks, and constant ones give 0."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = float(x.norm() * y.norm())
    return float(x @ y) / norm if norm else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, places, counts = values.double().unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() - 1) / 2)[places]


def _masked_loss(model: Model, batch: Batch, seed: int) -> float | None:
    """The masked-LM loss with 15 % of the tokens hidden, the same in each pass; not a text's ends."""
    head, tokenizer = model.config.head, model.tokenizer
    if head is None or head.task != "fill" or tokenizer is None:
        return None
    mask = tokenizer.special.get("mask")
    if mask is None:
        return None
    inner = torch.ones(len(batch.ids), dtype=torch.bool)
    inner[batch.offsets[:-1]] = inner[batch.offsets[1:] - 1] = False
    places = inner.nonzero().flatten()
    with seeded(seed):
        hidden = places[torch.randperm(len(places))[: max(1, round(0.15 * len(places)))]]
    ids = batch.ids.clone()
    ids[hidden] = mask
    masked = Batch(ids, batch.types, batch.positions, batch.offsets)
    logits = model.encoder.read(model.encoder(masked), masked)
    assert logits is not None
    return float(F.cross_entropy(logits[hidden].float(), batch.ids[hidden]))
