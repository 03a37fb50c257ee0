"""The task heads against transformers' pipelines and sentence-transformers' cross-encoder."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder

import addnorm
from addnorm import AddnormError
from addnorm.model import Model
from tests.tasks import POSITIONS, TaskTwin, build
from tests.texts import VARIED, docstrings

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
pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fill(folder: Path, family: str) -> TaskTwin:
    return build(family, "MaskedLM", folder / f"{family}-fill")


@pytest.fixture(scope="module")
def pairs(folder: Path, family: str) -> TaskTwin:
    return build(family, "SequenceClassification", folder / f"{family}-classify", labels=["no", "perhaps", "yes"])


@pytest.fixture(scope="module")
def tagger(folder: Path, family: str) -> TaskTwin:
    return build(family, "TokenClassification", folder / f"{family}-tag", labels=LABELS)


@pytest.fixture(scope="module")
def reader(folder: Path, family: str) -> TaskTwin:
    return build(family, "QuestionAnswering", folder / f"{family}-answer")


@pytest.fixture(scope="module")
def ranker(folder: Path, family: str) -> TaskTwin:
    return build(family, "SequenceClassification", folder / f"{family}-rerank", labels=["fits"])


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


# --- fill_mask ----------------------------------------------------------------------------------------------


def masked(twin: TaskTwin) -> list[str]:
    mask = twin.tokenizer.mask_token
    return [
        f"Paris is the {mask} of France.",
        f"{mask} begins a text",
        f"the text ends with {mask}",
        mask,
        f"{mask}glued{mask} and {mask}",
        f"你好{mask}😀 Zoë's é{mask}",
        f"a <b> [SEP] {mask}\n\nlines",
    ]


def test_fillings_equal_the_pipelines(fill: TaskTwin) -> None:
    reference = fill.pipeline("fill-mask", top_k=7)
    for text in masked(fill):
        same(fill.ours.fill_mask(text, top=7), reference(text))


def test_several_texts_are_filled_as_each_alone(fill: TaskTwin) -> None:
    texts = masked(fill)
    same(fill.ours.fill_mask(texts), [fill.ours.fill_mask(text) for text in texts], 1e-12)
    assert fill.ours.fill_mask([]) == []


def test_a_filling_needs_a_mask(fill: TaskTwin) -> None:
    mask = fill.tokenizer.mask_token
    with pytest.raises(AddnormError, match=rf"text 1 has no {mask.replace('[', '.').replace(']', '.')}; write"):
        fill.ours.fill_mask([f"a {mask}", "none here"])
    with pytest.raises(AddnormError, match="text 0 has no"):
        fill.ours.fill_mask("")
    with (
        pytest.warns(addnorm.Remark, match="is longer than"),
        pytest.raises(AddnormError, match=f"in its first {POSITIONS} tokens"),
    ):
        fill.ours.fill_mask(f"{long(300)} {mask}")


def test_all_of_the_vocabulary_is_a_distribution(fill: TaskTwin) -> None:
    found = fill.ours.fill_mask(masked(fill)[0], top=10**6)
    assert len(found) == fill.ours.config.embeddings.vocabulary
    assert sum(row["score"] for row in found) == pytest.approx(1, abs=1e-9)


# --- classify -----------------------------------------------------------------------------------------------

TEXTS = ["", *SENTENCES]


def test_labels_equal_the_pipelines(pairs: TaskTwin) -> None:
    reference = pairs.pipeline("text-classification")
    for text in TEXTS:
        same(pairs.ours.classify(text), reference(text, top_k=None))
        assert pairs.ours.classify(text, top=1) == pairs.ours.classify(text)[:1]


def test_pairs_equal_the_pipelines(pairs: TaskTwin) -> None:
    reference = pairs.pipeline("text-classification")
    # An empty second text is left out: there transformers makes no pair unless it is in a list.
    for first, second in [("a question", "an answer"), ("", "b"), (SENTENCES[0], SENTENCES[3])]:
        same(pairs.ours.classify((first, second)), reference({"text": first, "text_pair": second}, top_k=None))


@pytest.mark.parametrize("lengths", [(300, 300), (300, 5), (5, 300), (61, 60), (60, 300)])
@pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
def test_long_pairs_are_cut_as_the_pipelines_are(pairs: TaskTwin, lengths: tuple[int, int]) -> None:
    reference = pairs.pipeline("text-classification")
    first, second = map(long, lengths)
    cut = reference(
        {"text": first, "text_pair": second}, truncation="longest_first", max_length=POSITIONS, top_k=None
    )
    same(pairs.ours.classify((first, second)), cut)
    cut = reference({"text": first, "text_pair": second}, truncation="longest_first", max_length=33, top_k=None)
    same(pairs.ours.classify((first, second), max_tokens=33), cut)


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("multi_label_classification", ["a", "b", "c"]),
        ("single_label_classification", ["a", "b"]),
        ("regression", ["x"]),
        ("regression", ["x", "y"]),
        (None, ["x"]),
        (None, None),
    ],
)
def test_scores_are_what_the_problem_says(tmp_path: Path, problem: str | None, labels: list[str] | None) -> None:
    twin = build("bert", "SequenceClassification", tmp_path, labels=labels, problem_type=problem)
    reference = twin.pipeline("text-classification")
    same(twin.ours.classify("some text"), reference("some text", top_k=None))
    same(twin.ours.classify(["some text", ("a", "pair")])[0], reference("some text", top_k=None))


def test_several_texts_are_classified_as_each_alone(pairs: TaskTwin) -> None:
    texts = [*TEXTS, ("a", "pair"), ("another", long(50))]
    same(pairs.ours.classify(texts), [pairs.ours.classify(text) for text in texts], 1e-9)
    assert pairs.ours.classify([]) == []


def test_what_is_no_text_and_no_pair_is_refused(pairs: TaskTwin) -> None:
    wrong: Any
    for wrong in (("a", "b", "c"), ("a",), ("a", 3)):
        with pytest.raises(AddnormError, match="text 0 is a tuple that is no pair of str"):
            pairs.ours.classify(wrong)
    with pytest.raises(AddnormError, match="text 1 is not valid Unicode at character 1"):
        pairs.ours.classify(["a", ("b", "x\ud83d")])
    with pytest.raises(AddnormError, match=r"max_tokens 3 leaves no room beside [34] special tokens"):
        pairs.ours.classify(("a", "b"), max_tokens=3)


# --- tag ----------------------------------------------------------------------------------------------------


def places(entities: list[Any]) -> list[Any]:
    """Without the word: theirs is what the tokens spell, ours a piece of the text."""
    return [{key: value for key, value in row.items() if key != "word"} for row in entities]


def tagged(twin: TaskTwin, text: str, strategy: str) -> list[Any]:
    """The pipeline's entities, with plain numbers."""
    rows = twin.pipeline("token-classification", aggregation_strategy=strategy)(text)
    return [{**row, "score": float(row["score"])} for row in rows]


