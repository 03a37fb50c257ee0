"""Labels of texts and ranks of pairs, against the pipelines and sentence-transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder

import addnorm
from addnorm import AddnormError
from tests.tasks import POSITIONS, SENTENCES, TEXTS, TaskTwin, build, long, same
from tests.texts import docstrings

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")


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
