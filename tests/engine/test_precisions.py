"""bfloat16 and int8 on the real model: how near to float32, what is refused, what is said."""

import copy

import numpy as np
import pytest
import torch

import addnorm
from addnorm.config import NormConfig
from addnorm.engine import Engine, compiled, int8, lower, operators
from addnorm.engine.operators import ByteLinear, Bytes, RowBytes, has_bfloat16, has_bytes, widens
from addnorm.errors import AddnormError, Remark
from addnorm.nn.activations import ACTIVATIONS
from tests.nn.drawn import batch_of, build, small
from tests.texts import VARIED, docstrings

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*longer than:addnorm.errors.Remark"),
    pytest.mark.filterwarnings("ignore:this processor has no bfloat16 products"),
]
with_bfloat16 = pytest.mark.skipif(not (has_bfloat16() or widens()), reason="no bfloat16 on this processor")
with_bytes = pytest.mark.skipif(not has_bytes(), reason="no products of bytes on this processor")


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize(
    ("precision", "mean", "worst"),
    [
        pytest.param("bfloat16", 0.9998, 0.999, marks=with_bfloat16),
        pytest.param("int8", 0.999, 0.99, marks=with_bytes),
    ],
)
def test_the_real_model_agrees_with_float32(minilm: addnorm.Model, precision: str, mean: float, worst: float) -> None:
    texts = docstrings(300)
    near = cosines(minilm.encode(texts, precision), minilm.encode(texts))
    assert near.mean() >= mean
    assert near.min() >= worst


@pytest.mark.parametrize(
    "precision", [pytest.param("bfloat16", marks=with_bfloat16), pytest.param("int8", marks=with_bytes)]
)
def test_odd_texts_stay_finite(minilm: addnorm.Model, precision: str) -> None:
    vectors = minilm.encode([*VARIED, "a" * 100_000], precision)
    assert np.isfinite(vectors).all()
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5


@with_bytes
def test_values_beyond_the_sample_do_not_wrap() -> None:
    encoder = build(small()).float()
    engine = lower(encoder, "int8", sample=[[1, 2, 3]])
    with torch.no_grad():
        engine.encoder.embeddings.norm = None
        engine.encoder.embeddings.tokens.weight.mul_(1e4)
    assert engine(batch_of(5, 12)).isfinite().all()


@with_bytes
@pytest.mark.parametrize("activation", [None, *operators.FUSED])
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("inputs", [24, 23])
def test_products_of_bytes(activation: str | None, fixed: bool, inputs: int) -> None:
    """Against the same product of the rounded numbers in float64, for each kind of result."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 256, (40, inputs), generator=generator)
    weight, bias = (torch.randn(*s, generator=generator) for s in ((17, inputs), (17,)))
    writes = Bytes(-1.0, 4.0)
    reads = Bytes(-3.0, 3.5) if fixed else None
    if reads is not None:
        x, read = whole.to(torch.uint8), (whole.double() - reads.zero) * reads.step
    else:
        floats = (whole - 90) * torch.linspace(0.01, 0.1, 40)[:, None]
        floats[:, :2] = torch.tensor([-90.0, 165.0]) * torch.linspace(0.01, 0.1, 40)[:, None]
        x, read = RowBytes()(floats), floats.double()  # whole steps from the least to the largest number
    step = ByteLinear(weight, bias, reads, torch.float32).steps[:, None].double()
    exact = read @ ((weight / step).round() * step).T + bias
    exact = exact if activation is None else ACTIVATIONS[activation]()(exact)
    for dtype, error in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        product = ByteLinear(weight, bias, reads, dtype, activation)
        assert (product(x) - exact).abs().max() < error * max(1, float(exact.abs().max()))
    bytes_ = ByteLinear(weight, bias, reads, writes, activation)(x)
    back = (bytes_.double() - writes.zero) * writes.step
    assert (back - exact.clamp(-1, 4)).abs().max() < 0.51 * writes.step + 1e-3
    if activation is None:
        total = torch.ones(40, 17)
        assert ByteLinear(weight, bias, reads, torch.float32).add_to(total, x) is total
        assert (total - 1 - exact).abs().max() < 1e-4 * float(exact.abs().max())


@with_bytes
def test_sums_of_large_neighbours_are_not_cut() -> None:
    """Of the largest bytes, with rows whose large numbers stand side by side."""
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    weight[:, 40:44] = torch.tensor([4.0, 4.0, -4.0, -4.0])
    weight[0] = 1.0
    x = torch.full((3, 96), 255, dtype=torch.uint8)
    x[1, 42:] = 0
    product = ByteLinear(weight, None, Bytes(0.0, 255.0), torch.float32)
    whole = (weight / product.steps[:, None]).round()
    exact = x.double() @ (whole.double() * product.steps[:, None].double()).T
    assert (product(x) - exact).abs().max() < 1e-5 * exact.abs().max()


@with_bytes
def test_rows_of_bytes_are_the_same_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    x = 3 * torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
    reads = RowBytes(torch.rand(33, generator=torch.Generator().manual_seed(1)) + 0.5)
    ours = reads(x)[:, :33].int()
    monkeypatch.setattr(compiled, "best", lambda: None)
    plain = reads(x)[:, :33].int()
    assert (ours - plain).abs().max() <= 1  # x·(1/step) or x/step
    assert (ours != plain).float().mean() < 1e-3


@with_bytes
def test_what_int8_refuses_and_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = build(small()).float()
    broken = copy.deepcopy(encoder)
    broken.blocks[0].feedforward.sublayer.up.weight.data[0, 0] = float("nan")
    with pytest.raises(AddnormError, match="not finite on sample texts; take float32"):
        lower(broken, "int8")
    monkeypatch.setattr(Engine, "__call__", lambda self, batch: torch.ones(len(batch.ids), 10))
    with pytest.warns(Remark, match="int8 changes this model much"):
        lower(encoder, "int8")


def test_without_products_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lower.__globals__, "has_bytes", lambda: False)
    with pytest.raises(AddnormError, match="needs products of bytes"):
        lower(build(small()).float(), "int8")


def test_bfloat16_without_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lower.__globals__, "has_bfloat16", lambda: False)
    with pytest.warns(Remark, match="no bfloat16 products"):
        engine = lower(build(small()).float(), "bfloat16")
    assert engine(batch_of(3, 9)).isfinite().all()


def test_the_sample_is_of_many_kinds(minilm: addnorm.Model) -> None:
    texts = int8.SAMPLE.read_text(encoding="utf-8").splitlines()
    lengths = [len(t.ids) for t in minilm.tokenize(texts)]
    assert min(lengths) <= 3
    assert max(lengths) >= 100
    assert 1000 < sum(lengths) < 3000


def test_a_stream_that_grows_stays_float32() -> None:
    """Post-norm, as BERT: bfloat16 throughout, unless only matrices are; pre-norm: the stream adds up small terms."""
    for unit, dtype in (("norm_out", torch.float32 if widens() else torch.bfloat16), ("norm_in", torch.float32)):
        slots = {"norm_in": None, "norm_out": None, "alpha": 1.0, "beta": 1.0} | {unit: NormConfig()}
        encoder = build(small(attention=slots, feedforward=slots)).float()
        assert lower(encoder, "bfloat16")(batch_of(4)).dtype == dtype


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_encoders_in_other_dtypes_are_refused(precision: str) -> None:
    with pytest.raises(AddnormError, match=f"'{precision}' is for encoders in float32, this one is in float64"):
        lower(build(small()), precision)
