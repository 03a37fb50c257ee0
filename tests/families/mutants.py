"""One plausible mistake for each family: what a loader could get wrong without anyone noticing.

Each function changes our encoder in place after loading. `test_mutants.py` shows that the comparison with the
twin sees it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# The modules are reached by attribute, as a user would; their types are not of interest here.
Mutate = Callable[[Any], None]


def swap_norms(encoder: Any) -> None:
    block = encoder.blocks[1]
    block.attention.norm_out, block.feedforward.norm_out = block.feedforward.norm_out, block.attention.norm_out


def swap_pre_norms(encoder: Any) -> None:
    block = encoder.blocks[1]
    block.attention.norm_in, block.feedforward.norm_in = block.feedforward.norm_in, block.attention.norm_in


def no_final_norm(encoder: Any) -> None:
    encoder.norm = None


def embed(**changes: Any) -> Mutate:
    """Embeddings that read their config otherwise."""

    def mutate(encoder: Any) -> None:
        encoder.embeddings.config = encoder.embeddings.config.replace(**changes)

    return mutate


def one_position_late(encoder: Any) -> None:
    embed(position_offset=encoder.embeddings.config.position_offset + 1)(encoder)


def no_tasks(encoder: Any) -> None:
    encoder.embeddings.tasks = None


def no_projection_bias(encoder: Any) -> None:
    encoder.embeddings.projection.bias = None


def other_activation(encoder: Any) -> None:
    encoder.blocks[2].feedforward.sublayer.activation = nn.GELU()


def default_eps(encoder: Any) -> None:
    encoder.blocks[0].attention.norm_out.eps = 1e-12


def next_shape(encoder: Any) -> None:
    table = encoder.embeddings.shapes.weight
    table.data = table.data.roll(-1, 0)


def unshare(encoder: Any) -> None:
    """The last block gets what its group's other blocks do not have."""
    encoder.blocks[-1].feedforward.norm_out = encoder.blocks[0].feedforward.norm_out


def each_rotary(**changes: Any) -> Mutate:
    """Rotations that read their config otherwise, in every block."""

    def mutate(encoder: Any) -> None:
        for block in encoder.blocks:
            for rotary in (block.attention.sublayer.query_rotary, block.attention.sublayer.key_rotary):
                rotary.config = rotary.config.replace(**changes)

    return mutate


def values_stay(encoder: Any) -> None:
    encoder.blocks[1].attention.sublayer.value_rotary = None


def swap_gate(encoder: Any) -> None:
    feedforward = encoder.blocks[0].feedforward.sublayer
    feedforward.gate, feedforward.up = feedforward.up, feedforward.gate


def heads_in_turn(encoder: Any) -> None:
    """Query heads 0, 2, 4 share a key instead of 0, 1, 2."""
    for block in encoder.blocks:
        attention = block.attention.sublayer
        width = attention.config.head_width
        order = torch.arange(attention.config.heads).view(attention.config.key_heads, -1).T.flatten()
        rows = (order[:, None] * width + torch.arange(width)).flatten()
        attention.query.weight.data = attention.query.weight.data[rows]
        attention.query.bias.data = attention.query.bias.data[rows]
        attention.output.weight.data = attention.output.weight.data[:, rows]


def window_of_one_more(encoder: Any) -> None:
    attention = encoder.blocks[1].attention.sublayer
    attention.config = attention.config.replace(window=attention.config.window + 1)


def keep_masks(encoder: Any) -> None:
    """Mask tokens stay as they are."""
    encoder.embeddings.dropped = None


def swap_adapters(encoder: Any) -> None:
    first, second = encoder.blocks[0].further[0], encoder.blocks[1].further[0]
    first.sublayer, second.sublayer = second.sublayer, first.sublayer


def turn_trigrams(encoder: Any) -> None:
    """The token before and the token after change places."""
    before, own, after = encoder.embeddings.merge.weight.data.chunk(3, dim=1)
    encoder.embeddings.merge.weight.data = torch.cat((after, own, before), dim=1)


def bias_without_shift(encoder: Any) -> None:
    """Distances are counted from the key, not from the query."""
    table = encoder.position_bias.table.weight
    table.data = table.data.roll(len(table) // 2, 0)


def scaled_scores(encoder: Any) -> None:
    """Scores times 1/√K, as everyone else has them."""
    for block in encoder.blocks:
        attention = block.attention.sublayer
        attention.scale = attention.scores.scale = attention.config.head_width**-0.5


def one_bias_for_all(encoder: Any) -> None:
    for block in encoder.blocks:
        block.attention.sublayer.position_bias = encoder.blocks[0].attention.sublayer.position_bias


def swap_terms(encoder: Any) -> None:
    """Position keys and queries change places, their bias aside."""
    own = encoder.blocks[0].attention.sublayer.disentangled
    key, query = own.position_key.weight, own.position_query.weight
    key.data, query.data = query.data, key.data


def every_distance_counts(encoder: Any) -> None:
    """No buckets: far distances share the last row."""
    encoder.relative.config = encoder.relative.config.replace(max_distance=None)


def divide_branches(encoder: Any) -> None:
    """Branches are divided by what they should be multiplied with."""
    for block in encoder.blocks:
        for unit in (block.attention, block.feedforward):
            unit.branch.value = 1 / unit.branch.value


MUTANTS: dict[str, Mutate] = {
    "esmc": divide_branches,
    "jina_bert": swap_gate,
    "neobert": each_rotary(interleaved=False),
    "mpnet": bias_without_shift,
    "t5": scaled_scores,
    "mt5": swap_gate,
    "umt5": one_bias_for_all,
    "deberta": swap_terms,
    "deberta-v2": every_distance_counts,
    "mobilebert": turn_trigrams,
    "xmod": swap_adapters,
    "esm": keep_masks,
    "albert": unshare,
    "bert": swap_norms,
    "bert-generation": default_eps,
    "roberta": embed(pad=None),
    "xlm-roberta": one_position_late,
    "camembert": embed(pad=None, position_offset=0),
    "data2vec-text": swap_norms,
    "roberta-prelayernorm": no_final_norm,
    "xlm-roberta-xl": swap_pre_norms,
    "megatron-bert": swap_pre_norms,
    "ernie": no_tasks,
    "electra": no_projection_bias,
    "distilbert": other_activation,
    "roc_bert": next_shape,
    "roformer": values_stay,
    "nomic_bert": swap_gate,
    "gte": each_rotary(scaling=1.0),
    "jina_embeddings_v3": each_rotary(theta=10000.0),
    "eurobert": heads_in_turn,
    "modernbert": window_of_one_more,
}
