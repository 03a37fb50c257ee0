"""The operations that real tokens need, against counts by hand."""

import addnorm
from addnorm.bench.flops import flops, pairs
from addnorm.config import AttentionConfig, BlockConfig, EmbeddingsConfig, EncoderConfig, FeedForwardConfig


def test_minilm_by_hand(minilm: addnorm.Model) -> None:
    linear = 6 * 2 * (4 * 384 * 384 + 2 * 384 * 1536)  # a token
    attention = 6 * 4 * 7 * 7 * 384  # a text of 7 tokens
    assert flops(minilm.config, [7]) == 7 * linear + attention
    assert flops(minilm.config, [7, 3]) == 10 * linear + attention + 6 * 4 * 3 * 3 * 384


def test_pairs_within_a_window_are_those_of_a_band() -> None:
    for length in (1, 2, 5, 9):
        for window in (0, 1, 3, 20, None):
            seen = sum(window is None or abs(i - j) <= window for i in range(length) for j in range(length))
            assert pairs(length, window) == seen


def test_gated_windowed_blocks_with_shared_keys_and_narrow_embeddings() -> None:
    def block(window: int | None) -> BlockConfig:
        return BlockConfig(
            attention=AttentionConfig(heads=4, head_width=8, kv_heads=2, window=window),
            feedforward=FeedForwardConfig(width=48, gated=True),
        )

    config = EncoderConfig(
        width=24,
        embeddings=EmbeddingsConfig(vocabulary=50, max_positions=64, width=10),
        blocks=(block(2), block(None)),
    )
    linear = 2 * 10 * 24 + 2 * 2 * (24 * 32 + 2 * 24 * 16 + 32 * 24 + 3 * 24 * 48)
    band, whole = 6 + 2 * (5 + 4), 36
    assert flops(config, [6]) == 6 * linear + 4 * 32 * (band + whole)
