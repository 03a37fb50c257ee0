"""Rewritings of an encoder that leave its numbers as they are."""

from typing import Any

import pytest
import torch

from addnorm import AddnormError
from addnorm.config import NormConfig
from addnorm.lab import exact
from addnorm.lab.exact import with_units
from addnorm.lab.fresh import transplant, units
from tests.lab.stacked import apart, config_of, encoder_of, largest


def test_centred_writes_change_nothing_after_post_norm() -> None:
    encoder = encoder_of(config_of("post-norm"), stir=True)
    centred = exact.centre_writes(encoder)
    assert largest(exact.writer(units(centred)[0]).weight.mean(0)) <= 1e-15
    assert largest(exact.writer(units(encoder)[0]).weight.mean(0)) > 1e-2
    assert apart(encoder, centred) <= 1e-10


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_gains_and_shifts_of_post_norms_fold_into_what_reads_them(kind: Any) -> None:
    config = config_of("deepnorm", norm=kind)
    config = config.replace(embeddings=config.embeddings.replace(norm=NormConfig(kind=kind, eps=1e-12)))
    encoder = encoder_of(config, stir=True)
    folded = exact.fold_norms(encoder)
    for unit in units(folded)[:-1]:
        assert unit.norm_out is not None
        assert torch.equal(unit.norm_out.weight, torch.ones(12, dtype=torch.float64))
    assert apart(encoder, folded) <= 1e-10


def test_post_norm_is_deepnorm_with_larger_writes() -> None:
    encoder = encoder_of(config_of("post-norm"), stir=True)
    assert apart(encoder, exact.scale_skip(encoder, 2.2134)) <= 1e-10


def test_pre_norm_layer_norms_are_rms_norms_of_centred_writes() -> None:
    encoder = encoder_of(config_of("pre-norm"), stir=True)
    assert apart(encoder, exact.layer_to_rms(encoder)) <= 1e-10


def test_post_norm_layer_norms_are_not() -> None:
    """With gains the skip has no mean of 0 any more."""
    encoder = encoder_of(config_of("post-norm"), stir=True)
    centred = exact.centre_writes(encoder)
    config = config_of("post-norm", norm="rms")
    rms = transplant(centred, with_units(config, norm_out=NormConfig(kind="rms", eps=1e-12, bias=False)))
    assert apart(encoder, rms) > 1e-2


@pytest.mark.parametrize("rewrite", [exact.centre_writes, exact.fold_norms, lambda e: exact.scale_skip(e, 2.0)])
def test_a_rewriting_refuses_what_it_does_not_fit(rewrite: Any) -> None:
    with pytest.raises(AddnormError, match="post-norm"):
        rewrite(encoder_of(config_of("pre-norm")))
