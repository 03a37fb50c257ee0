"""The command line in this process, and tiny models to point it at."""

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from addnorm.cli import main
from tests.nn.drawn import perturb

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    "this",
    "is",
    "test",
    "sentence",
]
VOCABULARY = [*WORDS, *(f"[unused{i}]" for i in range(40 - len(WORDS)))]


@dataclass(frozen=True)
class Result:
    """What a command left: its exit status and both streams."""

    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `addnorm …` and give back what a shell would see."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["addnorm", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT saved by transformers, with a vocabulary. Not to be changed by a test."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=16,
    )
    twin = BertModel(config)
    perturb(twin)
    folder = tmp_path_factory.mktemp("tiny")
    twin.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be broken."""
    return shutil.copytree(tiny, tmp_path / "model")
