"""What task heads are for: words for masks, labels, entities, answers, ranks.

Results are plain dicts under the keys of transformers' pipelines and of sentence-transformers' `rank`.
Scores are computed in float64 from the model's logits; a text gives the same alone and among others.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from addnorm.batch import Batch
from addnorm.config import HeadConfig, Task
from addnorm.errors import AddnormError
from addnorm.files import read_object
from addnorm.model import BATCH_TOKENS, budget, inference
from addnorm.results import Answer, Entity, Filling, Label, Rank
from addnorm.tokenizer import PlacedTokens, Text

if TYPE_CHECKING:
    from addnorm.model import Model

Merge = Literal["first", "max", "average", "simple"]
Result = TypeVar("Result")

HEADS: dict[Task, str] = {
    "fill": "a masked language model head (…ForMaskedLM)",
    "classify": "a sequence classification head (…ForSequenceClassification)",
    "tag": "a token classification head (…ForTokenClassification)",
    "answer": "a question answering head (…ForQuestionAnswering)",
    "detect": "a replaced token detection head (…ForPreTraining)",
}
# What a cross-encoder's score is of its one logit, by the name of a torch module.
SETTINGS = "config_sentence_transformers.json"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"Identity": torch.clone, "Sigmoid": torch.sigmoid}


def fill_mask(model: "Model", texts: str | Sequence[str], top: int = 5, max_tokens: int | None = None) -> list[Any]:
    """See `Model.fill_mask`."""
    _need(model, "fill", "fill_mask")
    _at_least(1, top=top)
    tokenizer, limit = model.reader(max_tokens)
    mask = tokenizer.special.get("mask")
    if mask is None:
        raise AddnormError(f"the tokenizer of {model.name} has no mask token; fill_mask needs one")
    given = [texts] if isinstance(texts, str) else list(texts)
    tokens = model.place(given, max_tokens)
    for i, text in enumerate(tokens):
        if mask not in text.ids:
            (name,) = tokenizer.tokens([mask])
            where = f" in its first {limit} tokens" if text.full_length > len(text.ids) else ""
            raise AddnormError(f"text {i} has no {name}{where}; write {name} where a word is to be filled in")

    def read(stream: Tensor, batch: Batch) -> list[tuple[list[list[float]], list[list[int]]]]:
        # Only the masks' rows: logits are as wide as the vocabulary.
        masked = batch.ids == mask
        head = model.encoder.head
        assert head is not None
        logits = head(stream[masked], batch, None, model.encoder.embeddings.tokens.weight)
        best = logits.double().softmax(-1).topk(min(top, logits.shape[-1]))
        counts = [int(masked[span].sum()) for span in batch.spans]
        pieces = zip(best.values.split(counts), best.indices.split(counts), strict=True)
        return [(values.tolist(), ids.tolist()) for values, ids in pieces]

    def filling(ids: list[int], place: int, score: float, token: int, several: bool) -> Filling:
        sequence = tokenizer.decode([*ids[:place], token, *ids[place + 1 :]], special=several)
        word = tokenizer.decode([token], special=True)
        return {"score": score, "token": token, "token_str": word, "sequence": sequence}

    results: list[Any] = []
    for text, (scores, found) in zip(tokens, _run(model, tokens, read), strict=True):
        places = [i for i, token in enumerate(text.ids) if token == mask]
        fillings = [
            [filling(text.ids, place, score, token, len(places) > 1) for score, token in zip(*row, strict=True)]
            for place, *row in zip(places, scores, found, strict=True)
        ]
        results.append(fillings if len(places) > 1 else fillings[0])
    return results[0] if isinstance(texts, str) else results


def classify(
    model: "Model", texts: Text | Sequence[Text], top: int | None = None, max_tokens: int | None = None
) -> list[Any]:
    """See `Model.classify`."""
    _need(model, "classify", "classify")
    _at_least(1, top=top)
    labels, problem = _labels(model), _hf(model).get("problem_type")
    given = _listed(texts)
    results = []
    for logits in _logits(model, model.place(given, max_tokens)):
        if problem == "regression":
            scores = logits
        elif problem == "multi_label_classification" or len(labels) == 1:
            scores = logits.sigmoid()
        else:
            scores = logits.softmax(-1)
        found: list[Label] = [
            {"label": label, "score": score} for label, score in zip(labels, scores.tolist(), strict=True)
        ]
        results.append(sorted(found, key=lambda label: -label["score"])[:top])
    return results[0] if isinstance(texts, str | tuple) else results


def tag(
    model: "Model",
    texts: str | Sequence[str],
    merge: Merge = "first",
    ignore: Sequence[str] = ("O",),
    max_tokens: int | None = None,
) -> list[Any]:
    """See `Model.tag`."""
    _need(model, "tag", "tag")
    if merge not in ("simple", *WORDS):
        raise AddnormError(f"merge '{merge}' is unknown; known: {', '.join((*WORDS, 'simple'))}")
    labels = _labels(model)
    given = [texts] if isinstance(texts, str) else list(texts)
    tokens = model.place(given, max_tokens)
    results = []
    for text, placed, logits in zip(given, tokens, _logits(model, tokens), strict=True):
        pieces = [_piece(scores, span, labels) for scores, span in _pieces(placed, logits.softmax(-1), merge)]
        entities = [_entity(text, group) for group in _adjacent(pieces)]
        results.append([entity for entity in entities if entity["entity_group"] not in ignore])
    return results[0] if isinstance(texts, str) else results


def answer(
    model: "Model",
    question: str | Sequence[str],
    context: str | Sequence[str],
    no_answer: bool = False,
    max_answer_tokens: int = 15,
    whole_words: bool = True,
    max_tokens: int | None = None,
    overlap: int = 128,
) -> Any:
    """See `Model.answer`."""
    _need(model, "answer", "answer")
    _at_least(1, max_answer_tokens=max_answer_tokens)
    _at_least(0, overlap=overlap)
    if isinstance(question, str) != isinstance(context, str):
        raise AddnormError("answer: give one question and one context, or as many of each")
    questions = [question] if isinstance(question, str) else list(question)
    contexts = [context] if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise AddnormError(f"answer: {len(questions)} questions and {len(contexts)} contexts; give as many of each")
    tokenizer, limit = model.reader(max_tokens)
    if max_tokens is None:  # the windows that models are trained on for SQuAD (Devlin 2019)
        limit = min(384, limit or 384)
    windows = [
        tokenizer.windows(*pair, max_tokens=limit, overlap=overlap) for pair in zip(questions, contexts, strict=True)
    ]
    for i, (first, *_) in enumerate(windows):
        if 0 not in first.texts or 1 not in first.texts:
            raise AddnormError(f"{'context' if 0 in first.texts else 'question'} {i} has no words; give it some")
    spans = iter(_logits(model, [window for each in windows for window in each]))
    cls = tokenizer.special.get("cls")
    results = []
    for text, each in zip(contexts, windows, strict=True):
        best = [_best_span(window, next(spans), cls, max_answer_tokens) for window in each]
        found = _answer(text, each, [span for span, _ in best], whole_words)
        nothing = min(null for _, null in best)
        if no_answer and nothing > found["score"]:
            found = {"score": nothing, "start": 0, "end": 0, "answer": ""}
        results.append(found)
    return results[0] if isinstance(question, str) else results


def rerank(
    model: "Model",
    query: str,
    texts: Sequence[str],
    top: int | None = None,
    activation: str | None = None,
    max_tokens: int | None = None,
) -> list[Rank]:
    """See `Model.rerank`."""
    head = _need(model, "classify", "rerank")
    _at_least(1, top=top)
    if head.outputs != 1:
        raise AddnormError(
            f"rerank needs a head with one output, {model.name} has {head.outputs} "
            f"({', '.join(_labels(model)[:4])}); classify pairs (query, text) instead"
        )
    if isinstance(texts, str):
        raise AddnormError("rerank: texts is one str; give a list of texts")
    score = _activation(model, activation)
    logits = _logits(model, model.place([(query, text) for text in texts], max_tokens))
    ranks: list[Rank] = [
        {"corpus_id": i, "score": float(score(logit)), "text": text}
        for i, (logit, text) in enumerate(zip(logits, texts, strict=True))
    ]
    return sorted(ranks, key=lambda rank: -rank["score"])[:top]


# --- running the model ------------------------------------------------------------------------------------


def _need(model: "Model", task: Task, method: str) -> HeadConfig:
    """The config of the head. Errors: none, or one for another task."""
    head = model.config.head
    if head is None or head.task != task:
        architecture = ", ".join(_hf(model).get("architectures") or ["no architecture named"])
        has = f"no head that is computed ({architecture})" if head is None else HEADS[head.task]
        raise AddnormError(f"{method} needs {HEADS[task]}; {model.name} has {has}")
    return head


def _at_least(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise AddnormError(f"{name} is {number}; give at least {least}")


def _listed(texts: Text | Sequence[Text]) -> list[Text]:
    """One text, or one pair (a tuple), as a list."""
    if isinstance(texts, str):
        return [texts]
    return [texts] if isinstance(texts, tuple) else list(texts)


def _hf(model: "Model") -> dict[str, Any]:
    return {} if model.origin is None else model.origin.hf


def _labels(model: "Model") -> list[str]:
    """The names of the head's outputs; LABEL_0 and so on where the config names none."""
    assert model.config.head is not None
    named = _hf(model).get("id2label") or {}
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(model.config.head.outputs)]


