"""Published numbers of bert-base-uncased for `this is a test sentence` (float32, 4 decimals)."""

import pytest
import torch

import addnorm
from addnorm.hub import cached

DIMS = (0, 1, 2, 765, 766, 767)
TOKENS = (0, 1, 2, 4, 5, 6)
GOLDEN = {
    "embeddings": [
        [0.1686, -0.2858, -0.3261, -0.0276, 0.0383, 0.1640],
        [-0.6485, 0.6739, -0.0932, 0.4475, 0.6696, 0.1820],
        [-0.6270, -0.0633, -0.3143, 0.3427, 0.4636, 0.4594],
        [0.6010, -0.6970, -0.2001, 0.2960, 0.2060, -1.7181],
        [0.8323, 0.2878, 0.0021, 0.2628, -1.1310, -1.2708],
        [-0.1481, -0.2948, -0.1690, -0.5009, 0.2544, -0.0700],
    ],
    "blocks.0.attention.mix": [
        [0.2979, 0.0801, -0.0037, -0.0142, 0.1290, 0.0828],
        [0.3935, 0.1356, -0.0920, 0.0211, 0.1677, 0.0011],
        [0.1696, 0.1449, -0.1039, 0.1604, 0.2172, 0.0310],
        [-0.0617, 0.1968, -0.0669, 0.1126, 0.1933, -0.0204],
        [-0.2835, 0.1495, -0.0021, 0.0973, 0.1865, -0.0636],
        [0.2575, 0.1120, -0.1008, 0.0175, 0.1508, 0.0878],
    ],
    "blocks.0.attention.norm_out": [
        [0.6143, -0.2061, -0.5682, 0.2557, 0.1224, 0.3388],
        [-0.6751, 1.0598, -0.2210, 0.6263, 1.1682, 0.1998],
        [-0.5969, 0.1463, -0.5549, 0.5272, 0.5071, 0.6439],
        [1.3291, -1.1190, -0.1960, 0.6164, 0.4293, -2.4704],
        [1.8784, 0.5158, 0.1902, 0.5298, -1.3812, -2.0257],
        [0.7376, -0.7000, -0.0992, -0.9356, 0.5831, -0.4610],
    ],
    "blocks.0": [
        [0.1556, -0.0080, -0.0707, 0.0786, 0.0213, 0.0616],
        [-0.5333, 0.5799, 0.1044, 0.0241, 0.4888, 0.0161],
        [-1.0609, -0.3058, -0.5043, 0.1874, 0.2874, 0.4032],
        [0.8206, -0.6656, -0.7054, 0.1347, 0.1117, -1.9040],
        [1.1128, 0.6603, -0.1509, 0.3253, -1.0006, -1.9106],
        [-0.0736, 0.0346, 0.0376, -0.4506, 0.6585, -0.0502],
    ],
}
FOLDER = cached("bert-base-uncased") or cached("google-bert/bert-base-uncased")


@pytest.mark.skipif(FOLDER is None, reason="the weights of bert-base-uncased are not on this machine")
def test_bert_base_gives_the_published_numbers() -> None:
    assert FOLDER is not None
    model = addnorm.load(FOLDER)
    assert (model.config.width, len(model.config.blocks)) == (768, 12)
    trace = model.trace("this is a test sentence")
    assert trace.tokens == ["[CLS]", "this", "is", "a", "test", "sentence", "[SEP]"]
    assert trace["blocks.0.feedforward.activation"].shape == (7, 3072)
    for site, rows in GOLDEN.items():
        shown = trace[site][list(TOKENS)][:, list(DIMS)]
        assert (shown - torch.tensor(rows)).abs().max() <= 1e-4, site


def test_minilm_is_what_was_published(minilm: addnorm.Model) -> None:
    config = minilm.config
    block = config.blocks[0]
    assert (len(config.blocks), config.width, block.attention.heads, block.feedforward.width) == (6, 384, 12, 1536)
    assert (minilm.max_tokens, minilm.max_positions) == (256, 512)
    assert (minilm.settings.modes, minilm.settings.normalize) == (("mean",), True)
