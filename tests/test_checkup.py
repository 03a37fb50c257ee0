"""The check-up says what a checkpoint is, and where one that fails does so."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import addnorm
from addnorm import checkup
from addnorm.nn.addnorm import Add
from tests.twins import save_twin

NAMES = ["found", "config fields", "weights file", "loads", "tensors", "dtype", "positions", "maximum length"]
NAMES += ["tokenizer", "pooling", "final norm", "windows", "packed = alone", "add = α·x + branch", "twin"]


def statuses(result: checkup.CheckUp) -> dict[str, str]:
    return {check.name: check.status for check in result.checks}


def last(folder: Path) -> checkup.Check:
    result = addnorm.check(folder)
    assert result.wrong
    return result.checks[-1]


def test_minilm_can_be_trusted() -> None:
    result = addnorm.check("sentence-transformers/all-MiniLM-L6-v2")
    assert [check.name for check in result.checks] == NAMES
    found = statuses(result)
    # Its files do state two lengths: 512 positions, 256 tokens for sentences.
    assert {name for name, status in found.items() if status == "warning"} == {"maximum length"}
    assert {name for name, status in found.items() if status == "skipped"} == {"windows"}
    assert not result.wrong
    assert json.loads(json.dumps(result.to_dict()))["checks"][0]["name"] == "found"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_twin("bert", tmp_path / "model")
    return tmp_path / "model"


def test_a_bare_folder_is_warned_of(folder: Path) -> None:
    found = statuses(addnorm.check(folder))
    assert found["tokenizer"] == found["pooling"] == "warning"
    assert found["twin"] == "ok"


def test_a_folder_that_fails_says_where(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert last(folder).name == "weights file"
    (folder / "model.safetensors").write_bytes(weights)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_window": 3}))
    assert last(folder).name == "config fields"
    assert "attention_window" in last(folder).figure
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    assert last(folder).name == "loads"
    assert "blocks.3" in last(folder).figure
    shutil.rmtree(folder)
    assert last(folder).name == "found"


def test_a_foreign_tokenizer_is_wrong(folder: Path, minilm: addnorm.Model) -> None:
    assert minilm.origin is not None
    assert minilm.origin.folder is not None
    shutil.copy(minilm.origin.folder / "tokenizer.json", folder)
    result = addnorm.check(folder)
    assert statuses(result)["tokenizer"] == "wrong"
    assert result.wrong


def test_a_broken_residual_sum_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(self: Add, x: Tensor, branch: Tensor) -> Tensor:
        return 1.001 * self.alpha(x) + branch

    monkeypatch.setattr(Add, "forward", off)
    found = statuses(addnorm.check(folder))
    assert found["add = α·x + branch"] == found["twin"] == "wrong"


def test_a_batch_that_changes_its_texts_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = addnorm.load(folder)
    assert checkup._packed(model).status == "ok"
    monkeypatch.setattr(addnorm.Batch, "ungroup", property(lambda self: torch.arange(len(self.ids)).flip(0)))
    assert checkup._packed(model).status == "wrong"


def test_a_pre_norm_encoder_needs_its_final_norm() -> None:
    config = addnorm.EncoderConfig.transformer_base_prenorm(vocabulary=20, max_positions=8)
    assert checkup._final_norm(addnorm.Model(config)).status == "ok"
    assert checkup._final_norm(addnorm.Model(config.replace(norm=None))).status == "wrong"
    post = addnorm.EncoderConfig.transformer_base(vocabulary=20, max_positions=8)
    assert checkup._final_norm(addnorm.Model(post)).status == "ok"
    assert checkup._final_norm(addnorm.Model(post.replace(norm=config.norm))).status == "warning"


def test_an_encoder_without_positions_is_wrong() -> None:
    config = addnorm.EncoderConfig.transformer_base(vocabulary=20, max_positions=8)
    bare = config.replace(embeddings=config.embeddings.replace(positions=None))
    assert checkup._positions(addnorm.Model(config)).status == "ok"
    assert checkup._positions(addnorm.Model(bare)).status == "wrong"
