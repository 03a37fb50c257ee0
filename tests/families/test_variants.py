"""Settings of a family that its small twin in test_families.py does not have."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

import addnorm
from addnorm.errors import AddnormError
from addnorm.families import FAMILIES
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against, load_twin
from addnorm.trace.measure import identity_error, measure_unit
from tests.small import SMALL
from tests.twins import build_twin, float64_throughout, random_ids, save_twin

HF = dict[str, Any]

ADAPTER_NORMS: list[HF] = [
    {"pre_norm": pre, "ln_before_adapter": before, "adapter_layer_norm": own, "adapter_reuse_layer_norm": reused}
    for pre, before, (own, reused) in product(
        (False, True), (False, True), ((True, True), (False, True), (False, False))
    )
]
VARIANTS: list[tuple[str, HF]] = [
    ("albert", {"num_hidden_groups": 1, "inner_group_num": 1}),
    ("albert", {"num_hidden_groups": 5, "inner_group_num": 1}),
    ("albert", {"num_hidden_groups": 3, "inner_group_num": 3, "num_hidden_layers": 4}),
    ("esm", {"position_embedding_type": "absolute"}),
    ("esm", {"token_dropout": False, "emb_layer_norm_before": False}),
    *(("xmod", changes) for changes in ADAPTER_NORMS),
    ("mobilebert", {"normalization_type": "layer_norm"}),
    ("mobilebert", {"use_bottleneck": False, "hidden_size": 24}),
    ("mobilebert", {"use_bottleneck_attention": True}),
    ("mobilebert", {"num_feedforward_networks": 1}),
    ("mobilebert", {"num_feedforward_networks": 2, "trigram_input": False}),
    ("mobilebert", {"trigram_input": False, "embedding_size": 22}),
    ("mobilebert", {"trigram_input": True, "embedding_size": 22}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(VARIANTS)])
def test_every_site_equals_the_twins(family: str, changes: HF, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path / "twin", **changes)
    for length in (1, 7, 63):
        ids = random_ids(length, twin.ours.config.embeddings.vocabulary)
        assert against(twin.ours, twin.hf, Tokens(ids, [0] * length, length)).first_above(1e-9) is None
    twin.ours.save(tmp_path / "again")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("twin", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    addnorm.Model(twin.ours.config).save(tmp_path / "fresh")
    assert addnorm.load(tmp_path / "fresh").config == twin.ours.config
    assert twin.ours.config.num_params() == sum(p.numel() for p in twin.ours.encoder.parameters())


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("MobileBertForSequenceClassification", {"classifier_activation": False}),
        ("MobileBertForMaskedLM", {"tie_word_embeddings": False}),
        ("MobileBertForMaskedLM", {"embedding_size": 22}),
        ("AlbertForMaskedLM", {"tie_word_embeddings": False}),
        ("EsmForMaskedLM", {"tie_word_embeddings": False}),
        ("XmodForMaskedLM", {"tie_word_embeddings": False}),
    ],
)
def test_a_heads_variant_equals_the_twins(architecture: str, changes: HF, tmp_path: Path) -> None:
    family = next(name for name, family in FAMILIES.items() if architecture in family.heads)
    twin = build_twin(family, tmp_path / "twin", architecture, **changes)
    ids = random_ids(7, twin.ours.config.embeddings.vocabulary)
    comparison = against(twin.ours, twin.hf, Tokens(ids, [0] * 7, 7))
    assert comparison.first_above(1e-9) is None
    assert "head.logits" in {row.site for row in comparison.differences}
    addnorm.Model(twin.ours.config).save(tmp_path / "fresh")
    assert addnorm.load(tmp_path / "fresh").config == twin.ours.config


def test_a_language_is_chosen_by_name(tmp_path: Path) -> None:
    hf = save_twin("xmod", tmp_path / "twin")
    ids = random_ids(7, SMALL["xmod"]["vocab_size"])
    tokens = Tokens(ids, [0] * 7, 7)
    ours = addnorm.load(tmp_path / "twin", dtype=torch.float64, language="sw_KE")
    hf.set_default_language("sw_KE")
    assert against(ours, hf, tokens).first_above(1e-9) is None
    assert ours.origin is not None
    assert ours.origin.folder is not None
    with float64_throughout():
        twin = load_twin(ours.origin, ours.origin.folder, torch.float64)
        assert against(ours, twin, tokens).first_above(1e-9) is None
    ours.save(tmp_path / "again")
    again = addnorm.load(tmp_path / "again", dtype=torch.float64)
    assert torch.equal(again.trace(ids)["blocks.2"], ours.trace(ids)["blocks.2"])


def test_no_language_is_no_guess(tmp_path: Path) -> None:
    save_twin("xmod", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"default_language": None}))
    with pytest.raises(AddnormError, match=r"'default_language' is None; .* en_XX, de_DE, sw_KE.*language='en_XX'"):
        addnorm.load(tmp_path)
    with pytest.raises(AddnormError, match="'default_language' is 'xx'"):
        addnorm.load(tmp_path, language="xx")
    with pytest.raises(AddnormError, match="family xmod has no option 'lang'; it has language"):
        addnorm.load(tmp_path, lang="de_DE")


def test_an_option_no_family_has_is_refused(tmp_path: Path) -> None:
    save_twin("bert", tmp_path)
    with pytest.raises(AddnormError, match="family bert has no option 'language'; it has none"):
        addnorm.load(tmp_path, language="de_DE")


def test_frequencies_of_half_precision_are_kept(tmp_path: Path) -> None:
    """As in the published ESM-2: a buffer in each block, rounded by training in float16."""
    hf = save_twin("esm", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (name,) = [name for name in tensors if "inv_freq" in name]
    rounded = tensors.pop(name).half().float()
    prefix = "encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    tensors |= {prefix.format(i): rounded.clone() for i in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    ours = addnorm.load(tmp_path, dtype=torch.float64)
    ids = random_ids(63, SMALL["esm"]["vocab_size"])
    assert against(ours, hf, Tokens(ids, [0] * 63, 63)).first_above(1e-9) is not None
    hf.rotary_embeddings.inv_freq.copy_(rounded)
    assert against(ours, hf, Tokens(ids, [0] * 63, 63)).first_above(1e-9) is None
    ours.save(tmp_path / "again")
    saved = load_file(tmp_path / "again" / "model.safetensors")
    assert saved.keys() == tensors.keys()
    assert torch.equal(saved[prefix.format(2)], rounded)


def test_a_text_of_masks_alone_is_finite(tmp_path: Path) -> None:
    twin = build_twin("esm", tmp_path)
    assert torch.isfinite(twin.ours.trace([32, 32])["norm"]).all()


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("albert", {"num_hidden_groups": 13}, "13 num_hidden_groups"),
        ("albert", {"num_hidden_layers": 2, "num_hidden_groups": 2, "inner_group_num": 2}, "expected fewer groups"),
        ("esm", {"is_folding_model": True}, "'is_folding_model' is True"),
        ("esm", {"vocab_size": 33, "position_embedding_type": "absolute"}, "'pad_token_id' is None"),
        ("mobilebert", {"key_query_shared_bottleneck": False}, "neither queries nor values"),
        ("mobilebert", {"true_hidden_size": 130}, "'true_hidden_size' is 130"),
        ("xmod", {"is_decoder": True}, "'is_decoder' is True"),
    ],
)
def test_another_computation_is_refused(family: str, changes: HF, says: str) -> None:
    with pytest.raises(AddnormError, match=says):
        FAMILIES[family].from_hf({"model_type": family, **changes})


# As published: facebook/esm2_t6_8M_UR50D, facebook/xmod-base, google/mobilebert-uncased, albert/albert-base-v2.
PUBLISHED: dict[str, HF] = {
    "esm": {
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": None,
        "emb_layer_norm_before": False,
        "esmfold_config": None,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 320,
        "intermediate_size": 1280,
        "is_folding_model": False,
        "layer_norm_eps": 1e-05,
        "mask_token_id": 32,
        "max_position_embeddings": 1026,
        "num_attention_heads": 20,
        "num_hidden_layers": 6,
        "pad_token_id": 1,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "use_cache": True,
        "vocab_list": None,
        "vocab_size": 33,
    },
    "xmod": {
        "adapter_layer_norm": False,
        "adapter_reduction_factor": 2,
        "adapter_reuse_layer_norm": True,
        "classifier_dropout": None,
        "default_language": None,
        "languages": ["en_XX", "id_ID"],
        "layer_norm_eps": 1e-05,
        "ln_before_adapter": True,
        "max_position_embeddings": 514,
        "position_embedding_type": "absolute",
        "pre_norm": False,
        "type_vocab_size": 1,
        "vocab_size": 250002,
    },
    "mobilebert": {
        "classifier_activation": False,
        "embedding_size": 128,
        "hidden_act": "relu",
        "hidden_size": 512,
        "intermediate_size": 512,
        "intra_bottleneck_size": 128,
        "key_query_shared_bottleneck": True,
        "normalization_type": "no_norm",
        "num_attention_heads": 4,
        "num_feedforward_networks": 4,
        "num_hidden_layers": 24,
        "trigram_input": True,
        "true_hidden_size": 128,
        "use_bottleneck": True,
        "use_bottleneck_attention": False,
    },
    "albert": {
        "attention_probs_dropout_prob": 0,
        "classifier_dropout_prob": 0.1,
        "down_scale_factor": 1,
        "embedding_size": 128,
        "gap_size": 0,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "hidden_size": 768,
        "inner_group_num": 1,
        "intermediate_size": 3072,
        "layers_to_keep": [],
        "net_structure_type": 0,
        "num_attention_heads": 12,
        "num_hidden_groups": 1,
        "num_hidden_layers": 12,
        "num_memory_blocks": 0,
        "vocab_size": 30000,
    },
    "esmc": {},
    # What transformers takes where a config says nothing.
    "mobilebert ": {},
    "albert ": {},
    "xmod ": {},
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_configs_have_as_many_parameters_as_the_twins(family: str) -> None:
    name, changes = family.strip(), PUBLISHED[family]
    with torch.device("meta"):
        twin = AutoModel.from_config(AutoConfig.for_model(name, **changes))
    other = [f"encoder.layer.{i}.output.adapter_modules.id_ID." for i in range(12)]
    beside = ("pooler.", "contact_head.", *other)
    expected = sum(p.numel() for n, p in twin.named_parameters() if not n.startswith(beside))
    config = FAMILIES[name].from_hf({"model_type": name, **changes})
    assert config.num_params() == expected


@pytest.mark.parametrize("family", ["albert", "esm", "esmc", "mobilebert", "xmod"])
def test_the_sum_is_exact_at_every_unit(family: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path)
    trace = twin.ours.trace(random_ids(7, SMALL[family]["vocab_size"]))
    assert identity_error(twin.ours.encoder, trace) == 0
    adds = [site for site in trace.sites if site.endswith(".add")]
    units = {"mobilebert": 5, "xmod": 3}.get(family, 2)
    assert len(adds) == units * len(twin.ours.config.blocks)
    for site in adds:
        _, block, unit = site.removesuffix(".add").split(".", 2)
        assert measure_unit(twin.ours.encoder, trace, int(block), unit)["unit"] == site.removesuffix(".add")
