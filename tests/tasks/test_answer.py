"""Answers, against every span of every window."""

from typing import Any

import pytest
import torch

import addnorm
from addnorm import AddnormError
from tests.tasks import POSITIONS, QUESTION, SENTENCES, TaskTwin, long, same

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")


CONTEXT = " ".join(SENTENCES)


def expected(
    twin: TaskTwin, question: str, context: str, limit: int, stride: int, no_answer: bool, longest: int = 15
) -> dict[str, Any]:
    """By hand, as transformers did it up to version 4: every span of every window."""
    encoded = twin.tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=limit,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    whole = twin.tokenizer(question, context)
    best: tuple[float, int, int] = (-1.0, 0, 0)
    nothing = 1.0
    for k, ids in enumerate(encoded["input_ids"]):
        types = (
            {"token_type_ids": torch.tensor([encoded["token_type_ids"][k]])} if "token_type_ids" in encoded else {}
        )
        output = twin.hf(input_ids=torch.tensor([ids]), **types)
        parts = encoded.sequence_ids(k)
        allowed = [part == 1 or i == 0 for i, part in enumerate(parts)]
        start, end = (
            torch.where(torch.tensor(allowed), logits[0].detach(), -10000.0).softmax(-1).tolist()
            for logits in (output.start_logits, output.end_logits)
        )
        nothing = min(nothing, start[0] * end[0])
        for i in range(len(ids)):
            for j in range(i, min(i + longest, len(ids))):
                if parts[i] == parts[j] == 1 and start[i] * end[j] > best[0]:
                    first, last = (encoded.encodings[k].word_ids[t] for t in (i, j))
                    begins, ends = (whole.word_to_chars(0, word, sequence_index=1) for word in (first, last))
                    best = (start[i] * end[j], begins.start, ends.end)
    if no_answer and nothing > best[0]:
        return {"score": nothing, "start": 0, "end": 0, "answer": ""}
    return {"score": best[0], "start": best[1], "end": best[2], "answer": context[best[1] : best[2]]}


@pytest.mark.parametrize("no_answer", [False, True])
@pytest.mark.parametrize(
    "context", ["It is here.", CONTEXT, long(600), "\n  \tspaces\u3000Zoë "], ids=["short", "mixed", "long", "spaces"]
)
def test_answers_equal_every_span_of_every_window(reader: TaskTwin, context: str, no_answer: bool) -> None:
    for question in (QUESTION, "谁？", "what is an iterable"):
        length = len(reader.tokenizer(question, add_special_tokens=False)["input_ids"])
        room = POSITIONS - length - reader.tokenizer.num_special_tokens_to_add(pair=True)
        theirs = expected(reader, question, context, POSITIONS, min(128, room // 2), no_answer)
        same(reader.ours.answer(question, context, no_answer), theirs)


@pytest.mark.parametrize(("limit", "overlap"), [(40, 0), (40, 7), (30, 9)])
def test_windows_are_as_told(reader: TaskTwin, limit: int, overlap: int) -> None:
    theirs = expected(reader, "Where?", CONTEXT, limit, overlap, False)
    same(reader.ours.answer("Where?", CONTEXT, max_tokens=limit, overlap=overlap), theirs)
    theirs = expected(reader, "Where?", CONTEXT, limit, overlap, False, longest=2)
    same(reader.ours.answer("Where?", CONTEXT, max_answer_tokens=2, max_tokens=limit, overlap=overlap), theirs)


def test_windows_equal_transformers(reader: TaskTwin) -> None:
    assert reader.ours.tokenizer is not None
    encoded = reader.tokenizer(
        QUESTION, CONTEXT, truncation="only_second", max_length=40, stride=5, return_overflowing_tokens=True
    )
    windows = reader.ours.tokenizer.windows(QUESTION, CONTEXT, 40, 5)
    assert [window.ids for window in windows] == encoded["input_ids"]
    assert [window.texts for window in windows] == [encoded.sequence_ids(k) for k in range(len(windows))]
    assert [window.words for window in windows] == [encoded.word_ids(k) for k in range(len(windows))]
    if "token_type_ids" in encoded:
        assert [window.types for window in windows] == encoded["token_type_ids"]


def test_no_answer_is_one(reader: TaskTwin) -> None:
    """With no weight on the context, [CLS] is the likeliest."""
    model = addnorm.load(reader.folder, dtype=torch.float64)
    head = model.encoder.head
    assert head is not None
    short = "It is here."
    with torch.no_grad():
        stream = model.encoder(model.batch(model.place([(QUESTION, short)])))
        head.logits.weight.copy_((stream[0] - stream[1:].mean(0)).expand(2, -1) * 9)
    found = model.answer(QUESTION, short, no_answer=True)
    assert (found["answer"], found["start"], found["end"]) == ("", 0, 0)
    assert found["score"] > 0.5
    assert model.answer(QUESTION, short)["answer"] != ""


def test_whole_words_can_be_let_go(reader: TaskTwin) -> None:
    whole, parts = (reader.ours.answer(QUESTION, SENTENCES[1], whole_words=whole) for whole in (True, False))
    assert whole["start"] <= parts["start"] < parts["end"] <= whole["end"]
    assert whole["score"] == parts["score"]
    assert parts["answer"] == SENTENCES[1][parts["start"] : parts["end"]]


def test_several_questions_are_answered_as_each_alone(reader: TaskTwin) -> None:
    questions, contexts = [QUESTION, "what?", "why?"], [CONTEXT, long(200), "because"]
    alone = [reader.ours.answer(*pair) for pair in zip(questions, contexts, strict=True)]
    same(reader.ours.answer(questions, contexts), alone, 1e-9)
    assert reader.ours.answer([], []) == []


def test_an_answer_needs_a_question_and_a_context(reader: TaskTwin) -> None:
    with pytest.raises(AddnormError, match="context 0 has no words"):
        reader.ours.answer(QUESTION, "")
    with pytest.raises(AddnormError, match="question 1 has no words"):
        reader.ours.answer(["a", ""], ["b", "c"])
    with pytest.raises(AddnormError, match="which leaves no room for the second in 120; shorten it"):
        reader.ours.answer(long(200), "context")
    with pytest.raises(AddnormError, match="2 questions and 1 contexts"):
        reader.ours.answer(["a", "b"], ["c"])
    with pytest.raises(AddnormError, match="one question and one context, or as many of each"):
        reader.ours.answer("a", ["c"])
    with pytest.raises(AddnormError, match=f"exceeds the model's {POSITIONS} positions"):
        reader.ours.answer("a", "c", max_tokens=POSITIONS + 1)
