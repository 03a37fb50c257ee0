"""`gradients`: how large gradients are at each depth of a fresh stack.

Xiong 2020: the last feed-forward's gradient does not depend on the depth in a post-norm stack and falls with it
in a pre-norm one. A post-norm *encoder* does not lose its gradients exponentially at the start (Liu 2020).
Without residuals the stream's gradient survives, kept up by the norms, but tokens become equal and the gradients
of W_Q and W_K are gone after three blocks (Noci 2022).
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.errors import AddnormError
from addnorm.lab.fresh import random_tokens, run, seeded, start
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.nn.encoder import Encoder

Loss = Literal["tokens", "first"]
NOTE = (
    "‖∂L/∂W‖ of the last block is flat over depth for post-norm and falls for pre-norm (Xiong 2020). Post-norm "
    "encoders do not vanish exponentially at the start: what reaches the embeddings is of the order of what left the "
    "last block. Without residuals tokens become equal, and the gradients of W_Q and W_K vanish (Noci 2022)."
)


def gradients(
    variants: Sequence[str] = ("post-norm", "pre-norm", "deepnorm", "no-residual"),
    depths: Sequence[int] = (6, 12, 24),
    seeds: int = 3,
    loss: Loss = "tokens",
    texts: int = 4,
    length: int = 32,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """Gradient norms of a cross-entropy with random targets, on random tokens.

    Rows: variant, depth, seed, `where` ("stream", or a matrix: query … down), `layer` (for the stream the number
    of blocks before it, from 0; for a matrix that of its block, from 1), `gradient`. `loss`: over all tokens or
    each text's first; `size`: as for `variants.build`.
    """
    rows: list[Row] = []
    runs = list(product(variants, depths, range(seeds)))
    for variant, depth, seed in track(runs, lambda run: f"{run[0]}, {run[1]} blocks", progress):
        sizes = {"width": 128, "heads": 4, "outputs": 1000, "vocabulary": 1000} | size
        batch = random_tokens(texts, length, sizes["vocabulary"], seed)
        encoder = start(variant, depth, seed, batch, **sizes)
        key = {"variant": variant, "depth": depth, "seed": seed}
        rows += [key | row for row in gradients_of(encoder, batch, seed, loss)]
    return Table("Gradient norms by depth", tuple(rows), NOTE)


def gradients_of(encoder: Encoder, batch: Batch, seed: int, loss: Loss = "tokens") -> list[Row]:
    """The gradients of one encoder, which needs a head that gives each token a row of logits."""
    stream, output = run(encoder, batch, keep_gradients=True)
    logits = encoder.read(output, batch)
    if logits is None or len(logits) != len(output):
        raise AddnormError("gradients need a head with logits for each token; build with outputs=…")
    with seeded(seed + 1):
        targets = torch.randint(logits.shape[1], (len(logits),))
    chosen = batch.offsets[:-1] if loss == "first" else slice(None)
    F.cross_entropy(logits[chosen], targets[chosen]).backward()  # type: ignore[no-untyped-call]
    rows: list[Row] = [{"where": "stream", "layer": i, "gradient": _size(x.grad)} for i, x in enumerate(stream)]
    for i, block in enumerate(encoder.blocks):
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear):
                matrix = name.rpartition(".")[2]
                rows.append({"where": matrix, "layer": i + 1, "gradient": _size(module.weight.grad)})
    return rows


def _size(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.norm())
