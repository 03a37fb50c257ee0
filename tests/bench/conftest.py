"""A tiny model that reads real text."""

import shutil
from pathlib import Path

import pytest

from addnorm.hub import DEFAULT_MODEL, locate
from tests.twins import save_twin


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with MiniLM's tokenizer and pooling. Not to be changed by a test."""
    folder = tmp_path_factory.mktemp("bench") / "tiny"
    shutil.copytree(locate(DEFAULT_MODEL), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_twin("bert", folder, vocab_size=30522)
    return folder
