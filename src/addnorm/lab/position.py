"""`position`: how much of a token's place and of the token itself can still be read at each depth.

A linear probe (ridge regression on one-hot labels) reads both from the stream, trained on some texts and tested on
others. The claim: residuals carry the input, position included, through the stack; without them it is lost.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from addnorm.batch import Batch
from addnorm.errors import AddnormError
from addnorm.lab.fresh import start, streams
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.nn.encoder import Encoder

NOTE = "Accuracy of a linear probe on texts it has not seen; `chance` is that of guessing."


def position(
    variants: Sequence[str] = ("post-norm", "pre-norm", "no-residual"),
    depth: int = 12,
    seeds: int = 3,
    texts: int = 96,
    length: int = 16,
    letters: int = 32,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """Probes on fresh encoders, random tokens of a vocabulary of `letters`, learned positions.

    Rows: variant, seed, layer, `what` ("position" or "token"), `accuracy`, `chance`.
    """
    rows: list[Row] = []
    for variant, seed in track(list(product(variants, range(seeds))), lambda run: run[0], progress):
        sizes: dict[str, Any] = {"width": 64, "heads": 4, "positions": "learned", "max_positions": length} | size
        generator = torch.Generator().manual_seed(seed)
        batch = Batch.pack(torch.randint(letters, (texts, length), generator=generator).tolist())
        encoder = start(variant, depth, seed, batch, vocabulary=letters, **sizes)
        rows += [{"variant": variant, "seed": seed} | row for row in probes(encoder, batch)]
    return Table("What can be read from the stream", tuple(rows), NOTE)


def probes(encoder: Encoder, batch: Batch) -> list[Row]:
    """Both probes at every layer of one encoder; the first two thirds of the texts train them."""
    if len(batch) < 3:
        raise AddnormError(f"a probe needs texts to learn from and others to be tested on; {len(batch)} are too few")
    border = int(batch.offsets[len(batch) * 2 // 3])
    labels = {"position": batch.positions, "token": batch.ids}
    rows: list[Row] = []
    for layer, x in enumerate(streams(encoder, batch)):
        for what, label in labels.items():
            classes = label.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
            accuracy = probe(x[:border], classes[:border], x[border:], classes[border:])
            rows.append({"layer": layer, "what": what, "accuracy": accuracy, "chance": 1 / (int(classes.max()) + 1)})
    return rows


def probe(x: Tensor, labels: Tensor, other: Tensor, truth: Tensor, ridge: float = 1e-3) -> float:
    """Accuracy on `other` (M, D) of a ridge regression from x (N, D) to one-hot labels (N,).

    Features are centred and have variance 1 on x, so that a probe does not depend on the size of the stream.
    """
    x, other = x.double(), other.double()
    mean, spread = x.mean(0), x.std(0) + 1e-12
    x, other = (x - mean) / spread, (other - mean) / spread
    classes = int(max(labels.max(), truth.max())) + 1
    targets = torch.nn.functional.one_hot(labels, classes).double()
    gram = x.T @ x + ridge * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(gram, x.T @ (targets - targets.mean(0)))
    found = (other @ weights + targets.mean(0)).argmax(1)
    return float((found == truth).double().mean())
