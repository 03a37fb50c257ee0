"""Rewritings of an encoder that change its weights and, up to rounding and eps, not what it computes.

Each gives a new encoder. What they need of the stack is checked; a stack they do not fit is refused.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

from addnorm.config import BlockConfig, EncoderConfig, Learned, UnitConfig
from addnorm.errors import AddnormError
from addnorm.lab.fresh import transplant, units
from addnorm.nn.addnorm import AddNorm
from addnorm.nn.attention import Attention
from addnorm.nn.encoder import Encoder
from addnorm.nn.feedforward import FeedForward

Unit = TypeVar("Unit", bound=UnitConfig)


def _require(condition: bool, what: str, needs: str) -> None:
    if not condition:
        raise AddnormError(f"{what} needs {needs}; this encoder is made otherwise")


def _slots(config: EncoderConfig) -> list[UnitConfig]:
    return [unit for block in config.blocks for unit in (block.attention, block.feedforward)]


def _is_post_norm(config: EncoderConfig) -> bool:
    return config.wiring is None and all(set(unit.norms) == {"norm_out"} for unit in _slots(config))


def _is_pre_norm(config: EncoderConfig) -> bool:
    return config.wiring is None and all(set(unit.norms) == {"norm_in"} for unit in _slots(config))


def with_units(config: EncoderConfig, **changes: object) -> EncoderConfig:
    """The config with the same change in every unit."""

    def changed(block: BlockConfig) -> BlockConfig:
        return block.replace(
            attention=block.attention.replace(**changes), feedforward=block.feedforward.replace(**changes)
        )

    return config.replace(blocks=tuple(changed(block) for block in config.blocks))


def readers(unit: AddNorm) -> list[nn.Linear]:
    """The maps that read what enters F."""
    inner = unit.sublayer
    if isinstance(inner, Attention):
        return [inner.query, inner.key, inner.value]
    assert isinstance(inner, FeedForward)
    return [inner.up] if inner.gate is None else [inner.up, inner.gate]


def writer(unit: AddNorm) -> nn.Linear:
    """The map that writes what F gives."""
    inner = unit.sublayer
    if isinstance(inner, Attention):
        return inner.output
    assert isinstance(inner, FeedForward)
    return inner.down


@torch.no_grad()
def centre_writes(encoder: Encoder) -> Encoder:
    """Take the mean over the output features out of every map that writes; a post-norm LayerNorm never sees it."""
    norms = [unit.norm_out for unit in _slots(encoder.config)]
    layers = all(norm is not None and norm.kind == "layer" for norm in norms)
    _require(_is_post_norm(encoder.config) and layers, "centring", "post-norm units with LayerNorm")
    made = transplant(encoder, encoder.config)
    for unit in units(made):
        _centre(writer(unit))
    return made


def _centre(linear: nn.Linear) -> None:
    linear.weight.sub_(linear.weight.mean(0))
    if linear.bias is not None:
        linear.bias.sub_(linear.bias.mean())


@torch.no_grad()
def fold_norms(encoder: Encoder) -> Encoder:
    """Fold gains and shifts of all post-norms (but the last) into what reads them; the skip gets a diagonal.

    With u normalised and g, b of its norm:  α(g⊙u + b) + W(g⊙u + b) + c  =  αg⊙u + (W diag g)u + (c + Wb + αb).
    """
    config = encoder.config
    plain = all(isinstance(unit.alpha, float) and unit.beta == 1 for unit in _slots(config))
    _require(_is_post_norm(config) and plain, "folding", "post-norm units with a constant α and β = 1")
    biased = all(linear.bias is not None for unit in units(encoder) for linear in (*readers(unit), writer(unit)))
    _require(biased, "folding", "biases in every map")
    made = transplant(encoder, with_units(config, alpha=Learned(init=1.0, shape="vector")))
    before: nn.Module | None = made.embeddings.norm
    for unit, slots in zip(units(made), _slots(config), strict=True):
        assert isinstance(slots.alpha, float)
        gain, shift = _take_affine(before, config.width, writer(unit).weight)
        unit.add.alpha.weight.copy_(slots.alpha * gain)
        for linear in readers(unit):
            linear.bias.add_(linear.weight @ shift)
            linear.weight.mul_(gain)
        writer(unit).bias.add_(slots.alpha * shift)
        before = unit.norm_out
    return made


def _take_affine(norm: nn.Module | None, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The gain and shift of a norm, which it loses; 1 and 0 where there is none."""
    if norm is None:
        return like.new_ones(width), like.new_zeros(width)
    affine = dict(norm.named_parameters(recurse=False))
    gain = affine["weight"].clone()
    shift = affine["bias"].clone() if "bias" in affine else like.new_zeros(width)
    affine["weight"].fill_(1)
    if "bias" in affine:
        affine["bias"].zero_()
    return gain, shift


@torch.no_grad()
def scale_skip(encoder: Encoder, alpha: float) -> Encoder:
    """Post-norm as DeepNorm: the skip times α, and so every map that writes; the norm takes α out again."""
    config = encoder.config
    plain = all(unit.alpha == 1 for unit in _slots(config))
    _require(_is_post_norm(config) and plain, "scaling the skip", "post-norm units with α = 1")
    made = transplant(encoder, with_units(config, alpha=alpha))
    for unit in units(made):
        for parameter in writer(unit).parameters():
            parameter.mul_(alpha)
    return made


@torch.no_grad()
def layer_to_rms(encoder: Encoder) -> Encoder:
    """Pre-norm LayerNorms as RMSNorms: embeddings and all writes centred, shifts folded into what reads them.

    The stream then has mean 0, where both norms agree. The final norm stays.
    """
    config = encoder.config
    kinds = {unit.norm_in.kind for unit in _slots(config) if unit.norm_in is not None}
    plain = all(isinstance(unit.alpha, float) and isinstance(unit.beta, float) for unit in _slots(config))
    tables = config.embeddings.norm is None and config.embeddings.positions != "sinusoidal"
    _require(_is_pre_norm(config) and kinds == {"layer"} and plain and tables, "LayerNorm as RMSNorm",
             "pre-norm units with LayerNorm, constant scales and embeddings without norm or waves")  # fmt: skip
    blocks = tuple(
        block.replace(
            attention=_rms(block.attention),
            feedforward=_rms(block.feedforward),
        )
        for block in config.blocks
    )
    made = transplant(encoder, config.replace(blocks=blocks))
    for module in made.embeddings.modules():
        if isinstance(module, nn.Embedding):
            module.weight -= module.weight.mean(1, keepdim=True)
    for unit, old in zip(units(made), units(encoder), strict=True):
        shift: Tensor | None = getattr(old.norm_in, "bias", None)
        if shift is not None:
            for linear in readers(unit):
                assert linear.bias is not None
                linear.bias.add_(linear.weight @ shift)
        _centre(writer(unit))
    return made


def _rms(unit: Unit) -> Unit:
    assert unit.norm_in is not None
    return unit.replace(norm_in=unit.norm_in.replace(kind="rms", bias=False))
