"""The floating-point operations that the real tokens of a text need, counted from the config.

Linear maps take 2·in·out a token, attention 4·H·K for each pair of a query and a key that it may see (2 for the
scores, 2 for the mix). Norms, activations, look-ups and padding count nothing.
"""

from collections.abc import Iterable

from addnorm.config import AttentionConfig, BlockConfig, EmbeddingsConfig, EncoderConfig, FeedForwardConfig


def flops(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """For texts of so many tokens."""
    linear = 2 * _embeddings(config.embeddings, config.width) + sum(
        2 * _block(block, config.width) for block in config.blocks
    )
    return sum(length * linear + sum(_attend(b.attention, length) for b in config.blocks) for length in lengths)


def pairs(length: int, window: int | None) -> int:
    """Pairs of a query and a key at most `window` places apart, in a text of so many tokens."""
    if window is None or window >= length:
        return length * length
    return length + 2 * sum(length - distance for distance in range(1, window + 1))


def _attend(attention: AttentionConfig, length: int) -> int:
    terms = attention.disentangled
    more = 0 if terms is None else terms.content_to_position + terms.position_to_content
    return (4 + 2 * more) * attention.heads * attention.head_width * pairs(length, attention.window)


def _block(block: BlockConfig, width: int) -> int:
    """Weights that each token is multiplied by."""
    inner, beside = block.width_within(width), block.convolution
    ways = 0 if block.bottleneck is None else inner * width * (3 if block.bottleneck.queries else 2)
    return (
        ways
        + _projections(block.attention, inner)
        + sum(_feedforward(unit, inner) for unit in (block.feedforward, *block.further))
        + (0 if beside is None else width // beside.groups * width * beside.kernel)
    )


def _projections(attention: AttentionConfig, width: int) -> int:
    inner, shared = attention.heads * attention.head_width, attention.key_heads * attention.head_width
    return width * inner + width * shared + (attention.value_width or width) * shared + inner * width


def _feedforward(unit: FeedForwardConfig, width: int) -> int:
    return (3 if unit.gated else 2) * width * unit.width


def _embeddings(embeddings: EmbeddingsConfig, width: int) -> int:
    """Weights of the projections before the first block."""
    own, beside = embeddings.width or width, sum(table.width for table in embeddings.side)
    tokens = (embeddings.tokens_width or own) * (3 if embeddings.trigrams else 1)
    return ((tokens + beside) * own if embeddings.merge else 0) + (own * width if embeddings.width else 0)
