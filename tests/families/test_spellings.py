"""Configs as published, in the spelling of a family's own code or of earlier days, are read like today's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import addnorm
from addnorm.errors import AddnormError
from addnorm.files import read_object
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against
from tests.twins import random_ids, save_twin

HF = dict[str, Any]


def renamed(config: HF, names: dict[str, str]) -> HF:
    return {names.get(name, name): value for name, value in config.items() if names.get(name, name)}


def nomic(config: HF) -> HF:
    names = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "hidden_dropout_prob": "resid_pdrop",
        "attention_probs_dropout_prob": "attn_pdrop",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    config = renamed(config, names | dict.fromkeys(("rope_parameters", "hidden_act", "head_dim"), ""))
    switches = dict.fromkeys("causal parallel_block prenorm qkv_proj_bias mlp_fc1_bias mlp_fc2_bias".split(), False)
    own = {"activation_function": "swiglu", "embd_pdrop": 0.0, "rotary_emb_base": 700, "use_flash_attn": True}
    rotary = {"rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_scaling_factor": None}
    return config | switches | own | rotary | {"use_rms_norm": False, "summary_type": "cls_index", "auto_map": {}}


def new(config: HF) -> HF:
    config = renamed(config, {"rope_parameters": ""})
    own = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False}
    packed = {"pack_qkv": True, "unpad_inputs": "true", "use_memory_efficient_attention": "true"}
    scaling = {"rope_theta": 450, "rope_scaling": {"type": "ntk", "factor": 2.0}}
    return config | own | packed | scaling | {"model_type": "new", "architectures": ["NewModel"]}


def modern(config: HF) -> HF:
    config = renamed(config, {"rope_parameters": "", "layer_types": ""})
    thetas = {"global_rope_theta": 600.0, "local_rope_theta": 50.0}
    without_effect = {"position_embedding_type": "absolute", "layer_norm_eps": 1e-5, "reference_compile": None}
    return config | thetas | {"global_attn_every_n_layers": 2} | without_effect


def euro(config: HF) -> HF:
    config = renamed(config, {"rope_parameters": "", "classifier_pooling": "clf_pooling"})
    tokens = {"bos_token": "<b>", "mask_token": "<m>", "hidden_dropout": 0.0, "is_decoder": False}
    return config | tokens | {"rope_theta": 600, "rope_scaling": None}


# The NTK scaling of a head of 12 features is a linear one, with the base twice as long.
NTK = {"rope_type": "linear", "rope_theta": 900.0, "factor": 2 ** (2 / 12)}
ALTERNATING = [f"{'sliding' if i % 2 else 'full'}_attention" for i in range(5)]
OLD: list[tuple[str, str, Callable[[HF], HF], str, HF]] = [
    ("nomic_bert", "AutoModel", nomic, "", {"head_dim": 12}),
    ("nomic_bert", "NomicBertForTokenClassification", nomic, "bert.", {"head_dim": 12}),
    ("gte", "AutoModel", new, "new.", {"rope_parameters": NTK}),
    ("modernbert", "AutoModel", modern, "", {"layer_types": ALTERNATING}),
    ("eurobert", "EuroBertForSequenceClassification", euro, "model.", {}),
]


def respelled(folder: Path, respell: Callable[[HF], HF], prefix: str) -> None:
    config = respell(read_object(folder / "config.json"))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("nomic_bert.").removeprefix("model."): tensor for name, tensor in tensors.items()}
    head = ("classifier.", "dense.")
    save_file({n if n.startswith(head) else prefix + n: t for n, t in bare.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("family", "architecture", "respell", "prefix", "changes"), OLD, ids=[f"{row[0]}-{row[1]}" for row in OLD]
)
def test_an_old_spelling_is_read(
    family: str, architecture: str, respell: Callable[[HF], HF], prefix: str, changes: HF, tmp_path: Path
) -> None:
    twin: nn.Module = save_twin(family, tmp_path / "twin", architecture, **changes)
    today = addnorm.load(tmp_path / "twin").config
    respelled(tmp_path / "twin", respell, prefix)
    model = addnorm.load(tmp_path / "twin", dtype=torch.float64)
    assert model.config == today
    ids = random_ids(40, 61)
    assert against(model, twin, Tokens(ids, [0] * len(ids), len(ids))).first_above(1e-9) is None
    model.save(tmp_path / "again")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("twin", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert read_object(tmp_path / "again" / "config.json") == read_object(tmp_path / "twin" / "config.json")


def test_texts_beyond_a_scaling_that_is_not_computed_are_refused(tmp_path: Path) -> None:
    save_twin("nomic_bert", tmp_path / "twin", head_dim=12)
    respelled(tmp_path / "twin", lambda hf: nomic(hf) | {"rotary_scaling_factor": 2, "max_trained_positions": 20}, "")
    model = addnorm.load(tmp_path / "twin")
    assert model.max_positions == 20
    model.trace(random_ids(20, 61), until="blocks.0")
    with pytest.raises(AddnormError, match="beyond the 20"):
        model.trace(random_ids(21, 61), until="blocks.0")


@pytest.mark.parametrize(
    ("family", "changes", "complaint"),
    [
        ("gte", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling 'yarn'"),
        ("gte", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "rotary parameter 'beta'"),
        ("eurobert", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "'partial_rotary_factor'"),
        ("gte", {"logn_attention_scale": True}, "'logn_attention_scale' is True"),
        ("nomic_bert", {"prenorm": True}, "'prenorm' is True"),
        ("nomic_bert", {"num_experts": 8}, "'num_experts'"),
        ("nomic_bert", {"n_layer": 2}, "'num_hidden_layers' is 3, but 'n_layer', its earlier name, says 2"),
        ("nomic_bert", {"activation_function": "gelu"}, "'activation_function' is 'gelu'"),
        ("modernbert", {"layer_types": ["full_attention"]}, "for each of 5 blocks"),
        (
            "modernbert",
            {"classifier_pooling": "max", "architectures": ["ModernBertForSequenceClassification"]},
            "'max'",
        ),
        ("jina_embeddings_v3", {"position_embedding_type": "alibi"}, "'position_embedding_type' is 'alibi'"),
        ("roformer", {"rope_theta": 10000}, "'rope_theta'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(family: str, changes: HF, complaint: str, tmp_path: Path) -> None:
    save_twin(family, tmp_path, changes.get("architectures", ["AutoModel"])[0])
    config = read_object(tmp_path / "config.json") | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AddnormError, match=complaint):
        addnorm.load(tmp_path)
