"""A text has the same numbers alone and in any batch, at every site."""

from collections.abc import Iterator
from itertools import cycle, islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import Model, load
from addnorm.config import EncoderConfig
from addnorm.trace.sites import meaning_of
from tests.nn.drawn import CONFIGS, LONGEST, ids_of, largest, magnitude, model_of
from tests.texts import docstrings


@settings(max_examples=25, deadline=None)
@given(CONFIGS, st.lists(st.integers(1, LONGEST), min_size=2, max_size=6), st.integers(0, 99))
def test_every_encoder_packed_equals_alone(config: EncoderConfig, lengths: list[int], seed: int) -> None:
    model, texts = model_of(config, seed), ids_of(*lengths, seed=seed)
    together = model.trace(texts)
    for i, ids in enumerate(texts):
        alone = model.trace(ids)
        assert together[i].sites == alone.sites
        size = magnitude(alone[site] for site in alone.sites)
        for site in alone.sites:
            assert largest(together[i][site], alone[site]) <= 1e-12 * size, site


def mixed_texts(count: int) -> list[str]:
    """Real texts of 1 to 60 words, a few of 200, in no order of length."""
    words = cycle(" ".join(docstrings(60)).split())
    lengths = [200 if i % 20 == 7 else 1 + (i * 37) % 60 for i in range(count)]
    return [" ".join(islice(words, length)) for length in lengths]


def differences(model: Model, texts: list[str]) -> Iterator[tuple[str, float, float]]:
    """For each text and site: the largest difference, and the largest value (at least 1)."""
    together = model.trace(texts)
    assert len(together) == len(texts)
    for i, text in enumerate(texts):
        alone = model.trace(text)
        assert together[i].tokens == alone.tokens
        assert together[i].sites == alone.sites
        for site in alone.sites:
            yield site, largest(together[i][site], alone[site]), max(1.0, float(alone[site].abs().max()))


# Matrix products of another height add up in another order. Of the steps inside a sub-layer, float32 is sure to
# about 3e-6 of their size (measured against float64, alone as much as packed); the norms make it better again.
INNER, OUTER = 4e-6, 1e-6


@pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
def test_minilm_packed_equals_alone(minilm: Model) -> None:
    for site, difference, size in differences(minilm, mixed_texts(64)):
        outer = site in ("embeddings", "pooler", "pooling") or meaning_of(site).name == "blocks.{i}"
        assert difference <= (OUTER if outer else INNER) * size, site
        if meaning_of(site).pooled:
            assert difference <= OUTER, site


@pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
def test_minilm_packed_equals_alone_in_float64() -> None:
    for site, difference, size in differences(load(dtype=torch.float64), mixed_texts(12)):
        assert difference <= 1e-12 * size, site
