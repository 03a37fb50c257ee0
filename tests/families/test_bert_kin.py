"""What sets BERT's relatives apart: counting from the padding id, narrow tables, side tables, old files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

import addnorm
from addnorm.errors import AddnormError
from addnorm.families import FAMILIES, family_of
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against
from tests.twins import Twin, build_twin, random_ids


def assert_same(twin: Twin, ids: list[int]) -> None:
    assert against(twin.ours, twin.hf, Tokens(ids, [0] * len(ids), len(ids))).first_above(1e-9) is None


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "roberta-prelayernorm", "xlm-roberta-xl"])
def test_the_padding_id_in_a_text_takes_no_place(family: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path)
    pad = twin.hf.config.pad_token_id
    assert twin.ours.config.embeddings.pad == pad
    assert twin.ours.config.embeddings.position_offset == pad + 1
    texts = [[pad, 7, 8], [7, pad, 8, pad, pad, 9], [7, 8, pad], [pad], [7, 8], [pad, pad, 9, 10]]
    together = twin.ours.trace(texts)
    for i, ids in enumerate(texts):
        assert_same(twin, ids)
        alone = twin.ours.trace(ids)
        for site in alone.sites:
            torch.testing.assert_close(together[i][site], alone[site], rtol=0, atol=1e-10)


def test_the_longest_text_fits_and_one_more_token_does_not(tmp_path: Path) -> None:
    twin = build_twin("xlm-roberta", tmp_path, max_position_embeddings=14)
    assert twin.ours.max_positions == 8  # rows 6 to 13
    assert_same(twin, random_ids(8, 67))
    with pytest.raises(AddnormError, match="position 14 is outside the model's 14 positions"):
        twin.ours.trace([7] * 9)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("electra", {"embedding_size": 36}),  # as wide as the stream: no projection
        ("ernie", {"use_task_id": False}),
        ("roc_bert", {"concat_input": False}),
        ("roc_bert", {"enable_shape": False}),
        ("roc_bert", {"enable_pronunciation": False}),
        ("roc_bert", {"enable_shape": False, "enable_pronunciation": False}),
    ],
)
def test_variants(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path / "twin", **changes)
    assert_same(twin, random_ids(17, 61))
    assert twin.ours.config.num_params() == sum(p.numel() for p in twin.ours.encoder.parameters())
    twin.ours.save(tmp_path / "again")
    before, after = load_file(tmp_path / "twin/model.safetensors"), load_file(tmp_path / "again/model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    addnorm.Model(twin.ours.config).save(tmp_path / "fresh")
    assert addnorm.load(tmp_path / "fresh").config == twin.ours.config


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("roberta", "RobertaForMaskedLM"),
        ("electra", "ElectraForMaskedLM"),
        ("distilbert", "DistilBertForMaskedLM"),
        ("megatron-bert", "MegatronBertForMaskedLM"),
    ],
)
def test_an_output_matrix_of_its_own(family: str, architecture: str, tmp_path: Path) -> None:
    twin = build_twin(family, tmp_path, architecture, tie_word_embeddings=False)
    assert twin.ours.config.head is not None
    assert not twin.ours.config.head.tied
    assert_same(twin, random_ids(17, 61))
    addnorm.Model(twin.ours.config).save(tmp_path / "fresh")
    assert addnorm.load(tmp_path / "fresh").config == twin.ours.config


def test_an_output_matrix_of_its_own_with_the_older_bias(tmp_path: Path) -> None:
    """Until transformers 5 the two biases were one, and the file held it under the shorter name."""
    twin = build_twin("roberta", tmp_path, "RobertaForMaskedLM", tie_word_embeddings=False)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.bias"] = tensors.pop("lm_head.decoder.bias")
    save_file(tensors, file, metadata={"format": "pt"})
    assert_same(Twin(twin.hf, tmp_path, addnorm.load(tmp_path, dtype=torch.float64)), random_ids(17, 61))


def test_an_older_roberta_file(tmp_path: Path) -> None:
    """It repeats the token table, holds the positions' numbers, and a pooler beside the masked-LM head."""
    twin = build_twin("roberta", tmp_path, "RobertaForMaskedLM")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.decoder.weight"] = tensors["roberta.embeddings.word_embeddings.weight"].clone()
    tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].clone()
    tensors["roberta.embeddings.position_ids"] = torch.arange(208)[None]
    tensors["roberta.pooler.dense.weight"] = torch.randn(36, 36, dtype=torch.float64)
    tensors["roberta.pooler.dense.bias"] = torch.randn(36, dtype=torch.float64)
    save_file(tensors, file, metadata={"format": "pt"})
    ours = addnorm.load(tmp_path, dtype=torch.float64)
    assert ours.config.pooler
    assert_same(Twin(twin.hf, tmp_path, ours), random_ids(17, 61))
    ours.save(tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


# The fields of config.json files on the hub.
PUBLISHED: dict[str, dict[str, Any]] = {
    "roberta": {
        "architectures": ["RobertaForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "xlm-roberta": {
        "architectures": ["XLMRobertaForQuestionAnswering"],
        "gradient_checkpointing": False,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "language": "english",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514,
        "name": "XLMRoberta",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "output_past": True,
        "position_embedding_type": "absolute",
        "type_vocab_size": 1,
        "vocab_size": 250002,
    },
    "distilbert": {
        "activation": "gelu",
        "architectures": ["DistilBertForSequenceClassification"],
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "finetuning_task": "sst-2",
        "hidden_dim": 3072,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
        "initializer_range": 0.02,
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
        "max_position_embeddings": 512,
        "n_heads": 12,
        "n_layers": 6,
        "output_past": True,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": 30522,
    },
    "ernie": {
        "architectures": ["ErnieForMaskedLM"],
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "task_type_vocab_size": 3,
        "type_vocab_size": 4,
        "use_task_id": True,
        "vocab_size": 40000,
    },
    "electra": {
        "architectures": ["ElectraForPreTraining"],
        "embedding_size": 128,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
        "summary_type": "first",
        "summary_use_proj": True,
    },
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_configs(family: str) -> None:
    hf = PUBLISHED[family] | {"model_type": family}
    with torch.device("meta"):
        twin = AutoModel.from_config(AutoConfig.for_model(family, **PUBLISHED[family]))
    names = twin.state_dict().keys()
    config = family_of(hf).from_hf(hf, names)
    assert config.num_params() - config.num_params("head") == sum(p.numel() for p in twin.parameters())
    assert config.max_tokens == (2048 if family == "ernie" else 512)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("roberta", {"pad_token_id": None}, "'pad_token_id' is None; expected a whole number of at least 0"),
        ("xlm-roberta", {"type_vocab_size": 0}, "'type_vocab_size' is 0; expected a whole number of at least 1"),
        ("electra", {"position_embedding_type": "relative_key"}, "computes only 'absolute'"),
        ("bert-generation", {"is_decoder": True}, "'is_decoder' is True"),
        ("distilbert", {"dim": 50}, "'dim' is 50, 'n_heads' 12"),
        ("roc_bert", {"shape_vocab_size": 0}, "a table of 0 rows, 512 wide, holds nothing"),
        ("megatron-bert", {"window": 3}, r"field 'window' \(3\) is unknown"),
    ],
)
def test_what_is_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AddnormError, match=message):
        FAMILIES[family].from_hf({"model_type": family, **changes})


def test_dropout_stands_where_the_twin_has_it() -> None:
    """Two in a RoBERTa classifier; the field goes back to the config."""
    hf = {"architectures": ["RobertaForSequenceClassification"], "classifier_dropout": 0.3}
    config = FAMILIES["roberta"].from_hf(hf)
    assert config.head is not None
    assert (config.head.dropout_in, config.head.dropout) == (0.3, 0.3)
    assert FAMILIES["roberta"].to_hf(config)["classifier_dropout"] == 0.3
