"""Families without a twin in transformers: everything test_families.py asks, with a forward in NumPy as the twin."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import addnorm
from addnorm.batch import Batch
from addnorm.errors import AddnormError
from addnorm.families import FAMILIES
from addnorm.model import Model
from addnorm.tokenizer import Tokens
from tests.families.mutants import MUTANTS
from tests.families.oracles import HF, ORACLES, Oracle, Tensors, write
from tests.families.test_families import (  # noqa: F401 (they run here with the twin below)
    test_config_goes_to_hf_and_back,
    test_every_block_is_rebuilt_by_the_equations,
    test_packed_equals_alone,
    test_saving_gives_the_same_bytes,
    texts_of,
)
from tests.twins import Twin, random_ids

KINDS = [(name, kind) for name, oracle in ORACLES.items() for kind in (oracle.base, *oracle.heads)]


@dataclass(frozen=True)
class Written(Twin):
    """A checkpoint written by its oracle, and our reading of it."""

    oracle: Oracle
    config: HF
    tensors: Tensors


def build(family: str, folder: Path, architecture: str, **changes: object) -> Written:
    oracle = ORACLES[family]
    config, tensors = write(oracle, folder, architecture, **changes)
    return Written(nn.Identity(), folder, addnorm.load(folder, dtype=torch.float64), oracle, config, tensors)


@pytest.fixture(scope="module", params=KINDS, ids=[f"{name}-{kind}" for name, kind in KINDS])
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    family, architecture = request.param
    return build(family, tmp_path_factory.mktemp(family), architecture)


def differences(twin: Written, model: Model, ids: list[int], types: list[int] | None = None) -> dict[str, float]:
    types = types or [0] * len(ids)
    steps = twin.oracle.forward(twin.config, twin.tensors, ids, types)
    trace = model.trace(Tokens(ids, types, len(ids)))
    return {site: float(np.abs(step - trace[site].numpy()).max()) for site, step in steps.items()}


def test_every_oracle_has_all_heads_of_its_family() -> None:
    for name, oracle in ORACLES.items():
        assert oracle.heads.keys() == FAMILIES[name].heads.keys()


@pytest.mark.parametrize("index", range(5))
def test_every_site_equals_the_oracles(twin: Written, index: int) -> None:
    found = differences(twin, twin.ours, texts_of(twin)[index])
    assert max(found.values()) <= 1e-9
    assert ("head.logits" in found) == (twin.ours.config.head is not None)
    assert {f"blocks.{i}" for i in range(3)} <= found.keys()


def test_token_types_reach_the_oracle(twin: Written) -> None:
    if twin.ours.config.embeddings.types:
        found = differences(twin, twin.ours, texts_of(twin)[2], [0, 0, 1, 1, 1, 1, 1])
        assert max(found.values()) <= 1e-9


def test_gradients_follow_the_oracle(twin: Written) -> None:
    """Along a random direction of all parameters the oracle's difference quotient is what backward gives."""
    ids, rng = texts_of(twin)[2], np.random.default_rng(0)
    encoder, batch = twin.ours.encoder, Batch.pack([ids])
    encoder.zero_grad()
    stream = encoder(batch)
    logits = encoder.read(stream, batch)
    value = stream if logits is None else logits
    site = "head.logits" if logits is not None else "norm" if twin.ours.config.norm else "blocks.2"
    weight = rng.standard_normal(value.shape)
    (value * torch.from_numpy(weight)).sum().backward()
    parameters = {name.replace(".sublayer.", "."): p for name, p in encoder.named_parameters()}
    assert twin.ours.origin is not None
    prefix = f"{twin.oracle.prefix}."
    directions, expected = {}, 0.0
    for entry in twin.ours.origin.plan:
        found = [parameters[name].grad for name in entry.ours]
        if found and all(gradient is not None for gradient in found):
            for file, gradient in zip(entry.files, entry.save(found), strict=True):
                name = file.removeprefix(prefix)
                directions[name] = rng.standard_normal(gradient.shape)
                expected += float((gradient.numpy() * directions[name]).sum())

    def at(step: float) -> float:
        moved = {n: t + step * directions[n] if n in directions else t for n, t in twin.tensors.items()}
        steps = twin.oracle.forward(twin.config, moved, ids, [0] * len(ids))
        return float((steps[site].reshape(weight.shape) * weight).sum())

    quotient = (at(1e-6) - at(-1e-6)) / 2e-6
    assert len(directions) > 10
    assert quotient == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("family", ORACLES)
def test_a_mutant_is_caught(family: str, tmp_path: Path) -> None:
    twin = build(family, tmp_path, ORACLES[family].base)
    ids = random_ids(63, 61)
    assert max(differences(twin, twin.ours, ids).values()) <= 1e-9
    MUTANTS[family](twin.ours.encoder)
    assert max(differences(twin, twin.ours, ids).values()) > 1e-9


def test_a_head_that_the_file_does_not_hold_is_none(tmp_path: Path) -> None:
    """As published: the config names the model with its head, the file is of the encoder alone."""
    write(ORACLES["jina_bert"], tmp_path, "JinaBertModel")
    text = (tmp_path / "config.json").read_text().replace('"JinaBertModel"', '"JinaBertForMaskedLM"')
    (tmp_path / "config.json").write_text(text)
    model = addnorm.load(tmp_path)
    assert model.config.head is None
    assert model.encoder.pooler is not None


def test_rectified_gates(tmp_path: Path) -> None:
    twin = build("jina_bert", tmp_path, "JinaBertForMaskedLM", feed_forward_type="reglu")
    assert max(differences(twin, twin.ours, random_ids(7, 61)).values()) <= 1e-9


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        (
            "jina_bert",
            {"feed_forward_type": "original"},
            "'feed_forward_type' is 'original'; understood: geglu, reglu",
        ),
        ("jina_bert", {"position_embedding_type": "relative_key"}, "'position_embedding_type' is 'relative_key'"),
        ("neobert", {"dim_head": 13}, "'dim_head' is 13; family neobert computes only 12"),
        ("neobert", {"ngpt": True}, "field 'ngpt'"),
    ],
)
def test_another_computation_is_refused(family: str, changes: HF, says: str, tmp_path: Path) -> None:
    oracle = ORACLES[family]
    write(oracle, tmp_path, oracle.base)
    (tmp_path / "config.json").write_text(json.dumps({**oracle.config, **changes}))
    with pytest.raises(AddnormError, match=says):
        addnorm.load(tmp_path)


def test_normalised_queries_are_refused(tmp_path: Path) -> None:
    """jina-embeddings-v2-base-code and others call themselves the same but are of another make."""
    write(ORACLES["jina_bert"], tmp_path, "JinaBertModel")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.layer.0.attention.self.layer_norm_q.weight"] = torch.ones(36)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(AddnormError, match=r"'encoder.layer.0.attention.self.layer_norm_q.weight' is not part of"):
        addnorm.load(tmp_path)


def test_neobert_is_as_large_as_published() -> None:
    sizes = {"hidden_size": 768, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 3072}
    hf = ORACLES["neobert"].config | sizes | {"dim_head": 64, "vocab_size": 30522, "max_length": 4096}
    config = FAMILIES["neobert"].from_hf({**hf, "architectures": ["NeoBERTLMHead"]})
    assert config.num_params() == 245_136_954
    assert config.max_tokens == 4096
