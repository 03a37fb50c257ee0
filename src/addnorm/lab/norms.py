"""`norms`: what a text's numbers owe to the texts it is computed with.

LayerNorm looks at one token at a time; BatchNorm at all tokens of the batch, so the same text gets other vectors in
other company. Without padding there is no third effect: only real tokens are counted.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from addnorm.batch import Batch
from addnorm.lab.fresh import fresh, random_tokens, streams
from addnorm.lab.table import Progress, Row, Table, track
from addnorm.lab.variants import build

NOTE = "With LayerNorm a text is the same alone and in any company; with BatchNorm it is what its batch makes of it."


def norms(
    kinds: Sequence[str] = ("layer", "rms", "batch", "dyt"),
    depth: int = 12,
    companies: Sequence[int] = (1, 4, 16),
    seeds: int = 3,
    length: int = 24,
    progress: Progress | None = None,
    **size: Any,
) -> Table:
    """The same text alone and with other texts, pre-norm stacks in training, fresh weights, float64.

    Rows: `norm`, `company` (other texts in the batch), seed, layer, `change` of the text's stream against the one
    it has alone, relative to that, and `cosine` between both (mean over tokens).
    """
    rows: list[Row] = []
    runs = list(product(kinds, seeds_of(seeds)))
    for kind, seed in track(runs, lambda run: run[0], progress):
        sizes: dict[str, Any] = {"width": 64, "heads": 4, "vocabulary": 1000, "norm": kind} | size
        encoder = fresh(build("pre-norm", depth, **sizes), seed, torch.float64)
        text = random_tokens(1, length, sizes["vocabulary"], seed).ids.tolist()
        alone = streams(encoder, Batch.pack([text]))
        for company in companies:
            others = [
                random_tokens(1, length + i % 3, sizes["vocabulary"], 1000 * seed + i).ids.tolist()
                for i in range(company)
            ]
            together = streams(encoder, Batch.pack([text, *others]))
            for layer, (a, b) in enumerate(zip(alone, together, strict=True)):
                row = {"norm": kind, "company": company, "seed": seed, "layer": layer}
                change = float((b[:length] - a).norm() / a.norm())
                rows.append(row | {"change": change, "cosine": float(cosine_similarity(a, b[:length]).mean())})
    return Table("The same text in other company", tuple(rows), NOTE)


def seeds_of(count: int) -> range:
    """Seeds from 1: they are multiplied to draw the company."""
    return range(1, count + 1)
