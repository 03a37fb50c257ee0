"""Tiny random task models with a real tokenizer, and the same in transformers."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast, pipeline

import addnorm
from tests.texts import docstrings
from tests.twins import build_twin

# Positions of the tiny models: BERT's, and RoBERTa's that begin at 2.
POSITIONS = 120
SMALL = {"num_hidden_layers": 2, "intermediate_size": 28}


@dataclass(frozen=True)
class TaskTwin:
    """Our model, the reference with the same weights in float64, its tokenizer, and their folder."""

    ours: addnorm.Model
    hf: nn.Module
    tokenizer: Any
    folder: Path

    def pipeline(self, task: str, **settings: Any) -> Any:
        return pipeline(task, model=self.hf, tokenizer=self.tokenizer, device="cpu", **settings)


def build(family: str, task: str, folder: Path, **changes: Any) -> TaskTwin:
    """A model for a task, `MaskedLM` or `TokenClassification` …, with labels by name in `labels`."""
    vocabulary = write_tokenizer(family, folder)
    labels = changes.pop("labels", None)
    named = {"id2label": dict(enumerate(labels)), "label2id": {v: i for i, v in enumerate(labels)}} if labels else {}
    if family == "bert":
        sizes = {"hidden_size": 24, "max_position_embeddings": POSITIONS}
        stem = "Bert"
    else:
        sizes = {"hidden_size": 24, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
        stem = "Roberta"
    sizes["vocab_size"] = vocabulary
    twin = build_twin(family, folder, f"{stem}For{task}", **sizes, **SMALL, **named, **changes)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = POSITIONS
    return TaskTwin(twin.ours, twin.hf, tokenizer, folder)


def write_tokenizer(family: str, folder: Path) -> int:
    """MiniLM's WordPiece, or a byte-level BPE as RoBERTa's, trained on the spot; gives its size."""
    folder.mkdir(exist_ok=True, parents=True)
    if family == "bert":
        origin = addnorm.load().origin
        assert origin is not None
        assert origin.folder is not None
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            shutil.copy(origin.folder / name, folder)
        return 30522
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(docstrings(100), trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    roles = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>"}
    named = {f"{role}_token": token for role, token in roles.items()} | {"mask_token": special[-1]}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)
    return backend.get_vocab_size()


NEAR = 1e-6
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SENTENCES = [
    "Zoë Müller lives in São Tomé, near Château-d'Œx; Ben doesn't.",
    "Unaffable embeddings tokenization internationalisation",
    "你好，世界。这是一个测试句子。",
    "😀 👩‍👩‍👧 emoji 🇨🇭",
    "ВЕЛИКИЙ и могучий русский язык",
    "tabs\tand\nnew\r\nlines",
    "  spaces   around  ",
    "word",
]
QUESTION = "Where does Zoë live?"
FAMILIES = ("bert", "roberta")
TEXTS = ["", *SENTENCES]


def same(ours: Any, theirs: Any, near: float = NEAR) -> None:
    """Equal, scores to `near`."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            same(value, theirs[key], near)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other, near)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=near)
    else:
        assert ours == theirs


def long(words: int) -> str:
    return " ".join(" ".join(docstrings(60)).split()[:words])
