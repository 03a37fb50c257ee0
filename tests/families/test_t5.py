"""T5's encoder from files that hold more than the encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

import addnorm
from addnorm import AddnormError
from addnorm.config import PositionBiasConfig
from addnorm.families import FAMILIES
from addnorm.nn.positions import BucketBias
from tests.twins import build_twin, random_ids, save_twin


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A T5 with its decoder, the shared table under every name that older files have."""
    folder = tmp_path / "whole"
    save_twin("t5", folder, "T5ForConditionalGeneration")
    tensors = load_file(folder / "model.safetensors")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(12, 3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_whole_t5_is_its_encoder_and_is_saved_whole(whole: Path, tmp_path: Path) -> None:
    model = addnorm.load(whole)
    ids = random_ids(9, 61)
    assert addnorm.compare(model, ids).largest <= 1e-4
    assert model.origin is not None
    assert model.origin.carried
    assert all(name.startswith(("decoder.", "lm_head.")) for name in model.origin.carried)
    addnorm.load(whole, dtype=torch.float64).save(tmp_path / "again")
    before, after = (load_file(folder / "model.safetensors") for folder in (whole, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_two_tables_that_differ_are_refused(whole: Path) -> None:
    tensors = load_file(whole / "model.safetensors")
    tensors["encoder.embed_tokens.weight"] += 1
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AddnormError, match=r"should be the same as 'shared\.weight'"):
        addnorm.load(whole)


@pytest.mark.parametrize("family", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize("projection", ["relu", "gated-gelu", "gated-silu", "gelu"])
def test_every_feed_forward_equals_the_twins(family: str, projection: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path / "twin", feed_forward_proj=projection)
    ids = random_ids(9, 57)
    expected = twin.hf(input_ids=torch.tensor([ids])).last_hidden_state[0]
    assert (twin.ours.trace(ids)["norm"] - expected).abs().max() <= 1e-9
    addnorm.Model(twin.ours.config).save(tmp_path / "fresh")
    fresh = addnorm.load(tmp_path / "fresh")
    assert fresh.config == twin.ours.config
    assert addnorm.compare(fresh, ids).largest <= 1e-4


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (12, 40), (20, 70), (64, 128), (8, 200)])
def test_buckets_have_the_references_edges(buckets: int, longest: int) -> None:
    distance = torch.arange(-3 * longest, 3 * longest)
    ours = BucketBias(PositionBiasConfig(buckets=buckets, max_distance=longest), 1)._bucket(distance)
    theirs = T5Attention._relative_position_bucket(distance, num_buckets=buckets, max_distance=longest)
    assert torch.equal(ours, theirs)
    assert torch.equal(theirs, MPNetEncoder.relative_position_bucket(distance, buckets, longest))


SMALL = {
    "architectures": ["T5WithLMHeadModel"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"early_stopping": True}},
    "vocab_size": 32128,
}
UMT5 = SMALL | {
    **{"model_type": "umt5", "d_ff": 1024, "num_heads": 6, "num_layers": 8, "num_decoder_layers": 8},
    **{"dense_act_fn": "gelu_new", "feed_forward_proj": "gated-gelu", "is_gated_act": True, "vocab_size": 256384},
    **{"scalable_attention": True, "tokenizer_class": "T5Tokenizer", "classifier_dropout": 0.0},
}


# The numbers of parameters that transformers counts for these configs.
@pytest.mark.parametrize(("hf", "count"), [(SMALL, 35_330_816), (UMT5, 150_153_216)])
def test_published_configs_are_understood(hf: dict[str, Any], count: int) -> None:
    assert FAMILIES[hf["model_type"]].from_hf(hf).num_params() == count


def test_a_decoder_is_refused() -> None:
    with pytest.raises(AddnormError, match="is_decoder"):
        FAMILIES["t5"].from_hf(SMALL | {"is_decoder": True})
