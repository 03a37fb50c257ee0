"""Loading, encoding, saving."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

import addnorm
from addnorm.files import read_object
from tests.texts import VARIED, docstrings
from tests.twins import random_ids, save_twin

pytestmark = pytest.mark.filterwarnings("ignore::addnorm.errors.Remark")


def folder_of(model: addnorm.Model) -> Path:
    assert model.origin is not None
    assert model.origin.folder is not None
    return model.origin.folder


def test_encode_equals_sentence_transformers(minilm: addnorm.Model) -> None:
    texts = [*VARIED, *docstrings(200 - len(VARIED))]
    assert len(texts) == 200
    reference = SentenceTransformer(str(folder_of(minilm)), device="cpu")
    vectors = minilm.encode(texts)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - reference.encode(texts)).max() <= 1e-5


def test_encode_keeps_the_order_of_its_input(minilm: addnorm.Model) -> None:
    texts = ["a much longer text than the others, to be computed first", "b", "c d e"]
    vectors = minilm.encode(texts, batch_tokens=8)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.abs(minilm.encode(text) - vector).max() <= 1e-6


def test_encode_shapes(minilm: addnorm.Model) -> None:
    assert minilm.encode([]).shape == (0, 384)
    assert minilm.encode("one").shape == (384,)
    assert minilm.encode(["one"]).shape == (1, 384)


def test_normalize_follows_the_checkpoint_unless_told(minilm: addnorm.Model) -> None:
    as_stated, raw = minilm.encode("text"), minilm.encode("text", normalize=False)
    assert np.linalg.norm(as_stated) == pytest.approx(1, abs=1e-6)
    assert abs(np.linalg.norm(raw) - 1) > 0.1
    assert np.abs(raw / np.linalg.norm(raw) - as_stated).max() <= 1e-6


def test_long_texts_are_cut_with_one_remark(minilm: addnorm.Model) -> None:
    long = "word " * 600
    with pytest.warns(addnorm.Remark, match=r"2 texts are longer than 256 tokens \(up to 602\)") as remarks:
        minilm.encode([long, "short", long])
    assert len(remarks) == 1
    with pytest.warns(addnorm.Remark, match="1 text is longer than 512 tokens"):
        whole = minilm.trace(long, max_tokens=512, sites="embeddings")
    assert whole["embeddings"].shape == (512, 384)
    assert whole.tokens[-1] == "[SEP]"
    with pytest.raises(addnorm.AddnormError, match="600 exceeds the model's 512 positions"):
        minilm.encode(long, max_tokens=600)


def test_encode_refuses_what_it_cannot_do(minilm: addnorm.Model) -> None:
    with pytest.raises(addnorm.AddnormError, match="text 1 is a int; expected str"):
        minilm.encode(["a", 3])  # type: ignore[list-item]
    with pytest.raises(addnorm.AddnormError, match="precision 'int3' is unknown"):
        minilm.encode("a", precision="int3")
    with pytest.raises(addnorm.AddnormError, match="max_tokens 2 leaves no room"):
        minilm.encode("a", max_tokens=2)


def test_encoding_leaves_the_training_mode_alone(minilm: addnorm.Model) -> None:
    model = addnorm.load(folder_of(minilm))
    model.encoder.train()
    first, second = model.encode("a text"), model.encode("a text")
    assert np.array_equal(first, second)
    assert model.encoder.training


def test_saved_minilm_is_the_same_file_and_loads_elsewhere(minilm: addnorm.Model, tmp_path: Path) -> None:
    minilm.save(tmp_path / "saved")
    before = folder_of(minilm)
    ours, theirs = load_file(tmp_path / "saved" / "model.safetensors"), load_file(before / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert read_object(tmp_path / "saved" / "config.json") == read_object(before / "config.json")

    text = "saved and loaded again"
    vector = minilm.encode(text)
    assert np.array_equal(addnorm.load(tmp_path / "saved").encode(text), vector)
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert np.abs(again.encode(text) - vector).max() <= 1e-5
    twin = AutoModel.from_pretrained(tmp_path / "saved").eval()
    (tokens,) = minilm.as_tokens(text)
    state = twin(input_ids=torch.tensor([tokens.ids])).last_hidden_state[0]
    assert (state - minilm.trace(tokens)["blocks.5"]).abs().max() <= 1e-5


def test_saving_changed_weights_over_the_folder_they_came_from(tmp_path: Path) -> None:
    save_twin("bert", tmp_path / "m")
    model = addnorm.load(tmp_path / "m", dtype=torch.float64)
    with torch.no_grad():
        model.encoder.embeddings.tokens.weight[0] += 1
    expected = model.encoder.embeddings.tokens.weight.clone()
    model.save(tmp_path / "m")
    assert torch.equal(model.encoder.embeddings.tokens.weight, expected)
    again = addnorm.load(tmp_path / "m", dtype=torch.float64)
    assert torch.equal(again.encoder.embeddings.tokens.weight, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_a_fresh_model_saves_as_bert_and_transformers_reads_it(tmp_path: Path) -> None:
    save_twin("bert", tmp_path / "twin")
    config = addnorm.load(tmp_path / "twin").config
    fresh = addnorm.Model(config)
    fresh.save(tmp_path / "fresh")
    twin = AutoModel.from_pretrained(tmp_path / "fresh", attn_implementation="eager").eval()
    ids = random_ids(9, 61)
    state = twin(input_ids=torch.tensor([ids])).last_hidden_state[0]
    assert (state - fresh.trace(ids)["blocks.2"]).abs().max() <= 1e-5


def test_a_config_no_family_has_cannot_be_saved(tmp_path: Path) -> None:
    config = addnorm.EncoderConfig.transformer_base(vocabulary=20, max_positions=8)
    with pytest.raises(addnorm.AddnormError, match="no family can express"):
        addnorm.Model(config).save(tmp_path / "base")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_tokenizer_takes_ids_and_says_so_when_given_text(tmp_path: Path) -> None:
    save_twin("bert", tmp_path)
    model = addnorm.load(tmp_path)
    assert model.trace([3, 4, 5])["blocks.0"].shape == (3, 36)
    with pytest.raises(addnorm.AddnormError, match="no tokenizer files"):
        model.encode("text")


def test_an_unstated_pooling_is_the_mean(minilm: addnorm.Model, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(folder_of(minilm) / name, tmp_path)
    model = addnorm.load(tmp_path)
    assert not model.settings.stated
    assert np.abs(model.encode("a text") - minilm.encode("a text", normalize=False)).max() <= 1e-6


@pytest.mark.parametrize("modes", [("cls",), ("max",), ("mean_sqrt_len_tokens",), ("weightedmean",), ("cls", "mean")])
def test_poolings_equal_sentence_transformers(minilm: addnorm.Model, tmp_path: Path, modes: tuple[str, ...]) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    pooling = Pooling(384, pooling_mode=modes)
    reference = SentenceTransformer(modules=[Transformer(str(folder_of(minilm))), pooling], device="cpu")
    reference.save(str(tmp_path))
    texts = ["one", "two words", VARIED[-1]]
    assert np.abs(addnorm.load(tmp_path).encode(texts) - reference.encode(texts)).max() <= 1e-5


def test_a_dense_map_after_the_pooling_equals_sentence_transformers(minilm: addnorm.Model, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.manual_seed(0)
    dense = Dense(384, 48, activation_function=torch.nn.Tanh())
    modules = [Transformer(str(folder_of(minilm))), Pooling(384), dense, Normalize()]
    reference = SentenceTransformer(modules=modules, device="cpu")
    reference.save(str(tmp_path / "dense"))
    model = addnorm.load(tmp_path / "dense")
    expected = reference.encode(["one", "two words"])
    assert np.abs(model.encode(["one", "two words"]) - expected).max() <= 1e-5
    model.save(tmp_path / "again")
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(["one", "two words"])
    assert np.abs(again - expected).max() <= 1e-5
