"""What the task methods refuse, and places of tokens."""

from pathlib import Path
from typing import Any

import pytest

import addnorm
from addnorm import AddnormError
from addnorm.model import Model
from tests.tasks import TaskTwin
from tests.texts import VARIED

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")


def test_each_method_names_the_head_it_needs(minilm: Model, tagger: TaskTwin) -> None:
    calls: dict[str, tuple[Any, ...]] = {
        "fill_mask": ("a",),
        "classify": ("a",),
        "tag": ("a",),
        "answer": ("a", "b"),
        "rerank": ("a", ["b"]),
    }
    for method, arguments in calls.items():
        with pytest.raises(AddnormError, match=rf"^{method} needs a .* head .*; .* has no head .*\(BertModel\)"):
            getattr(minilm, method)(*arguments)
        if method != "tag":
            with pytest.raises(AddnormError, match=rf"{method} needs .* has a token classification head"):
                getattr(tagger.ours, method)(*arguments)


def test_numbers_too_small_are_refused(fill: TaskTwin, pairs: TaskTwin, reader: TaskTwin, ranker: TaskTwin) -> None:
    for call, says in (
        (lambda: fill.ours.fill_mask("a", top=0), "top is 0; give at least 1"),
        (lambda: pairs.ours.classify("a", top=-1), "top is -1; give at least 1"),
        (lambda: ranker.ours.rerank("a", ["b"], top=0), "top is 0; give at least 1"),
        (lambda: reader.ours.answer("a", "b", max_answer_tokens=0), "max_answer_tokens is 0; give at least 1"),
        (lambda: reader.ours.answer("a", "b", overlap=-1), "overlap is -1; give at least 0"),
    ):
        with pytest.raises(AddnormError, match=says):
            call()


def test_a_model_without_tokenizer_says_so(fill: TaskTwin) -> None:
    bare = Model(fill.ours.config, encoder=fill.ours.encoder)
    with pytest.raises(AddnormError, match="has no tokenizer files"):
        bare.fill_mask("a")


def test_a_tokenizer_without_mask_says_so(fill: TaskTwin, tmp_path: Path) -> None:
    fill.ours.save(tmp_path)
    for path in tmp_path.glob("*token*.json"):
        path.write_text(path.read_text().replace(fill.tokenizer.mask_token, "[BLANK]"))
    model = addnorm.load(tmp_path)
    assert model.tokenizer is not None
    if "mask" in model.tokenizer.special:
        assert len(model.fill_mask("a [BLANK] text")) == 5
    for path in tmp_path.glob("*token*.json"):
        if path.name != "tokenizer.json":
            path.unlink()
    with pytest.raises(AddnormError, match="has no mask token"):
        addnorm.load(tmp_path).fill_mask("a")


def test_places_are_those_of_the_text(pairs: TaskTwin) -> None:
    assert pairs.ours.tokenizer is not None
    for text in [text for text in VARIED if len(text) < 400]:
        for pair in (text, (text, "second"), ("first", text)):
            (placed,) = pairs.ours.tokenizer.place([pair])
            encoded = pairs.tokenizer([pair], return_offsets_mapping=True)
            assert placed.ids == encoded["input_ids"][0]
            assert placed.spans == [tuple(span) for span in encoded["offset_mapping"][0]]
            assert placed.words == encoded.word_ids(0)
            assert placed.texts == encoded.sequence_ids(0)
            if "token_type_ids" in encoded:
                assert placed.types == encoded["token_type_ids"][0]
