"""A plausible mistake in any family is caught by the comparison with its twin."""

from pathlib import Path

import pytest

from addnorm.families import FAMILIES
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against
from tests.families.mutants import MUTANTS
from tests.families.oracles import ORACLES
from tests.twins import build_twin, random_ids


def test_every_family_has_a_mutant() -> None:
    assert MUTANTS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", sorted(MUTANTS.keys() - ORACLES.keys()))
def test_a_mutant_is_caught(family: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path)
    ids = random_ids(63, twin.ours.config.embeddings.vocabulary)
    tokens = Tokens(ids, [0] * len(ids), len(ids))
    assert against(twin.ours, twin.hf, tokens).first_above(1e-9) is None
    MUTANTS[family](twin.ours.encoder)
    assert against(twin.ours, twin.hf, tokens).first_above(1e-9) is not None
