"""What the task methods give: plain dicts under the keys of transformers' pipelines and of `CrossEncoder.rank`."""

from typing import TypedDict


class Filling(TypedDict):
    """A token for a mask: its probability, id, text, and the whole text with it."""

    score: float
    token: int
    token_str: str
    sequence: str


class Label(TypedDict):
    """A label of a text and its probability (a value where the checkpoint is a regression)."""

    label: str
    score: float


class Entity(TypedDict):
    """A piece of a text, `word` = text[start:end], with its label, less the B- or I- of its tokens."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


class Answer(TypedDict):
    """A piece of the context, `answer` = context[start:end]; "" where there is no answer."""

    score: float
    start: int
    end: int
    answer: str


class Rank(TypedDict):
    """One of the ranked texts, and its place among those given."""

    corpus_id: int
    score: float
    text: str
