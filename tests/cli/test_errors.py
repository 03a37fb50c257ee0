"""Whatever is wrong with a model: one line that names it, status 1, no traceback."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cli.conftest import Cli, Result

Break = Callable[[Path], object]


def in_one_line(result: Result, *named: str) -> None:
    assert (result.status, result.out) == (1, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    for name in named:
        assert name in line, line


def config(**changes: Any) -> Break:
    """Change entries of config.json; None takes one out."""

    def apply(folder: Path) -> None:
        path = folder / "config.json"
        data = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))

    return apply


def content(name: str, text: str | bytes) -> Break:
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Break:
    def apply(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def cut(share: float) -> Break:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return apply


def shards(weight_map: Any) -> Break:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return apply


QUERY = "encoder.layer.1.attention.self.query.weight"
BROKEN: dict[str, tuple[Break, tuple[str, ...]]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), ("no config.json",)),
    "config is no JSON": (content("config.json", "{"), ("config.json", "not valid JSON")),
    "config is empty": (content("config.json", ""), ("config.json", "not valid JSON")),
    "config is no object": (content("config.json", "[1]"), ("config.json", "expected a JSON object")),
    "config is no text": (content("config.json", b"\xff\xfe{}"), ("config.json", "not valid JSON")),
    "config is a folder": (
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
        ("config.json", "cannot be read"),
    ),
    "no model_type": (config(model_type=None), ("model_type", "bert")),
    "unknown model_type": (config(model_type="gpt2"), ("model_type", "'gpt2'", "bert")),
    "model_type is a list": (config(model_type=["bert"]), ("model_type",)),
    "unknown field": (config(use_magic=True), ("use_magic", "bert")),
    "unknown position type": (config(position_embedding_type="relative_key"), ("position_embedding_type",)),
    "unknown activation": (config(hidden_act="mish"), ("hidden_act", "'mish'")),
    "activation is a list": (config(hidden_act=["gelu"]), ("hidden_act",)),
    "decoder": (config(is_decoder=True), ("is_decoder",)),
    "width is text": (config(hidden_size="12"), ("hidden_size",)),
    "heads do not divide": (config(num_attention_heads=5), ("num_attention_heads", "5")),
    "heads are 0": (config(num_attention_heads=0), ("num_attention_heads", "0")),
    "depth is text": (config(num_hidden_layers="2"), ("'2'", "blocks")),
    "dropout is text": (config(hidden_dropout_prob="0.1"), ("dropout", "'0.1'")),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ("no weights", "model.safetensors")),
    "weights are empty": (content("model.safetensors", b""), ("model.safetensors", "damaged")),
    "weights are cut at the header": (cut(0.01), ("model.safetensors", "damaged")),
    "weights are cut in the middle": (cut(0.6), ("model.safetensors", "damaged")),
    "weights are text": (
        content("model.safetensors", "version https://git-lfs\n" * 9),
        ("model.safetensors", "damaged"),
    ),
    "missing shard": (shards({QUERY: "model-00001-of-00002.safetensors"}), ("model-00001-of-00002.safetensors",)),
    "shard elsewhere": (shards({QUERY: "../model.safetensors"}), ("../model.safetensors",)),
    "shards are no table": (shards([QUERY]), ("model.safetensors.index.json",)),
    "shard is a number": (shards({QUERY: 3}), ("model.safetensors.index.json",)),
    "missing tensor": (tensors(lambda held: held.pop(QUERY)), (QUERY, "missing", "1 parameter")),
    "extra tensor": (tensors(lambda held: held.update(more=torch.ones(2))), ("'more'", "not part of", "1 tensor")),
    "block too many": (config(num_hidden_layers=1), ("encoder.layer.1", "not part of")),
    "block too few": (config(num_hidden_layers=3), ("encoder.layer.2", "missing")),
    "wrong shape": (tensors(lambda held: held.update({QUERY: torch.ones(12, 7)})), (QUERY, "(12, 7)", "(12, 12)")),
    "wrong vocabulary": (config(vocab_size=41), ("word_embeddings", "(40, 12)", "(41, 12)")),
    "NaN": (tensors(lambda held: held[QUERY][3].fill_(float("nan"))), (QUERY, "NaN")),
    "infinity": (tensors(lambda held: held[QUERY][3, 4].fill_(float("inf"))), (QUERY, "infinity")),
    "infinities that cancel": (
        tensors(lambda held: held[QUERY][0, :2].copy_(torch.tensor([float("inf"), float("-inf")]))),
        (QUERY, "infinity"),
    ),
    "vocabulary without [CLS]": (content("vocab.txt", "a\nb\n[UNK]\n[SEP]\n"), ("vocab.txt", "[CLS]")),
    "tokenizer is no JSON": (content("tokenizer.json", "{"), ("tokenizer",)),
    "tokenizer is another JSON": (content("tokenizer.json", '{\n"model":\n3}'), ("tokenizer",)),
    "modules are no JSON": (content("modules.json", "["), ("modules.json",)),
    "modules are no list": (content("modules.json", '{"a": 1}'), ("modules.json",)),
    "module without type": (content("modules.json", '[{"path": ""}]'), ("modules.json",)),
    "unknown module": (
        content("modules.json", '[{"type": "x.WordWeights", "path": "2_WordWeights"}]'),
        ("modules.json", "'WordWeights'"),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder(cli: Cli, copy: Path, case: str) -> None:
    apply, named = BROKEN[case]
    apply(copy)
    before = sorted(path.name for path in copy.iterdir())
    in_one_line(cli("trace", "a test", "--model", copy), *named)
    assert sorted(path.name for path in copy.iterdir()) == before


def test_a_weights_file_that_asks_for_code_is_refused(cli: Cli, copy: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("executed",))

    (copy / "model.safetensors").unlink()
    torch.save({"a": Evil()}, copy / "pytorch_model.bin")
    in_one_line(cli("info", copy), "pytorch_model.bin")


def test_a_whole_folder_is_no_error(cli: Cli, copy: Path) -> None:
    assert cli("trace", "a test", "--model", copy).status == 0


@pytest.mark.parametrize(
    "name",
    ["./nowhere", "../nowhere", "/nowhere/at/all", "~/nowhere", "~nobody-of-that-name/x", "a/b/c", "nowhere" * 60],
)
def test_no_folder_of_that_name(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    in_one_line(cli("info", name), name)


@pytest.mark.parametrize(
    "name", ["no-such-model-here", "nobody-of-that-name/no-such-model", "with space/model", "a\tb"]
)
def test_no_model_of_that_name(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    in_one_line(cli("info", name), name)


def test_a_file_is_no_folder(cli: Cli, copy: Path) -> None:
    in_one_line(cli("info", copy / "config.json"), "config.json", "is a file")


def test_a_model_without_tokenizer_takes_no_text(cli: Cli, copy: Path) -> None:
    (copy / "vocab.txt").unlink()
    for path in copy.glob("tokenizer*"):
        path.unlink()
    in_one_line(cli("trace", "a test", "--model", copy), str(copy), "no tokenizer files")


def test_an_error_as_a_shell_sees_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "addnorm", "info", str(tmp_path / "nowhere")]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    in_one_line(Result(result.returncode, result.stdout, result.stderr), "nowhere")
