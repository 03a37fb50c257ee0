"""From ids to the stream."""

import pytest
import torch

from addnorm import AddnormError, Batch
from addnorm.config import EmbeddingsConfig, NormConfig
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.positions import Sinusoidal
from tests.nn.drawn import largest, perturb

WIDTH = 6


def embeddings_of(**changes: object) -> Embeddings:
    config = EmbeddingsConfig.from_dict({"vocabulary": 9, "max_positions": 5, "types": 2} | changes)
    module = Embeddings(config, WIDTH).double().eval()
    perturb(module)
    return module


@pytest.mark.parametrize("scale", [1.0, 3.5])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", None])
@pytest.mark.parametrize("width", [None, 4])
@pytest.mark.parametrize("norm", [None, NormConfig().to_dict()])
def test_the_sum_of_the_tables(scale: float, positions: str | None, width: int | None, norm: object) -> None:
    module = embeddings_of(scale=scale, positions=positions, width=width, norm=norm)
    texts, types = [[3, 8, 0, 3], [1], [2, 2, 2, 2, 2]], [[0, 1, 1, 0], [1], [0, 0, 1, 1, 1]]
    expected = []
    for ids, row in zip(texts, types, strict=True):
        for position, (token, kind) in enumerate(zip(ids, row, strict=True)):
            x = module.tokens.weight[token] * scale + module.types.weight[kind]
            if positions == "learned":
                x = x + module.positions.weight[position]
            elif positions == "sinusoidal":
                x = x + Sinusoidal(5, width or WIDTH)(torch.tensor([position]))[0]
            x = module.norm(x) if norm else x
            expected.append(module.projection(x) if width else x)
    assert largest(module(Batch.pack(texts, types)), torch.stack(expected)) <= 1e-12


@pytest.mark.parametrize(
    ("texts", "types", "says"),
    [
        ([[1], [2, 9]], None, "token id 9 is outside the model's 9 vocabulary"),
        ([[1, -3]], None, "token id -3 is outside"),
        ([[0] * 5, [0] * 6], None, "position 5 is outside the model's 5 positions"),
        ([[1, 1]], [[0, 2]], "token type 2 is outside the model's 2 token types"),
        ([[1, 1]], [[0, -1]], "token type -1 is outside"),
    ],
)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_outside_the_tables(texts: list[list[int]], types: list[list[int]] | None, says: str, positions: str) -> None:
    with pytest.raises(AddnormError, match=says):
        embeddings_of(positions=positions)(Batch.pack(texts, types))


def test_without_positions_a_text_may_be_of_any_length() -> None:
    module = embeddings_of(positions=None, types=0)
    assert module(Batch.pack([[1] * 50])).shape == (50, WIDTH)
    assert {name for name, _ in module.named_children()} == {"tokens", "sum", "dropout"}
