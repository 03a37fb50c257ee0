"""Attention kernels agree, and a named one is the one that runs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import AddnormError
from addnorm.config import EncoderConfig, NormConfig
from addnorm.nn.attention import Attention, Context
from addnorm.nn.encoder import Encoder
from addnorm.nn.kernels import KERNELS, choose
from tests.nn.drawn import CONFIGS, LONGEST, batch_of, build, largest, magnitude, small

NORMED = small(norm_out=NormConfig())


@pytest.mark.parametrize("kernel", sorted(KERNELS.keys() - {"eager"}))
@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.lists(st.integers(1, LONGEST), min_size=1, max_size=5), st.integers(0, 99))
def test_kernels_equal_eager_or_refuse(kernel: str, config: EncoderConfig, lengths: list[int], seed: int) -> None:
    encoder, batch = build(config, seed), batch_of(*lengths, seed=seed)
    needs = {"softcap": any(block.attention.softcap is not None for block in config.blocks)}
    needs |= {"shaping": any(block.attention.shaping is not None for block in config.blocks)}
    lacking = [need for need, needed in needs.items() if needed and need not in KERNELS[kernel].abilities]
    with torch.no_grad():
        eager = encoder(batch, "eager")
        if lacking:
            with pytest.raises(AddnormError, match=f"'{kernel}' cannot do: .*{lacking[0]}"):
                encoder(batch, kernel)
        else:
            assert largest(encoder(batch, kernel), eager) <= 1e-12 * magnitude([eager])


@pytest.mark.parametrize("name", KERNELS)
def test_the_named_kernel_runs(name: str) -> None:
    encoder = build(NORMED)
    encoder.kernel = name
    calls: list[object] = []
    for block in encoder.blocks:
        block.attention.sublayer.weights.register_forward_hook(lambda *inputs: calls.append(inputs))
    encoder(batch_of(4, 4, 2))
    groups, blocks = 2, 2
    assert len(calls) == ("sites" in KERNELS[name].abilities) * groups * blocks
    assert choose(name).name == name


def test_auto_takes_the_first_that_can() -> None:
    assert choose("auto").name == next(iter(KERNELS))
    assert "sites" in choose("auto", {"sites"}).abilities


def test_a_named_kernel_never_falls_back() -> None:
    with pytest.raises(AddnormError, match="'sdpa' cannot do: sites; choose eager or auto"):
        choose("sdpa", {"sites"})


def test_an_unknown_kernel_is_named() -> None:
    with pytest.raises(AddnormError, match="'flash' is unknown; choose auto, sdpa, eager"):
        Encoder(NORMED, kernel="flash")(batch_of(2))


def test_heads_of_odd_widths_are_scaled_by_the_root_of_their_width() -> None:
    config = NORMED.blocks[0].attention.replace(heads=1, head_width=5, bias=False, output_bias=False)
    attention = Attention(config, 10).double()
    x = torch.randn(6, 10, dtype=torch.float64)
    query, key, value = (x @ linear.weight.T for linear in (attention.query, attention.key, attention.value))
    mix = torch.softmax(query @ key.T / 5**0.5, dim=-1) @ value
    for kernel in KERNELS.values():
        assert largest(attention(x, Context(batch_of(6), kernel, (None,))), mix @ attention.output.weight.T) <= 1e-12
