"""Text to ids, as transformers does it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from addnorm import AddnormError, Model
from addnorm.tokenizer import Tokenizer
from tests.texts import VARIED, docstrings

TEXTS = [*VARIED, "[SEP]", "x[MASK]y [PAD] [UNK] [CLS]", "ﬁ ＡＢＣ ǅ", "don't U.S.A. e-mail", *docstrings(100)]


@pytest.fixture(scope="module")
def folder(minilm: Model) -> Path:
    assert minilm.origin is not None
    assert minilm.origin.folder is not None
    return minilm.origin.folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return read(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def read(folder: Path, **settings: bool) -> Tokenizer:
    made = Tokenizer.from_folder(folder, **settings)
    assert made is not None
    return made


def ids(tokenizer: Tokenizer, texts: list[str], limit: int | None = None) -> list[list[int]]:
    return [tokens.ids for tokens in tokenizer.encode(texts, limit)]


def test_ids_equal_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        expected = reference(text)
        assert tokens.ids == expected["input_ids"], text
        assert tokens.types == [0] * len(tokens.ids)
        assert tokens.full_length == len(tokens.ids)
        assert tokenizer.tokens(tokens.ids) == reference.convert_ids_to_tokens(tokens.ids)


@pytest.mark.parametrize("limit", [3, 4, 17, 256])
def test_cut_texts_equal_transformers(tokenizer: Tokenizer, reference: Any, limit: int) -> None:
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS, limit), strict=True):
        assert tokens.ids == reference(text, truncation=True, max_length=limit)["input_ids"], text
        assert tokenizer.tokens(tokens.ids)[:: len(tokens.ids) - 1] == ["[CLS]", "[SEP]"]
        assert tokens.full_length == len(reference(text)["input_ids"])
        assert len(tokens.types) == len(tokens.ids) <= limit


def test_the_vocabulary_alone_gives_the_same_ids(tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    assert ids(read(tmp_path), TEXTS) == ids(tokenizer, TEXTS)
    assert ids(read(tmp_path), TEXTS, 9) == ids(tokenizer, TEXTS, 9)
    (tmp_path / "tokenizer_config.json").unlink()
    assert ids(read(tmp_path), TEXTS) == ids(tokenizer, TEXTS)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_settings_beside_the_vocabulary(folder: Path, tmp_path: Path, settings: dict[str, bool]) -> None:
    shutil.copy(folder / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | settings))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS[:20], "Mixed CASE Ünïcödé 你好吗 word你好"]
    assert ids(read(tmp_path), texts) == [reference(text)["input_ids"] for text in texts]


def test_lowercase_comes_before_everything(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased, lowered = read(tmp_path), read(tmp_path, lowercase=True)
    assert ids(lowered, ["Some WORDS"]) == ids(cased, ["some words"]) != ids(cased, ["Some WORDS"])


def test_padding_and_truncation_of_the_file_are_not_used(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert data["padding"] or data["truncation"]
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    texts = ["one", "a longer text of several words"]
    assert ids(read(tmp_path), texts) == ids(tokenizer, texts)
    assert len(ids(tokenizer, texts)[0]) == 3


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([3], "text 0 is a int; expected str"),
        (["a", None], "text 1 is a NoneType; expected str"),
        (["a", ["b"]], "text 1 is a list; expected str"),
        ([b"bytes"], "text 0 is a bytes; expected str"),
        (["a", "half \ud83d"], "text 1 is not valid Unicode at character 5"),
        (["\udc00"], "text 0 is not valid Unicode at character 0"),
    ],
)
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, texts: Any, says: str) -> None:
    with pytest.raises(AddnormError, match=says):
        tokenizer.encode(texts)


@pytest.mark.parametrize("limit", [-1, 0, 1, 2])
def test_a_limit_needs_room_beside_special_tokens(tokenizer: Tokenizer, limit: int) -> None:
    with pytest.raises(AddnormError, match=f"max_tokens {limit} leaves no room beside 2 special tokens"):
        tokenizer.encode(["a"], limit)


@pytest.mark.parametrize("limit", [0, -5])
def test_a_model_takes_no_such_limit_either(minilm: Model, limit: int) -> None:
    with pytest.raises(AddnormError, match=f"max_tokens {limit} leaves no room"):
        minilm.encode("a", max_tokens=limit)


def test_no_files_no_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.from_folder(tmp_path) is None


def test_no_texts_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode([]) == []


@pytest.mark.parametrize("i", [30522, 99999, -1, 2**40])
def test_an_id_without_token_is_shown_as_its_number(tokenizer: Tokenizer, i: int) -> None:
    assert tokenizer.tokens([101, i]) == ["[CLS]", f"<{i}>"]