def _run(
    model: "Model", tokens: Sequence[PlacedTokens], read: Callable[[Tensor, Batch], Iterable[Result]]
) -> list[Result]:
    """What `read` makes of each text's part of the stream, in input order."""
    results: dict[int, Result] = {}
    with inference(model.encoder):
        for chosen in budget([len(text.ids) for text in tokens], lambda left: BATCH_TOKENS):
            batch = model.batch([tokens[i] for i in chosen])
            results.update(zip(chosen, read(model.encoder(batch), batch), strict=True))
    return [results[i] for i in range(len(tokens))]


def _logits(model: "Model", tokens: Sequence[PlacedTokens]) -> list[Tensor]:
    """The logits of each text: (outputs,) where the head pools, else (T, outputs)."""

    def read(stream: Tensor, batch: Batch) -> list[Tensor]:
        logits = model.encoder.read(stream, batch)
        assert logits is not None
        assert model.config.head is not None
        logits = logits.double().cpu()
        return [logits[span] for span in batch.spans] if model.config.head.pool is None else list(logits)

    return _run(model, tokens, read)


# --- entities ---------------------------------------------------------------------------------------------

# The scores of a word from those of its tokens, (n, labels) → (labels,).
WORDS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda scores: scores[0],
    "max": lambda scores: scores[scores.amax(-1).argmax()],
    "average": lambda scores: scores.mean(0),
}
Piece = tuple[str, float, int, int]


