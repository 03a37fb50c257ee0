"""The real MiniLM against its twin; the families' tests compare random ones."""

import copy

import pytest
import torch

import addnorm
from addnorm.nn.encoder import Encoder
from addnorm.trace.compare import Comparison, Difference, compare, load_twin, twin_values
from tests.texts import VARIED

SENTENCES = ("this is a test sentence", "word", "", VARIED[-1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_minilm_equals_its_twin_at_every_site(dtype: torch.dtype, tolerance: float) -> None:
    model = addnorm.load(dtype=dtype)
    for text in SENTENCES:
        comparison = compare(model, text)
        assert comparison.first_above(tolerance) is None
        sites = {row.site for row in comparison.differences}
        # Only the scores have no module in transformers, and the pooling none in the encoder.
        unseen = {site for site in model.trace(text).sites if site not in sites}
        assert {site.rpartition(".")[2] for site in unseen} == {"scores", "pooling"}


def test_hidden_states_are_embeddings_and_blocks(minilm: addnorm.Model) -> None:
    assert minilm.origin is not None
    assert minilm.origin.folder is not None
    twin = load_twin(minilm.origin, minilm.origin.folder, torch.float32)
    (tokens,) = minilm.as_tokens("this is a test sentence")
    states = twin(input_ids=torch.tensor([tokens.ids]), output_hidden_states=True).hidden_states
    trace = minilm.trace(tokens)
    sites = ["embeddings", *(f"blocks.{i}" for i in range(6))]
    assert len(states) == len(sites)
    for state, site in zip(states, sites, strict=True):
        assert (state[0] - trace[site]).abs().max() <= 1e-5, site


def swap_norms(encoder: Encoder) -> None:
    block = encoder.blocks[1]
    block.attention.norm_out, block.feedforward.norm_out = block.feedforward.norm_out, block.attention.norm_out


def swap_query_and_value(encoder: Encoder) -> None:
    sublayer = encoder.blocks[1].attention.sublayer
    sublayer.query, sublayer.value = sublayer.value, sublayer.query


def drop_alpha(encoder: Encoder) -> None:
    encoder.blocks[1].attention.add.alpha.value = 0.0


def swap_biases(encoder: Encoder) -> None:
    sublayer = encoder.blocks[1].attention.sublayer
    sublayer.query.bias, sublayer.value.bias = sublayer.value.bias, sublayer.query.bias


MUTANTS = {
    swap_norms: "blocks.1.attention.norm_out",
    swap_query_and_value: "blocks.1.attention.query",
    swap_biases: "blocks.1.attention.query",
    drop_alpha: "blocks.1.attention.add",
}


@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_mutant_is_caught_where_it_differs(mutate, minilm: addnorm.Model) -> None:  # type: ignore[no-untyped-def]
    mutant = addnorm.Model(
        minilm.config,
        encoder=copy.deepcopy(minilm.encoder),
        tokenizer=minilm.tokenizer,
        settings=minilm.settings,
        origin=minilm.origin,
    )
    mutate(mutant.encoder)
    first = compare(mutant, "this is a test sentence").first_above(1e-5)
    assert first is not None
    assert first.site == MUTANTS[mutate]


def test_not_a_number_is_a_difference() -> None:
    comparison = Comparison((Difference("a", "b", 0.0), Difference("c", "d", float("nan"))), "float32")
    first = comparison.first_above(1e-5)
    assert first is not None
    assert first.site == "c"


def test_a_model_without_a_folder_has_no_twin() -> None:
    config = addnorm.EncoderConfig.transformer_base(vocabulary=20, max_positions=8)
    with pytest.raises(addnorm.AddnormError, match="no twin"):
        compare(addnorm.Model(config), [1, 2])


def test_values_are_of_the_places_asked_for(minilm: addnorm.Model) -> None:
    assert minilm.origin is not None
    assert minilm.origin.folder is not None
    twin = load_twin(minilm.origin, minilm.origin.folder, torch.float32)
    places = minilm.origin.family.twin_sites(minilm.config, minilm.origin.hf)
    (tokens,) = minilm.as_tokens("word")
    values = twin_values(twin, {"blocks.0": places["blocks.0"]}, tokens)
    assert values["blocks.0"].shape == (3, 384)
