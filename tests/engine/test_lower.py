"""The engine against the plain model: every family, every make of block, and when parameters change."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import addnorm
from addnorm.batch import Batch
from addnorm.config import EncoderConfig
from addnorm.engine import compiled, lower, operators
from addnorm.engine.operators import has_bfloat16, has_bytes, widens
from addnorm.errors import AddnormError, Remark
from addnorm.families import FAMILIES
from addnorm.nn.encoder import Encoder
from tests.families.oracles import ORACLES, write
from tests.nn.drawn import CONFIGS, VOCABULARY, batch_of, build, ids_of, largest, magnitude, small
from tests.twins import build_twin, random_ids

LENGTHS = (1, 2, 7, 63, 200, 7, 16)
ROUGH = [*["bfloat16"] * (has_bfloat16() or widens()), *["int8"] * has_bytes()]

pytestmark = [
    pytest.mark.filterwarnings("ignore:int8 changes this model much"),
    pytest.mark.filterwarnings("ignore:this processor has no bfloat16 products"),
]


def plain(encoder: Encoder, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return encoder(batch)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> addnorm.Model:
    """A small model of each registered family, in float32."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in ORACLES:
        oracle = ORACLES[request.param]
        write(oracle, folder, oracle.base)
    else:
        folder = build_twin(request.param, folder, "AutoModel").folder
    return addnorm.load(folder)


def texts_of(model: addnorm.Model) -> list[list[int]]:
    limit = model.max_positions or max(LENGTHS)
    vocabulary = model.config.embeddings.vocabulary
    return [random_ids(min(length, limit), vocabulary) for length in LENGTHS]


def test_every_family_equals_the_plain_model(model: addnorm.Model, kernels: str) -> None:
    """In float64 by rounding alone; in float32 by 1e-5, or by what rounding does to the plain model itself.

    That is more for mobilebert (no norms, so a large stream), t5's kin, neobert and nomic_bert (one hot weights). The
    largest of many errors is chance, so it is their size on the whole that is compared.
    """
    assert {p.dtype for p in model.encoder.parameters()} == {torch.float32}
    batch, exact = Batch.pack(texts_of(model)), copy.deepcopy(model.encoder).double()
    expected = plain(exact, batch)
    size = magnitude([expected])
    assert largest(lower(exact)(batch), expected) <= 1e-9 * size
    found, own = lower(model.encoder)(batch) - expected, plain(model.encoder, batch) - expected
    assert found.abs().max() <= 1e-5 * size or found.square().mean() <= 4 * own.square().mean()


def test_every_family_gives_a_text_the_same_bits_in_company(model: addnorm.Model, kernels: str) -> None:
    engine, texts = lower(model.encoder), texts_of(model)
    together = Batch.pack(texts)
    rows = engine(together)
    for ids, span in zip(texts, together.spans, strict=True):
        alone = engine(Batch.pack([ids]))
        assert torch.equal(alone, rows[span])


@settings(max_examples=60, deadline=None)
@given(config=CONFIGS, seed=st.integers(0, 3))
def test_every_make_of_block_is_lowered(config: EncoderConfig, seed: int) -> None:
    encoder, batch = build(config, seed), batch_of(3, 1, 12, 3, seed=seed)
    expected = plain(encoder, batch)
    assert largest(lower(encoder)(batch), expected) <= 1e-9 * magnitude([expected])
    encoder = encoder.float()
    for precision in ROUGH:  # how near depends on the make; that it runs and stays finite does not
        assert lower(encoder, precision)(batch).isfinite().all() or not expected.float().isfinite().all()