def _pieces(tokens: PlacedTokens, scores: Tensor, merge: Merge) -> list[tuple[Tensor, tuple[int, int]]]:
    """What is labelled as one, a word or (simple) a token: its scores, and from where to where it goes."""
    inside = [i for i, text in enumerate(tokens.texts) if text is not None]
    if merge == "simple":
        return [(scores[i], tokens.spans[i]) for i in inside]
    words = [list(group) for _, group in groupby(inside, key=lambda i: tokens.words[i])]
    return [(WORDS[merge](scores[word]), (tokens.spans[word[0]][0], tokens.spans[word[-1]][1])) for word in words]


def _piece(scores: Tensor, span: tuple[int, int], labels: Sequence[str]) -> Piece:
    best = int(scores.argmax())
    return labels[best], float(scores[best]), *span


def _adjacent(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Neighbours with the same label; B- begins another."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        begins, label = _split(piece[0])
        if groups and not begins and label == _split(groups[-1][-1][0])[1]:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _split(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and which."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _entity(text: str, group: Sequence[Piece]) -> Entity:
    labels, scores, starts, ends = zip(*group, strict=True)
    return {
        "entity_group": labels[0].split("-", 1)[-1],
        "score": sum(scores) / len(scores),
        "word": text[starts[0] : ends[-1]],
        "start": starts[0],
        "end": ends[-1],
    }


# --- answers ----------------------------------------------------------------------------------------------


Span = tuple[float, int, int]


def _best_span(window: PlacedTokens, logits: Tensor, cls: int | None, longest: int) -> tuple[Span, float]:
    """The likeliest span of context tokens, P(start)·P(end), and the product for no answer.

    Probabilities are over the context's tokens and the [CLS] token, which stands for no answer (Devlin 2019).
    """
    context = torch.tensor([text == 1 for text in window.texts])
    nothing = torch.tensor([text is None and i == cls for text, i in zip(window.texts, window.ids, strict=True)])
    masked = logits.masked_fill(~(context | nothing)[:, None], -torch.inf).softmax(0)  # (T, 2)
    start, end = (masked * context[:, None]).unbind(-1)
    found = []
    for more in range(min(longest, len(start))):
        products = start[: len(start) - more] * end[more:]
        i = int(products.argmax())
        found.append((float(products[i]), i, i + more))
    return max(found, key=lambda span: span[0]), float(masked[nothing].prod(-1).sum())


def _answer(text: str, windows: Sequence[PlacedTokens], spans: Sequence[Span], whole_words: bool) -> Answer:
    """The likeliest of the windows' spans, as characters of the context."""
    (score, first, last), window = max(zip(spans, windows, strict=True), key=lambda found: found[0][0])
    start, end = window.spans[first][0], window.spans[last][1]
    if whole_words:
        start, end = _widen(windows, start, end, window.words[first], window.words[last])
    return {"score": score, "start": start, "end": end, "answer": text[start:end]}


def _widen(
    windows: Sequence[PlacedTokens], start: int, end: int, first: int | None, last: int | None
) -> tuple[int, int]:
    """The characters from the beginning of the first word to the end of the last, which a window may cut."""
    places = [
        (word, *span)
        for window in windows
        for text, word, span in zip(window.texts, window.words, window.spans, strict=True)
        if text == 1 and word is not None
    ]
    starts = [a for word, a, _ in places if word == first]
    ends = [b for word, _, b in places if word == last]
    return min([start, *starts]), max([end, *ends])


# --- ranks ------------------------------------------------------------------------------------------------


def _activation(model: "Model", name: str | None) -> Callable[[Tensor], Tensor]:
    """What a score is of the logit: as told, as the checkpoint says, or a sigmoid."""
    hf, folder = _hf(model), None if model.origin is None else model.origin.folder
    beside: dict[str, Any] = {}
    if folder is not None and all((folder / name).is_file() for name in ("modules.json", SETTINGS)):
        beside = read_object(folder / SETTINGS)
    inside = hf.get("sentence_transformers") or {}
    stated = beside.get("activation_fn") or inside.get("activation_fn")
    stated = str(name or stated or hf.get("sbert_ce_default_activation_function") or "torch.nn.Sigmoid")
    known = {key.lower(): function for key, function in ACTIVATIONS.items()}
    kind = stated.rpartition(".")[2].lower() if name or stated.startswith("torch.") else stated
    if kind not in known:
        raise AddnormError(f"activation '{stated}' is unknown; give activation={' or '.join(map(repr, known))}")
    return known[kind]
