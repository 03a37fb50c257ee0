"""The workloads: as long as promised, all different, the same every time."""

import hashlib
import subprocess
import sys

import pytest

import addnorm
from addnorm.bench.texts import KINDS, LONG, SHORT, SINGLE, many, workload
from addnorm.errors import AddnormError

REPEAT = """
import addnorm
from addnorm.bench.texts import KINDS, many, workload
model = addnorm.load()
made = [workload(name, model, 6).texts for name in KINDS] + [many(model, 50).texts]
print(__import__("hashlib").sha256(repr(made).encode()).hexdigest())
"""


@pytest.mark.parametrize("name", KINDS)
def test_lengths_are_those_of_the_tokens_and_texts_differ(name: str, minilm: addnorm.Model) -> None:
    made = workload(name, minilm, 12)
    assert len(made.texts) == len(set(made.texts)) == 12
    assert list(made.lengths) == [len(t.ids) for t in minilm.tokenizer.encode(made.texts, made.max_tokens)]  # type: ignore[union-attr]


def test_each_workload_is_as_long_as_its_name_says(minilm: addnorm.Model) -> None:
    short, long, mixed = (workload(name, minilm) for name in ("short", "long", "mixed"))
    assert max(short.lengths) <= SHORT
    assert min(long.lengths) >= LONG
    assert max(long.lengths) <= long.max_tokens == 512
    assert mixed.max_tokens == minilm.max_tokens == 256
    assert min(mixed.lengths) < 10
    assert max(mixed.lengths) > 128
    for tokens in SINGLE:
        made = workload(f"single {tokens}", minilm)
        assert made.single
        assert set(made.lengths) == {tokens}
        assert {t.full_length for t in minilm.tokenizer.encode(made.texts)} == {tokens}  # type: ignore[union-attr]


def test_more_texts_than_there_are_docstrings(minilm: addnorm.Model) -> None:
    made = workload("mixed", minilm, 3000)
    assert len(set(made.texts)) == 3000
    more = many(minilm, 2000)
    assert len(set(more.texts)) == 2000
    assert {len(text.split()) for text in more.texts} <= set(range(4, 21))


def test_they_are_the_same_in_another_process(minilm: addnorm.Model) -> None:
    again = subprocess.run([sys.executable, "-c", REPEAT], capture_output=True, encoding="utf-8", check=True).stdout
    made = [workload(name, minilm, 6).texts for name in KINDS] + [many(minilm, 50).texts]
    assert again.strip() == hashlib.sha256(repr(made).encode()).hexdigest()


def test_a_model_that_reads_no_such_texts_is_refused(minilm: addnorm.Model) -> None:
    small = addnorm.Model(
        minilm.config.replace(embeddings=minilm.config.embeddings.replace(max_positions=100), blocks=()),
        tokenizer=minilm.tokenizer,
    )
    with pytest.raises(AddnormError, match="long needs texts of 256 tokens; the model reads 100"):
        workload("long", small)
    assert max(workload("mixed", small, 100).lengths) == 100
    with pytest.raises(AddnormError, match="no tokenizer"):
        workload("mixed", addnorm.Model(small.config))
