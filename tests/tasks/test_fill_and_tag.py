"""Words for masks, labels for words, against transformers' pipelines."""

import warnings
from typing import Any

import pytest
import torch

import addnorm
from addnorm import AddnormError
from tests.tasks import LABELS, POSITIONS, SENTENCES, TEXTS, TaskTwin, long, same
from tests.texts import docstrings

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")


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
