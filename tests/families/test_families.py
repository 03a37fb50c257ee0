"""Registering a family enrols it here: sites, round trip, packed = alone, gradients."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import addnorm
from addnorm.batch import Batch
from addnorm.families import FAMILIES
from addnorm.files import read_object
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against
from addnorm.trace.rebuild import check_block
from tests.families.oracles import ORACLES
from tests.twins import Twin, build_twin, random_ids

LENGTHS = (1, 2, 7, 63, 200)


# Those that transformers does not have are in test_oracles.py.
TWINNED = {name: family for name, family in sorted(FAMILIES.items()) if name not in ORACLES}
KINDS = [(name, kind) for name, family in TWINNED.items() for kind in ("AutoModel", *family.heads)]


@pytest.fixture(scope="module", params=KINDS, ids=[f"{name}-{kind}" for name, kind in KINDS])
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    family, architecture = request.param
    return build_twin(family, tmp_path_factory.mktemp(family), architecture)


def result_of(twin: nn.Module, ids: list[int]) -> Tensor:
    """What a transformers model is for: the last state, or its head's logits, (T, outputs) or (outputs)."""
    output = twin(input_ids=torch.tensor([ids]))
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if hasattr(output, name):
            return getattr(output, name)[0]
    return torch.stack((output.start_logits[0], output.end_logits[0]), dim=-1)


def test_logits_equal_the_twins(twin: Twin) -> None:
    for ids in texts_of(twin) if twin.ours.config.head else ():
        logits = twin.ours.trace(ids, sites="head.logits")["head.logits"]
        assert (logits - result_of(twin.hf, ids).reshape(logits.shape)).abs().max() <= 1e-9


def texts_of(twin: Twin) -> list[list[int]]:
    vocabulary = twin.ours.config.embeddings.vocabulary
    limit = twin.ours.max_positions or max(LENGTHS)
    return [random_ids(min(length, limit), vocabulary) for length in LENGTHS]


@pytest.mark.parametrize("index", range(len(LENGTHS)))
def test_every_site_equals_the_twins(twin: Twin, index: int) -> None:
    ids = texts_of(twin)[index]
    comparison = against(twin.ours, twin.hf, Tokens(ids, [0] * len(ids), len(ids)))
    assert comparison.first_above(1e-9) is None
    sites = {row.site for row in comparison.differences}
    depth = len(twin.ours.config.blocks)
    assert {f"blocks.{i}" for i in range(depth)} <= sites
    assert {f"blocks.{i}.attention.weights" for i in range(depth)} <= sites


def test_token_types_reach_the_twin(twin: Twin) -> None:
    if not twin.ours.config.embeddings.types:
        return
    ids = texts_of(twin)[2]
    types = [0, 0, 0, 1, 1, 1, 1]
    assert against(twin.ours, twin.hf, Tokens(ids, types, len(ids))).first_above(1e-9) is None


def test_saving_gives_the_same_bytes(twin: Twin, tmp_path: Path) -> None:
    twin.ours.save(tmp_path / "again")
    before, after = load_file(twin.folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        # The model was saved in float64 and is held in float64, so equality is of bits.
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor, after[name]), name
    assert read_object(twin.folder / "config.json") == read_object(tmp_path / "again" / "config.json")


def test_config_goes_to_hf_and_back(twin: Twin, tmp_path: Path) -> None:
    """A fresh model of the same config, saved by us, is one that transformers and we read alike."""
    fresh = addnorm.Model(twin.ours.config)
    fresh.save(tmp_path / "fresh")
    assert addnorm.load(tmp_path / "fresh").config == twin.ours.config


def test_every_block_is_rebuilt_by_the_equations(twin: Twin) -> None:
    trace = twin.ours.trace(texts_of(twin)[3])
    for i in range(len(twin.ours.config.blocks)):
        differences = check_block(twin.ours.encoder, trace, i)
        assert len(differences) >= 12
        assert max(differences.values()) <= 1e-9


def test_packed_equals_alone(twin: Twin) -> None:
    texts = texts_of(twin)
    together = twin.ours.trace(texts)
    for i, ids in enumerate(texts):
        alone = twin.ours.trace(ids)
        for site in alone.sites:
            torch.testing.assert_close(together[i][site], alone[site], rtol=0, atol=1e-10)


def test_gradients_equal_the_twins(twin: Twin) -> None:
    """Of one scalar: the stream, or the logits where there is a head, weighed at random."""
    ids = texts_of(twin)[2]
    ours, theirs = twin.ours.encoder, twin.hf
    batch = Batch.pack([ids])
    ours.zero_grad()
    stream = ours(batch)
    logits = ours.read(stream, batch)
    mine = stream if logits is None else logits
    weight = torch.randn(mine.shape, dtype=torch.float64)
    (mine * weight).sum().backward()
    theirs.zero_grad()
    (result_of(theirs, ids).reshape(mine.shape) * weight).sum().backward()
    expected = dict(theirs.named_parameters(remove_duplicate=False))
    # transformers writes some families' norms under their names of old.
    old = {"weight": "gamma", "bias": "beta"}
    expected |= {f"{name.rpartition('.')[0]}.{old.get(name.rpartition('.')[2])}": p for name, p in expected.items()}
    origin = twin.ours.origin
    assert origin is not None
    parameters = {name.replace(".sublayer.", "."): p for name, p in ours.named_parameters()}
    plan, family = origin.plan, origin.family
    if family.twin is not None:  # transformers renames while loading
        shapes = {name: p.shape for name, p in parameters.items()}
        names = [name for name, _ in theirs.named_parameters(remove_duplicate=False)]
        plan = replace(family, modules=family.twin).plan(ours.config, origin.hf, shapes, names)
    checked = 0
    for entry in plan:
        found = [parameters[mine].grad for mine in entry.ours]
        if not entry.carried and any(gradient is None for gradient in found):
            assert all(expected[reference].grad is None for reference in entry.files), entry.files
            continue
        # A gradient is laid out in the file as its parameter is.
        for reference, gradient in zip(entry.files, entry.save(found) if found else [], strict=False):
            wanted = expected[reference].grad
            assert wanted is not None, reference
            assert (gradient - wanted).abs().max() <= 1e-9, reference
            checked += 1
    assert checked > 10
