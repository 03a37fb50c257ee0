"""A tiny task model of each family and head, with its twin."""

from pathlib import Path

import pytest

from tests.tasks import FAMILIES, LABELS, TaskTwin, build


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