@pytest.mark.parametrize("merge", ["simple", "first", "max", "average"])
def test_entities_equal_the_pipelines(tagger: TaskTwin, family: str, merge: Any) -> None:
    # A byte-level tokenizer marks no continuing token, so the pipeline guesses words from spaces there.
    texts = [*TEXTS, *docstrings(12)] if merge == "simple" or family == "bert" else [""]
    found = 0
    for text in texts:
        with warnings.catch_warnings(action="ignore"):
            ours, theirs = tagger.ours.tag(text, merge), tagged(tagger, text, merge)
        same(places(ours), places(theirs))
        assert [row["word"] for row in ours] == [text[row["start"] : row["end"]] for row in ours]
        found += len(ours)
    assert found > 10 or texts == [""]


def test_words_are_the_tokenizers(tagger: TaskTwin, family: str) -> None:
    """Punctuation makes words of its own, whatever marks the tokens inside words; BERT reads over accents."""
    text = "Tomé-London, naïve (NATO)" + (" e\u0301te\u0301 end" if family == "bert" else "")
    model = addnorm.load(tagger.folder, dtype=torch.float64)
    assert model.origin is not None
    model.origin.hf["id2label"] = {str(i): f"B-{i}" for i in range(len(LABELS))}
    words = [(row["start"], row["end"]) for row in model.tag(text)]
    expected = [(0, 4), (4, 5), (5, 11), (11, 12), (13, 18), (19, 20), (20, 24), (24, 25)]
    assert words == expected + [(26, 30), (32, 35)] * (family == "bert")


def test_long_texts_are_cut_as_the_pipelines_are(tagger: TaskTwin) -> None:
    text = long(300)
    with pytest.warns(addnorm.Remark, match=f"1 text is longer than {POSITIONS} tokens"):
        ours = tagger.ours.tag(text, "simple")
    same(places(ours), places(tagged(tagger, text, "simple")))


def test_several_texts_are_tagged_as_each_alone(tagger: TaskTwin) -> None:
    same(tagger.ours.tag(TEXTS), [tagger.ours.tag(text) for text in TEXTS], 1e-9)
    assert tagger.ours.tag("") == []
    assert tagger.ours.tag([]) == []


