"""Low-rank updates for tasks: merged they give what the twin gives with the updated matrices."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import addnorm
from addnorm.errors import AddnormError
from addnorm.files import read_object
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against
from tests.twins import float64_throughout, random_ids, save_twin

TASKS = ["retrieval.query", "separation", "text-matching"]
RANK, ALPHA = 2, 3
SCALE = ALPHA / RANK


def drawn(*shape: int) -> Tensor:
    return 0.3 * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def updated(folder: Path, deltas: dict[str, Tensor]) -> nn.Module:
    """The twin of a folder whose matrices have been changed by hand."""
    from transformers import AutoModel

    weights = load_file(folder / "model.safetensors")
    changed = folder.parent / "changed"
    shutil.copytree(folder, changed)
    save_file({n: t + deltas.get(n, torch.zeros(())) for n, t in weights.items()}, changed / "model.safetensors")
    model = AutoModel.from_pretrained(changed, attn_implementation="eager", dtype=torch.float64).eval()
    forward = model.forward

    def exactly(*args: Any, **kwargs: Any) -> Any:
        with float64_throughout():
            return forward(*args, **kwargs)

    model.forward = exactly
    return model


def assert_same(model: addnorm.Model, twin: nn.Module) -> None:
    ids = random_ids(17, 61)
    assert against(model, twin, Tokens(ids, [0] * len(ids), len(ids))).first_above(1e-9) is None


@pytest.fixture
def plain(tmp_path: Path) -> tuple[nn.Module, Path]:
    return save_twin("jina_embeddings_v3", tmp_path / "plain"), tmp_path / "plain"


@pytest.fixture
def published(plain: tuple[nn.Module, Path]) -> tuple[Path, Path, dict[str, dict[str, Tensor]]]:
    """The layout of jinaai/jina-embeddings-v3: config and names of its own code, the updates in the weights."""
    folder = plain[1].parent / "published"
    folder.mkdir()
    tensors: dict[str, Tensor] = {}
    deltas: dict[str, dict[str, Tensor]] = {task: {} for task in TASKS}
    for name, tensor in load_file(plain[1] / "model.safetensors").items():
        module, _, leaf = name.rpartition(".")
        if tensor.ndim == 1:
            tensors[f"roberta.{name}"] = tensor
            continue
        rows, columns = tensor.shape
        stem = f"roberta.{module}.parametrizations.{leaf}"
        embedding = module.startswith("embeddings.")
        a = drawn(3, rows, RANK) if embedding else drawn(3, RANK, columns)
        b = drawn(3, RANK, columns) if embedding else drawn(3, rows, RANK)
        tensors |= {f"{stem}.original": tensor, f"{stem}.0.lora_A": a, f"{stem}.0.lora_B": b}
        for i, task in enumerate(TASKS):
            deltas[task][name] = (a[i] @ b[i] if embedding else b[i] @ a[i]) * SCALE
    save_file(tensors, folder / "model.safetensors")
    config = read_object(plain[1] / "config.json")
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaModel"],
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        "position_embedding_type": "rotary",
        "rotary_emb_base": theta,
        "use_flash_attn": True,
        "emb_pooler": None,
        "matryoshka_dimensions": [32, 36],
        "load_trained_adapters": True,
        "lora_adaptations": TASKS,
        "lora_alpha": ALPHA,
        "lora_rank": RANK,
        "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False,
        "task_instructions": {"retrieval.query": "query: ", "separation": "", "text-matching": ""},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder, plain[1], deltas


def test_without_a_task_the_matrices_are_the_files(published: Any, plain: Any, tmp_path: Path) -> None:
    model = addnorm.load(published[0], dtype=torch.float64)
    assert_same(model, plain[0])
    model.save(tmp_path / "again")
    before, after = (load_file(path / "model.safetensors") for path in (published[0], tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert read_object(tmp_path / "again" / "config.json") == read_object(published[0] / "config.json")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_merged(published: Any, tmp_path: Path, task: str) -> None:
    folder, plain, deltas = published
    model = addnorm.load(folder, dtype=torch.float64, task=task)
    twin = updated(plain, deltas[task])
    assert_same(model, twin)
    assert model.settings.prompt == ("query: " if task == "retrieval.query" else "")
    model.save(tmp_path / "merged")
    again = addnorm.load(tmp_path / "merged", dtype=torch.float64)
    assert again.config == model.config
    assert_same(again, twin)
    assert not any("lora" in name for name in load_file(tmp_path / "merged" / "model.safetensors"))


@pytest.mark.parametrize("fused", [True, False])
def test_a_peft_folder_is_merged(plain: tuple[nn.Module, Path], fused: bool) -> None:
    """The layout of jinaai/jina-embeddings-v3-hf: a folder a task, modules named as in the file or in the twin."""
    folder = plain[1]
    place = folder / "retrieval_query"
    place.mkdir()
    factors, deltas = {}, {}
    for i in range(3):
        own = {"Wqkv": (108, 36)} if fused else {f"{name}_proj": (36, 36) for name in "qkv"}
        parts = []
        for name, (rows, columns) in own.items():
            stem = f"layers.{i}.self_attn.{name}" if not fused else f"encoder.layers.{i}.mixer.{name}"
            a, b = drawn(RANK, columns + i), drawn(rows, RANK)
            a = a[:, :columns].contiguous()
            factors |= {f"base_model.model.{stem}.lora_A.weight": a, f"base_model.model.{stem}.lora_B.weight": b}
            parts.append(b @ a * SCALE)
        deltas[f"encoder.layers.{i}.mixer.Wqkv.weight"] = torch.cat(parts)
    a, b = drawn(RANK, 61), drawn(36, RANK)
    stem = "base_model.model.embeddings.word_embeddings"
    factors |= {f"{stem}.lora_embedding_A": a, f"{stem}.lora_embedding_B": b}
    deltas["embeddings.word_embeddings.weight"] = (b @ a).T * SCALE
    save_file(factors, place / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "use_dora": False}
    (place / "adapter_config.json").write_text(json.dumps(settings))
    model = addnorm.load(folder, dtype=torch.float64, task="retrieval.query")
    shutil.rmtree(place)
    assert_same(model, updated(folder, deltas))
    with pytest.raises(AddnormError, match="merged on loading"):
        addnorm.compare(model, [1, 2, 3])


def test_what_cannot_be_merged_is_refused_by_name(published: Any, plain: tuple[nn.Module, Path]) -> None:
    with pytest.raises(
        AddnormError, match=r"task 'poetry' is unknown; the checkpoint has retrieval.query, separation"
    ):
        addnorm.load(published[0], task="poetry")
    with pytest.raises(AddnormError, match="no update for task 'poetry'"):
        addnorm.load(plain[1], task="poetry")
    place = plain[1] / "poetry"
    place.mkdir()
    save_file({"base_model.model.pooler.dense.bias": drawn(36)}, place / "adapter_model.safetensors")
    settings: dict[str, Any] = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
    for changes, complaint in (({"use_dora": True}, "'use_dora' is True"), ({}, "pooler.dense.bias")):
        (place / "adapter_config.json").write_text(json.dumps(settings | changes))
        with pytest.raises(AddnormError, match=complaint):
            addnorm.load(plain[1], task="poetry")
    with pytest.raises(AddnormError, match="only with code of its authors"):
        addnorm.compare(addnorm.load(published[0]), [1, 2, 3])
