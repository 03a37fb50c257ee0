"""`addnorm fill`, `classify`, `tag`, `answer`, `rerank`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig

import addnorm
from tests.cli.conftest import VOCABULARY, Cli
from tests.nn.drawn import perturb

MASKED = "this is a [MASK] sentence"


def save(folder: Path, task: str, **settings: Any) -> Path:
    """A tiny random BERT with the head of a task and a vocabulary."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = BertConfig(**sizes, intermediate_size=20, max_position_embeddings=24, **settings)
    twin = getattr(transformers, f"BertFor{task}")(config)
    perturb(twin)
    twin.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "fill": ("MaskedLM", {}),
        "classify": ("SequenceClassification", {"id2label": {0: "no", 1: "yes", 2: "[b]perhaps"}}),
        "tag": ("TokenClassification", {"id2label": {0: "O", 1: "B-X", 2: "B-Y"}}),
        "answer": ("QuestionAnswering", {}),
        "rerank": ("SequenceClassification", {"num_labels": 1}),
    }
    return {name: save(folder / name, task, **settings) for name, (task, settings) in kinds.items()}


ARGUMENTS = {
    "fill": (MASKED,),
    "classify": ("this is a test",),
    "tag": ("this is a test sentence",),
    "answer": ("is this a test", "this is a test sentence"),
    "rerank": ("test", "this is a test", "a b c", "sentence"),
}


def result_of(name: str, folder: Path) -> Any:
    """What Python gives for the same arguments."""
    model = addnorm.load(folder)
    first, *rest = ARGUMENTS[name]
    calls = {
        "fill": lambda: model.fill_mask(first),
        "classify": lambda: model.classify(first),
        "tag": lambda: model.tag(first),
        "answer": lambda: model.answer(first, rest[0]),
        "rerank": lambda: model.rerank(first, rest),
    }
    return calls[name]()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_json_is_what_python_gives(cli: Cli, models: dict[str, Path], name: str) -> None:
    result = cli(name, *ARGUMENTS[name], "--model", models[name], "--json")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out) == result_of(name, models[name])


@pytest.mark.parametrize("name", ARGUMENTS)
def test_tables_show_what_was_found(cli: Cli, models: dict[str, Path], name: str) -> None:
    result = cli(name, *ARGUMENTS[name], "--model", models[name])
    assert (result.status, result.err) == (0, "")
    found = result_of(name, models[name])
    for row in [found] if isinstance(found, dict) else found:
        shown = {key: value for key, value in row.items() if isinstance(value, str)}
        assert any(all(value in line for value in shown.values()) for line in result.out.splitlines()), row
        assert f"{row['score']:.4f}" in result.out
    assert "\x1b" not in result.out
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize("name", ["fill", "classify", "tag"])
def test_a_text_from_standard_input(cli: Cli, models: dict[str, Path], name: str) -> None:
    (text,) = ARGUMENTS[name]
    given = cli(name, text, "--model", models[name], "--json")
    piped = cli(name, "-", "--model", models[name], "--json", stdin=text.encode() + b"\n")
    assert (piped.status, piped.out) == (0, given.out)


def test_a_context_from_standard_input(cli: Cli, models: dict[str, Path]) -> None:
    question, context = ARGUMENTS["answer"]
    given = cli("answer", question, context, "--model", models["answer"], "--json")
    piped = cli("answer", question, "-", "--model", models["answer"], "--json", stdin=context.encode() + b"\n")
    assert (piped.status, piped.out) == (0, given.out)


def test_texts_from_standard_input_are_lines(cli: Cli, models: dict[str, Path]) -> None:
    query, *texts = ARGUMENTS["rerank"]
    given = cli("rerank", query, *texts, "--model", models["rerank"], "--json")
    lines = "\r\n".join(texts).encode() + b"\n"
    piped = cli("rerank", query, "-", "--model", models["rerank"], "--json", stdin=lines)
    assert (piped.status, piped.out) == (0, given.out)
    nothing = cli("rerank", query, "-", "--model", models["rerank"], "--json", stdin=b"")
    assert (nothing.status, json.loads(nothing.out)) == (0, [])