# What the twins' hot weights and 36 features leave of a precision; trained weights do better (test_precisions).
@pytest.mark.parametrize(("precision", "bar"), [("bfloat16", 0.99), ("int8", 0.93)])
def test_every_family_in_rougher_precisions(model: addnorm.Model, precision: str, bar: float) -> None:
    """Near float32, and a text has the same bits in company."""
    if precision not in ROUGH:
        pytest.skip(f"no {precision} on this processor")
    texts = texts_of(model)
    engine, together = lower(model.encoder, precision, sample=texts), Batch.pack(texts)
    rows = engine(together)
    assert F.cosine_similarity(rows.float(), plain(model.encoder, together)).mean() > bar
    for ids, span in zip(texts, together.spans, strict=True):
        assert torch.equal(engine(Batch.pack([ids])), rows[span])


def test_the_encoder_is_left_alone() -> None:
    encoder = build(small()).float().train()
    before = dict(encoder.named_modules())
    first, second = (lower(encoder)(batch_of(4, 9)) for _ in range(2))
    assert torch.equal(first, second)  # no dropout
    assert encoder.training
    assert all(module is before[name] for name, module in encoder.named_modules())


def test_unknown_precisions_are_refused(minilm: addnorm.Model) -> None:
    with pytest.raises(AddnormError, match="precision 'int3' is unknown; known: float32, bfloat16, int8, auto"):
        minilm.encode("a text", precision="int3")


def test_changed_parameters_are_seen() -> None:
    torch.manual_seed(0)
    model = addnorm.Model(small())
    batch = batch_of(5, 8)
    first = model.engine()
    assert model.engine() is first
    optimiser = torch.optim.AdamW(model.encoder.parameters(), lr=0.1)
    model.encoder(batch).square().sum().backward()
    optimiser.step()
    assert model.engine() is not first
    assert largest(model.engine()(batch), plain(model.encoder, batch)) <= 1e-5
    second = model.engine()
    model.encoder.blocks[1].load_state_dict(model.encoder.blocks[0].state_dict())
    assert largest(model.engine()(batch), plain(model.encoder, batch)) <= 1e-5
    assert model.engine() is not second
    model.encoder.norm = torch.nn.LayerNorm(10, bias=False)
    assert largest(model.engine()(batch), plain(model.encoder, batch)) <= 1e-5


@pytest.mark.skipif(compiled.best() is None, reason="PyTorch's norms and tables read the parameters themselves")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_engine_keeps_what_it_was_lowered_from(precision: str) -> None:
    if precision == "int8" and not has_bytes():
        pytest.skip("no int8 on this processor")
    encoder, batch = build(small()).float(), batch_of(5, 8)
    engine = lower(encoder, precision)
    before = engine(batch)
    for parameter in encoder.parameters():
        parameter.data = torch.full_like(parameter, float("nan"))
    assert torch.equal(engine(batch), before)


def test_hooks_on_the_encoder_reach_encode(minilm: addnorm.Model) -> None:
    before = minilm.encode("a text")
    handle = minilm.encoder.blocks[2].register_forward_hook(lambda module, inputs, output: 0 * output)
    try:
        assert np.abs(minilm.encode("a text") - before).max() > 0.01
    finally:
        handle.remove()
    assert np.array_equal(minilm.encode("a text"), before)


def test_without_the_private_operators_there_is_one_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*arguments: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(compiled, "best", lambda: None)
    monkeypatch.setattr(operators, "_pointwise", absent)
    monkeypatch.setattr(operators, "_pointwise_add", absent)
    monkeypatch.setattr(operators, "_remarked", [])
    operators._works.cache_clear()
    operators._adds.cache_clear()
    encoder, batch = build(small()).float(), batch_of(5, 8, 1)
    try:
        with pytest.warns(Remark, match="cannot be used here \\(no such operator\\)") as remarks:
            engine = lower(encoder)
        assert len(remarks) == 1
        assert largest(engine(batch), plain(encoder, batch)) <= 1e-5
    finally:
        operators._works.cache_clear()
        operators._adds.cache_clear()


def test_errors_are_those_of_the_encoder() -> None:
    engine = lower(build(small()).float())
    with pytest.raises(AddnormError, match=f"token id {VOCABULARY} is outside"):
        engine(Batch.pack([*ids_of(3), [VOCABULARY]]))
