"""Files as they are found in the wild, and files that must be refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import addnorm
from tests.twins import random_ids, save_twin

IDS = random_ids(7, 61)
Tensors = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_twin("bert", tmp_path / "model")
    return tmp_path / "model"


def state(folder: Path) -> Tensor:
    return addnorm.load(folder, dtype=torch.float64).trace(IDS)["blocks.2"]


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def prefixed(tensors: Tensors) -> Tensors:
    return {f"bert.{name}": tensor for name, tensor in tensors.items()}


def legacy(tensors: Tensors) -> Tensors:
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    return {old(name): tensor for name, tensor in tensors.items()}


def with_position_ids(tensors: Tensors) -> Tensors:
    return tensors | {"embeddings.position_ids": torch.arange(208)[None]}


def with_head(tensors: Tensors) -> Tensors:
    return prefixed(tensors) | {"cls.predictions.bias": torch.randn(61), "cls.seq_relationship.bias": torch.randn(2)}


def half(tensors: Tensors) -> Tensors:
    return {name: tensor.to(torch.float16) for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [prefixed, legacy, with_position_ids, with_head, half])
def test_a_file_in_the_wild_loads_and_is_written_back_bit_for_bit(
    folder: Path, tmp_path: Path, change: Callable[[Tensors], Tensors]
) -> None:
    expected = state(folder)
    rewrite(folder, change)
    model = addnorm.load(folder, dtype=torch.float64)
    # Where a tensor lies in a file decides its alignment, and that the order in which a product is summed.
    tolerance = 0.05 if change is half else 1e-12
    assert (model.trace(IDS)["blocks.2"] - expected).abs().max() <= tolerance
    model.save(tmp_path / "again")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(before[name].dtype == after[name].dtype for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_shards_and_weights_only_files_load_alike(folder: Path, tmp_path: Path) -> None:
    expected = state(folder)
    tensors = load_file(folder / "model.safetensors")
    config = (folder / "config.json").read_text()
    for kind in ("shards", "bin"):
        target = tmp_path / kind
        target.mkdir()
        (target / "config.json").write_text(config)
        if kind == "bin":
            torch.save(tensors, target / "pytorch_model.bin")
        else:
            names = sorted(tensors)
            parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
            for part, held in parts.items():
                save_file({name: tensors[name] for name in held}, target / part)
            weight_map = {name: part for part, held in parts.items() for name in held}
            (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        assert (state(target) - expected).abs().max() <= 1e-12


def test_loading_does_not_change_the_file_when_weights_are_trained(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    model = addnorm.load(folder, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.zero_()
    assert (folder / "model.safetensors").read_bytes() == before


class Code:
    """Pickles into a call: what a weights-only file must not hold."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return print, ("ran",)


def test_a_pickle_that_carries_code_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Code()}, folder / "pytorch_model.bin")
    with pytest.raises(addnorm.AddnormError, match=r"pytorch_model.bin"):
        addnorm.load(folder)
    assert "ran" not in capsys.readouterr().out


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def changed(name: str, function: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: function(tensors[name]).contiguous()}


def poison(tensor: Tensor) -> Tensor:
    poisoned = tensor.clone()
    poisoned.view(-1)[3] = float("nan")
    return poisoned


UP = "encoder.layer.1.intermediate.dense.weight"
REFUSED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "missing": (without(UP), rf"'{UP}' for blocks.1.feedforward.up.weight is missing \(1 parameter not filled\)"),
    "extra": (lambda t: t | {"encoder.layer.3.x": torch.zeros(2)}, r"'encoder.layer.3.x' is not part of a bert"),
    "shape": (changed(UP, lambda t: t[:-1]), rf"'{UP}' has shape \(51, 36\), but the config asks for \(52, 36\)"),
    "nan": (changed(UP, poison), rf"'{UP}' contains NaN or infinity"),
    "infinity": (changed(UP, lambda t: t / 0), rf"'{UP}' contains NaN or infinity"),
    "twice": (lambda t: t | {f"bert.{UP}": torch.zeros(2)}, f"both stand for {UP}; keep one"),
    "buffer": (lambda t: t | {"embeddings.position_ids": torch.zeros(1, 208)}, "'embeddings.position_ids' differs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_tensor_is_refused_by_name(folder: Path, case: str) -> None:
    change, message = REFUSED[case]
    rewrite(folder, change)
    with pytest.raises(addnorm.AddnormError, match=message):
        addnorm.load(folder)


CONFIGS = {
    "position_embedding_type": ("relative_key_query", "'position_embedding_type' is 'relative_key_query'"),
    "is_decoder": (True, "'is_decoder' is True; family bert computes only False"),
    "attention_window": (64, r"field 'attention_window' \(64\) is unknown to family bert"),
    "hidden_act": ("quick_gelu", "'hidden_act' is 'quick_gelu'; understood: gelu"),
    "num_hidden_layers": ("3", "the number of blocks is '3'"),
    "num_attention_heads": (5, "'hidden_size' is 36, 'num_attention_heads' 5"),
    "layer_norm_eps": ("small", "is 'small'; expected float"),
    "model_type": ("bertram", "model_type 'bertram' is not supported; known families: "),
    "quantization_config": ({"bits": 4}, "field 'quantization_config'"),
}


@pytest.mark.parametrize("field", CONFIGS)
def test_a_config_that_is_not_understood_is_refused_by_name(folder: Path, field: str) -> None:
    value, message = CONFIGS[field]
    edit_config(folder, **{field: value})
    with pytest.raises(addnorm.AddnormError, match=message):
        addnorm.load(folder)


def test_a_shard_outside_the_folder_is_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    names = load_file(folder.parent / "outside.safetensors")
    index = {"weight_map": dict.fromkeys(names, "../outside.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(addnorm.AddnormError, match="lacks the shard"):
        addnorm.load(folder)