def test_labels_can_be_kept_and_left_out(tagger: TaskTwin) -> None:
    everything = tagger.ours.tag(SENTENCES[0], ignore=())
    assert {row["entity_group"] for row in everything} <= {"O", "PER", "LOC"}
    kept = [row for row in everything if row["entity_group"] != "PER"]
    assert tagger.ours.tag(SENTENCES[0], ignore=("PER",)) == kept
    wrong: Any = "last"
    with pytest.raises(AddnormError, match="merge 'last' is unknown; known: first, max, average, simple"):
        tagger.ours.tag("a", wrong)


# --- answer -------------------------------------------------------------------------------------------------

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


# --- rerank -------------------------------------------------------------------------------------------------

DOCUMENTS = [*TEXTS, *docstrings(6)]


def ranked(folder: Path, query: str, texts: list[str], **settings: Any) -> list[Any]:
    reference = CrossEncoder(str(folder), device="cpu", max_length=POSITIONS)
    return reference.rank(query, texts, return_documents=True, **settings)


@pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
def test_ranks_equal_sentence_transformers(ranker: TaskTwin) -> None:
    for query in ("which text?", "", long(300)):
        same(ranker.ours.rerank(query, DOCUMENTS), ranked(ranker.folder, query, DOCUMENTS))
    same(ranker.ours.rerank("q", DOCUMENTS, top=3), ranked(ranker.folder, "q", DOCUMENTS, top_k=3))
    assert ranker.ours.rerank("q", []) == []


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.fixture
def told(ranker: TaskTwin, tmp_path: Path) -> Iterator[Any]:
    """The ranker with entries of config.json and of config_sentence_transformers.json changed."""

    def change(config: dict[str, Any], beside: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / "told"
        ranker.ours.save(folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        if beside is not None:
            (folder / "config_sentence_transformers.json").write_text(json.dumps(beside))
        return folder

    return change


@pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}}, None),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, None),
        ({"sbert_ce_default_activation_function": IDENTITY}, None),
        ({"sbert_ce_default_activation_function": None}, None),
        ({"sentence_transformers": {"version": "5.0"}, "sbert_ce_default_activation_function": IDENTITY}, None),
        # Only read where modules.json says that the folder is one of sentence-transformers.
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, {"activation_fn": IDENTITY}),
    ],
)
def test_a_score_is_what_the_checkpoint_says(told: Any, config: dict[str, Any], beside: Any) -> None:
    folder = told(config, beside)
    same(addnorm.load(folder, dtype=torch.float64).rerank("q", DOCUMENTS), ranked(folder, "q", DOCUMENTS))


@pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")
def test_a_saved_cross_encoder_ranks_the_same(ranker: TaskTwin, tmp_path: Path) -> None:
    for activation in (torch.nn.Sigmoid(), torch.nn.Identity()):
        saved = tmp_path / type(activation).__name__
        reference = CrossEncoder(str(ranker.folder), device="cpu", max_length=POSITIONS, activation_fn=activation)
        reference.save_pretrained(str(saved))
        assert (saved / "modules.json").is_file()
        model = addnorm.load(saved, dtype=torch.float64)
        same(model.rerank("q", DOCUMENTS), ranked(saved, "q", DOCUMENTS))
        model.save(tmp_path / "again")
        same(ranked(tmp_path / "again", "q", DOCUMENTS), ranked(saved, "q", DOCUMENTS))


def test_the_user_may_say_what_a_score_is(ranker: TaskTwin, told: Any) -> None:
    logits, scores = (ranker.ours.rerank("q", ["a", "b"], activation=name) for name in ("identity", "sigmoid"))
    assert [row["corpus_id"] for row in logits] == [row["corpus_id"] for row in scores]
    for logit, score in zip(logits, scores, strict=True):
        logit_ = torch.tensor(logit["score"], dtype=torch.float64)
        assert float(logit_.sigmoid()) == pytest.approx(score["score"], abs=1e-9)
    strange = addnorm.load(told({"sentence_transformers": {"activation_fn": "mine.Sigmoid"}}))
    with pytest.raises(AddnormError, match=r"activation 'mine.Sigmoid' is unknown; give activation='identity' or"):
        strange.rerank("q", ["a"])
    assert len(strange.rerank("q", ["a"], activation="sigmoid")) == 1


def test_a_ranking_needs_one_output_and_a_list(ranker: TaskTwin, pairs: TaskTwin) -> None:
    with pytest.raises(AddnormError, match=r"needs a head with one output, .* has 3 \(no, perhaps, yes\)"):
        pairs.ours.rerank("q", ["a"])
    with pytest.raises(AddnormError, match="texts is one str; give a list"):
        ranker.ours.rerank("q", "a")


# --- what is missing ----------------------------------------------------------------------------------------


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
