"""The kernels in C against the formulas: every level that this processor runs."""

import ctypes
import shutil
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.config import RotaryConfig
from addnorm.engine import compiled
from addnorm.engine.compiled import linear
from addnorm.engine.compiled.levels import LEVELS
from addnorm.nn.activations import ACTIVATIONS
from addnorm.nn.positions import Rotary

ERRORS = {torch.float32: 2e-6, torch.bfloat16: 0.02}


@cache
def running() -> dict[str, ctypes.CDLL]:
    return {level: kernels for level in LEVELS if (kernels := compiled.library(level)) is not None}


@pytest.fixture(params=list(LEVELS))
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of one level in the place of the best one."""
    if request.param not in running():
        pytest.skip(f"no kernels for {request.param} here")
    monkeypatch.setattr(compiled, "best", lambda: running()[request.param])
    return request.param


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def formula(
    parts: list[Tensor], lengths: list[int], scale: float, window: int | None = None, bias: Tensor | None = None
) -> Tensor:
    """In float64, text by text: three of (N, H or fewer, K) → (N, H·K)."""
    heads, mixed = parts[0].shape[1], []
    for texts in zip(*(part.double().split(lengths) for part in parts), strict=True):
        q, k, v = (t.repeat_interleave(heads // t.shape[1], 1).transpose(0, 1) for t in texts)  # (H, T, K)
        s = q @ k.transpose(1, 2) * scale
        place = torch.arange(s.shape[-1])
        if bias is not None:
            s = s + bias[:, : len(place), : len(place)]
        if window is not None:
            s = s.masked_fill((place - place[:, None]).abs() > window, float("-inf"))
        mixed.append((s.softmax(-1) @ v).transpose(0, 1).flatten(1))
    return torch.cat(mixed)


def attended(parts: list[Tensor], lengths: list[int], *terms: object, dtype: torch.dtype | None = None) -> Tensor:
    out = parts[0].new_full((len(parts[0]), parts[0].shape[1:].numel()), float("nan"), dtype=dtype)
    heads, pairs = (parts[0].shape[1], parts[1].shape[1]), sum(length**2 for length in lengths)
    compiled.attend(*(part.flatten(1) for part in parts), heads, offsets_of(lengths), pairs, 0.3, out, *terms)  # type: ignore[arg-type]
    return out


def test_kernels_are_compiled_where_there_is_a_compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    assert running()
    assert compiled.best() is next(iter(running().values()))


@settings(max_examples=60, deadline=None)
@given(
    dtypes=st.tuples(st.sampled_from(list(ERRORS)), st.sampled_from(list(ERRORS))),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    heads=st.sampled_from(((1, 1), (3, 3), (4, 2), (4, 1))),
    width=st.sampled_from((1, 4, 5, 16, 20, 32, 64, 80)),
    window=st.sampled_from((None, 0, 1, 5, 16, 40)),
    bias=st.sampled_from((0, 1, 2)),
    name=st.sampled_from(sorted(running()) or [""]),
)
def test_attention(
    dtypes: tuple[torch.dtype, torch.dtype],
    lengths: list[int],
    heads: tuple[int, int],
    width: int,
    window: int | None,
    bias: int,
    name: str,
) -> None:
    if not name:
        pytest.skip("no kernels here")
    count, longest = sum(lengths), max(lengths)
    whole = drawn(count, (heads[0] + 2 * heads[1]) * width).to(dtypes[0])
    sizes = [heads[0] * width, heads[1] * width, heads[1] * width]
    parts = [part.view(count, -1, width) for part in whole.split(sizes, 1)]
    terms = drawn(heads[0] if bias == 2 else 1, longest, longest, seed=1) if bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "best", lambda: running()[name])
        out = attended(parts, lengths, window, terms, dtype=dtypes[1])
    exact = formula(parts, lengths, 0.3, window, terms)
    assert (out - exact).abs().max() <= max(ERRORS[dtype] for dtype in dtypes) * max(1, float(exact.abs().max()))


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("window", [None, 33])
def test_same_bits_alone_in_company_and_with_two_threads(level: str, dtype: torch.dtype, window: int | None) -> None:
    lengths = [1, 150, 7, 64, 150, 3, 300]
    parts = [part.contiguous() for part in drawn(3, sum(lengths), 12, 32).to(dtype)]
    company = attended(parts, lengths, window)
    torch.set_num_threads(2)
    try:
        together = attended(parts, lengths, window)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(company, together)
    for i, own in enumerate(company.split(lengths)):
        alone = [part.split(lengths)[i].clone() for part in parts]
        assert torch.equal(own, attended(alone, lengths[i : i + 1], window))


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_tiny_and_large_scores(level: str, dtype: torch.dtype, size: float) -> None:
    parts = list((drawn(3, 40, 2, 16) * size).to(dtype))
    exact = formula(parts, [40], 0.3)
    assert (attended(parts, [40]) - exact).abs().max() <= ERRORS[dtype] * 4 * exact.abs().max()


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_nan_stays_in_its_text(level: str, dtype: torch.dtype, part: int) -> None:
    parts = list(drawn(3, 20, 2, 16).to(dtype))
    parts[part][3, 1, 2] = float("nan")
    out = attended(parts, [10, 10]).view(20, 2, 16)
    assert out[3, 1].isnan().any()
    assert not out[10:].isnan().any()
    assert not out[:, 0].isnan().any()


def test_a_bias_that_forbids_keys_gives_them_nothing(level: str) -> None:
    parts = list(drawn(3, 20, 2, 16))
    bias = torch.zeros(1, 20, 20)
    bias[:, :, 5:] = float("-inf")
    assert (attended(parts, [20], None, bias) - formula(parts, [20], 0.3, None, bias)).abs().max() < 2e-6


@pytest.mark.parametrize("width", [1, 16, 37, 384])
@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("evened", [False, True])
def test_bytes(level: str, width: int, dtype: torch.dtype, evened: bool) -> None:
    """Each row within half a step of its own, from its least to its largest number."""
    x = (drawn(9, width + 3) * 40).to(dtype)[:, :width]  # rows with something between them
    x[1], x[2], x[3] = x[1].abs(), -x[2].abs(), 0
    factor = torch.linspace(0.5, 2, width) if evened else None
    y = x.double() if factor is None else x.double() * factor
    found = compiled.to_bytes(x, factor)
    assert found.dtype == torch.uint8
    assert found.shape == (9, compiled.row_of_bytes(width))
    after = -(-width // 4) * 4
    step, zero = found[:, after : after + 8].contiguous().view(torch.float32).double().T[..., None]
    whole = found[:, :width].double()
    assert ((whole >= 0) & (whole <= 255)).all()
    low, high = y.amin(1, keepdim=True).clamp(max=0), y.amax(1, keepdim=True).clamp(min=0)
    assert (step - (high - low) / 255).abs().max() <= 1e-6 * float(high.max() - low.min())
    assert ((step * (whole - zero) - y).abs() <= 1.01 * step).all()  # at the ends the zero's rounding adds to its own
    assert ((step * (whole - zero) - y).abs() <= 0.501 * step).double().mean() > 0.95
    assert (found[3, :width] == 0).all()
    assert torch.equal(compiled.to_bytes(x[4:5], factor), found[4:5])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_of_bytes_with_what_is_no_number_spoils_no_other(level: str, bad: float) -> None:
    x = drawn(3, 20)
    x[1, 5] = bad
    weight = (drawn(8, 20) * 20).to(torch.int8)
    product = linear.Product(weight, None, None, torch.float32, steps=torch.ones(8), totals=weight.sum(1).float())
    found = product(compiled.to_bytes(x, None))
    expected = x @ weight.float().T
    assert (found[[0, 2]] - expected[[0, 2]]).abs().max() < 0.02 * expected[[0, 2]].abs().max()
    assert found[1].isnan().all()


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "turned"), [(16, 16), (64, 64), (20, 20), (24, 10)])
def test_rotation(level: str, dtype: torch.dtype, interleaved: bool, width: int, turned: int) -> None:
    rotary = Rotary(RotaryConfig(width=turned, interleaved=interleaved), width)
    positions = torch.tensor([0, 1, 2, 50, 7, 300])
    x = drawn(6, 3, width).to(dtype)
    cos, sin = (table.flatten(1) for table in rotary._tables(positions, torch.float32))
    expected = rotary(x.double(), positions)
    compiled.rotate(x, cos, sin, interleaved)
    assert (x - expected).abs().max() <= (0.02 if dtype == torch.bfloat16 else 3e-5)


def test_what_the_kernels_do_not_take() -> None:
    x = drawn(4, 6)
    assert compiled.takes(x) == (compiled.best() is not None)
    assert not compiled.takes(x.double())
    assert not compiled.takes(x.T)
    assert not compiled.takes(x, x.half())


@pytest.mark.parametrize("width", [1, 7, 16, 33, 384])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("kinds", [(a, b) for a in ERRORS for b in ERRORS])
@pytest.mark.parametrize("affine", [False, True])
def test_norm(level: str, width: int, centred: bool, kinds: tuple[torch.dtype, torch.dtype], affine: bool) -> None:
    x = (drawn(5, width + 2) * 3 + 1).to(kinds[0])[:, :width]  # rows with something between them
    gain, bias = (drawn(2, width, seed=1) if affine else (None, None))  # fmt: skip
    y = x.double() - x.double().mean(1, keepdim=True) if centred else x.double()
    exact = y / (y.square().mean(1, keepdim=True) + 1e-5).sqrt()
    exact = exact if gain is None or bias is None else exact * gain + bias
    found = compiled.norm(x, gain, bias, 1e-5, centred, kinds[1])
    assert found.dtype == kinds[1]
    # One feature alone is its own mean: what is left of it is rounding, which eps does not hide.
    error = (found - exact).abs().max() / max(1, float(exact.abs().max()))
    assert error <= (0.01 if kinds[1] == torch.bfloat16 else 3e-6)


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    rows=st.sampled_from((0, 1, 5, 6, 7, 13, 16, 17, 32, 33, 239, 241, 530)),
    shape=st.sampled_from(((4, 1), (8, 64), (36, 17), (64, 65), (100, 200), (500, 100))),
    activation=st.sampled_from((None, "relu", "gelu", "gelu_tanh", "silu", "tanh")),
    how=st.sampled_from((linear.ALONE, linear.ADD, linear.MULTIPLY)),
    biased=st.booleans(),
    name=st.sampled_from(sorted(running()) or [""]),
)
def test_linear_maps(
    dtype: torch.dtype, rows: int, shape: tuple[int, int], activation: str | None, how: int, biased: bool, name: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "best", lambda: running().get(name))
        if not linear.fits(dtype, shape[0], activation):
            return
        weight, bias = (drawn(shape[1], shape[0]) / 4).to(dtype), drawn(shape[1]) if biased else None
        product = linear.Product(weight, bias, activation, dtype)
    x, other = (drawn(rows, shape[0] + 4) * 2).to(product.reads)[:, 2:-2], drawn(rows, shape[1], seed=1).to(dtype)
    y = x.double() @ weight.double().T
    y = y if bias is None else y + bias
    y = y if activation is None else ACTIVATIONS[activation]()(y)
    exact = y + other if how == linear.ADD else y * other if how == linear.MULTIPLY else y
    found = product(x, None if how == linear.ALONE else other, how)
    error = 2e-5 if dtype == torch.float32 else 0.01
    assert ((found - exact).abs() <= error * exact.abs().clamp(min=2)).all()
    if rows:  # the same bits alone
        assert torch.equal(found[-1:], product(x[-1:], None if how == linear.ALONE else other[-1:], how))


@pytest.mark.parametrize("rows", [8, 40])
@pytest.mark.parametrize("inputs", [4, 60, 804, 3072])
def test_sums_of_bytes_are_exact(level: str, inputs: int, rows: int) -> None:
    """Also the largest."""
    most = 64 if linear.in_pairs() else 127
    weight = torch.randint(-most, most + 1, (37, inputs), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    weight[0], weight[1] = most, -most
    x = torch.randint(0, 256, (rows, inputs), generator=torch.Generator().manual_seed(1))
    x[0], x[1] = 255, 0
    product = linear.Product(weight, None, None, torch.float32, steps=torch.full((37,), 2.0**-10))
    exact = (x @ weight.long().T).double() / 2**10
    assert torch.equal(product(x.to(product.reads)), exact.float())


@pytest.mark.parametrize("activation", list(linear.ACTIVATIONS))
def test_activations_far_out(level: str, activation: str | None) -> None:
    x = torch.tensor([[-1e30, -300.0, -90.0, -6.0, -5.39, -1e-3, 0.0, 1e-3, 5.41, 7.0, 90.0, 300.0, 1e30]])
    weight = torch.eye(x.shape[1])
    found = linear.Product(weight, None, activation, torch.float32)(x)
    expected = x if activation is None else ACTIVATIONS[activation]()(x.double())
    assert ((found - expected).abs() <= 2e-6 * expected.abs().clamp(min=1)).all()
    nan = linear.Product(weight, None, activation, torch.float32)(torch.full_like(x, float("nan")))
    assert nan.isnan().all()


def test_linear_maps_of_more_dimensions_and_in_place(level: str) -> None:
    weight, x = drawn(17, 12), drawn(2, 3, 12)
    product = linear.Product(weight, None, None, torch.float32)
    assert (product(x) - x @ weight.T).abs().max() < 1e-5
    total = torch.ones(3, 17)
    assert product(x[0], total, linear.ADD, total) is total
    assert (total - 1 - x[0] @ weight.T).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", list(ERRORS))
def test_what_follows_a_row_is_not_read(level: str, dtype: torch.dtype) -> None:
    """Where a row does not fill what is multiplied at once."""
    for inputs in (2, 30, 34, 402):
        product = linear.Product(drawn(20, inputs).to(dtype), None, None, dtype)
        x = torch.full((19, inputs + 40), float("nan")).to(product.reads)
        x[:, :inputs] = drawn(19, inputs)
        assert product(x[:, :inputs]).isfinite().all()


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("rows", [20, 130, 600])
def test_linear_maps_have_the_same_bits_with_two_threads(level: str, dtype: torch.dtype, rows: int) -> None:
    product = linear.Product(drawn(500, 384).to(dtype), drawn(500), "gelu", dtype)
    x = drawn(rows, 384).to(product.reads)
    one = product(x)
    torch.set_num_threads(2)
    try:
        assert torch.equal(product(x), one)
    finally:
        torch.set_num_threads(1)