def test_several_masks_have_a_table_each(cli: Cli, models: dict[str, Path]) -> None:
    result = cli("fill", "[MASK] is [MASK]", "--model", models["fill"], "--top", "3")
    assert "Mask 1 of 2" in result.out
    assert "Mask 2 of 2" in result.out
    data = json.loads(cli("fill", "[MASK] is [MASK]", "--model", models["fill"], "--top", "3", "--json").out)
    assert [len(mask) for mask in data] == [3, 3]


def test_options_reach_the_model(cli: Cli, models: dict[str, Path]) -> None:
    pair = cli("classify", "this", "--pair", "test", "--top", "2", "--model", models["classify"], "--json")
    assert json.loads(pair.out) == addnorm.load(models["classify"]).classify(("this", "test"), top=2)
    simple = cli("tag", "this is a test", "--merge", "simple", "--model", models["tag"], "--json")
    assert json.loads(simple.out) == addnorm.load(models["tag"]).tag("this is a test", merge="simple")
    nothing = cli("answer", "is this", "a test", "--no-answer", "--model", models["answer"], "--json")
    assert json.loads(nothing.out) == addnorm.load(models["answer"]).answer("is this", "a test", no_answer=True)
    top = cli("rerank", "a", "b", "c", "d", "--top", "2", "--model", models["rerank"], "--json")
    assert json.loads(top.out) == addnorm.load(models["rerank"]).rerank("a", ["b", "c", "d"], top=2)


def test_no_answer_is_shown(cli: Cli, models: dict[str, Path], tmp_path: Path) -> None:
    model = addnorm.load(models["answer"])
    assert model.encoder.head is not None
    with torch.no_grad():
        stream = model.encoder(model.batch(model.place([("is this", "a test")])))
        model.encoder.head.logits.weight.copy_((stream[0] - stream[1:].mean(0)).expand(2, -1) * 9)
    model.save(tmp_path)
    assert json.loads(cli("answer", "is this", "a test", "--no-answer", "-m", tmp_path, "--json").out)["answer"] == ""
    assert "–" in cli("answer", "is this", "a test", "--no-answer", "-m", tmp_path).out


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_wrong_head_is_one_line(cli: Cli, models: dict[str, Path], name: str) -> None:
    other = "tag" if name != "tag" else "fill"
    has = "token classification" if other == "tag" else "masked language model"
    result = cli(name, *ARGUMENTS[name], "--model", models[other])
    assert (result.status, result.out) == (1, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert f"has a {has} head" in line


def test_what_cannot_be_done_is_one_line(cli: Cli, models: dict[str, Path]) -> None:
    for arguments, says in (
        (("fill", "no mask", "-m", models["fill"]), "text 0 has no [MASK]"),
        (("answer", "", "context", "-m", models["answer"]), "question 0 has no words"),
        (("rerank", "q", "a", "-m", models["classify"]), "needs a head with one output"),
    ):
        result = cli(*arguments)
        assert (result.status, result.out) == (1, "")
        (line,) = result.err.splitlines()
        assert line.startswith("error: ")
        assert says in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("fill",),
        ("fill", MASKED, "--top", "0"),
        ("tag", "a", "--merge", "last"),
        ("answer", "a"),
        ("rerank", "a"),
        ("classify", "a", "b"),
    ],
)
def test_wrong_usage_is_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert (result.status, result.out) == (2, "")


def test_input_that_is_no_text(cli: Cli, models: dict[str, Path]) -> None:
    result = cli("tag", "-", "-m", models["tag"], stdin=b"\xff")
    assert (result.status, result.out) == (1, "")
    assert "standard input is not UTF-8" in result.err
