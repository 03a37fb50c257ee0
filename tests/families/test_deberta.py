"""DeBERTa's options one by one, beside what the shared tests of families see."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

import addnorm
from addnorm import AddnormError
from addnorm.config import RelativeConfig
from addnorm.families import FAMILIES
from addnorm.nn.disentangled import RelativeTable
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against
from tests.families.test_families import result_of
from tests.twins import build_twin, random_ids

PLAIN = {"relative_attention": False, "pos_att_type": None}
BOTH: list[dict[str, Any]] = [
    {"pos_att_type": ["c2p"]},
    {"pos_att_type": ["p2c"]},
    {"max_relative_positions": -1},
    {"position_biased_input": True, "type_vocab_size": 0},
    {**PLAIN, "position_biased_input": True},
    PLAIN,
]
V2 = [
    {"share_att_key": False},
    {"share_att_key": False, "pos_att_type": ["c2p"]},
    {"share_att_key": False, "pos_att_type": ["p2c"], "norm_rel_ebd": "none"},
    {"position_buckets": -1, "max_relative_positions": 17},
    {"position_buckets": 64, "max_relative_positions": 90},
    {"conv_kernel_size": 0},
    {"conv_act": "tanh", "conv_groups": 1, "conv_kernel_size": 1},
]
# Without a table transformers keeps its norm all the same, which nothing reads.
V2_BOTH = [change | ({"norm_rel_ebd": "none"} if PLAIN.items() <= change.items() else {}) for change in BOTH]
VARIANTS = [("deberta", change) for change in BOTH] + [("deberta-v2", change) for change in V2_BOTH + V2]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_every_option_equals_the_twins(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path / "twin", **changes)
    for length in (1, 2, 63, 200):
        ids = random_ids(length, 61)
        assert against(twin.ours, twin.hf, Tokens(ids, [0] * length, length)).first_above(1e-9) is None
    addnorm.Model(twin.ours.config).save(tmp_path / "fresh")
    fresh = addnorm.load(tmp_path / "fresh")
    assert fresh.config == twin.ours.config
    assert addnorm.compare(fresh, random_ids(63, 61)).largest <= 1e-4


@pytest.mark.parametrize(("family", "stem"), [("deberta", "Deberta"), ("deberta-v2", "DebertaV2")])
def test_the_head_that_is_no_longer_legacy(family: str, stem: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path / "twin", f"{stem}ForMaskedLM", legacy=False)
    assert "lm_predictions.lm_head.bias" in load_file(tmp_path / "twin" / "model.safetensors")
    ids = random_ids(9, 61)
    logits = twin.ours.trace(ids, sites="head.logits")["head.logits"]
    assert (logits - result_of(twin.hf, ids)).abs().max() <= 1e-9
    twin.ours.save(tmp_path / "again")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("twin", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("span", "longest"), [(256, 512), (14, 205), (64, 90), (6, 1000), (128, 2048)])
def test_buckets_have_the_references_edges(span: int, longest: int) -> None:
    distance = torch.arange(-3 * longest, 3 * longest)
    ours = RelativeTable(RelativeConfig(span=span, max_distance=longest), 1)._bucket(distance)
    assert torch.equal(ours, make_log_bucket_position(distance, span, longest).long())


PUBLISHED = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 0,
}
BASE = {**PUBLISHED, "model_type": "deberta", "pos_att_type": "c2p|p2c", "vocab_size": 50265, "padding_idx": 0}
V3 = {
    **PUBLISHED,
    **{"model_type": "deberta-v2", "vocab_size": 128100, "position_buckets": 256, "norm_rel_ebd": "layer_norm"},
    **{"share_att_key": True, "pos_att_type": "p2c|c2p"},
}
XLARGE = V3 | {"attention_head_size": 64, "conv_kernel_size": 3, "conv_act": "gelu"}


# The numbers of parameters that transformers counts for these configs.
@pytest.mark.parametrize(("hf", "count"), [(BASE, 138_601_728), (V3, 183_831_552), (XLARGE, 185_603_328)])
def test_published_configs_are_understood(hf: dict[str, Any], count: int) -> None:
    assert FAMILIES[hf["model_type"]].from_hf(hf).num_params() == count


@pytest.mark.parametrize(
    ("hf", "says"),
    [
        (BASE | {"pos_att_type": "c2p|p2p"}, "pos_att_type"),
        (BASE | {"pos_att_type": "c2p|c2p"}, "pos_att_type"),
        (BASE | {"talking_head": True}, "talking_head"),
        (V3 | {"embedding_size": 128}, "embedding_size"),
        (V3 | {"conv_kernel_size": 4}, "kernel 4"),
        (V3 | {"share_key": True}, "share_key"),
    ],
)
def test_what_is_not_computed_is_refused(hf: dict[str, Any], says: str) -> None:
    with pytest.raises(AddnormError, match=says):
        FAMILIES[hf["model_type"]].from_hf(hf)


def test_what_only_pretraining_used_is_kept(tmp_path: Path) -> None:
    """Published files hold positions and heads that the encoder does not read."""
    twin = build_twin("deberta-v2", tmp_path / "twin")
    tensors = load_file(tmp_path / "twin" / "model.safetensors")
    extra = ("deberta.embeddings.position_embeddings.weight", "mask_predictions.dense.weight")
    extra += ("lm_predictions.lm_head.bias",)
    named = {f"deberta.{name}": tensor for name, tensor in tensors.items()}
    named |= {name: torch.ones(2, 3) for name in extra}
    torch.save(named, tmp_path / "twin" / "pytorch_model.bin")
    (tmp_path / "twin" / "model.safetensors").unlink()
    ours = addnorm.load(tmp_path / "twin", dtype=torch.float64)
    assert ours.config == twin.ours.config
    assert ours.origin is not None
    assert ours.origin.carried.keys() == set(extra)
    ours.save(tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == named.keys()
    assert all(torch.equal(named[name], again[name]) for name in named)
