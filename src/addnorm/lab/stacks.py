"""How the variants' configs are made: equal blocks, their slots filled as each paper says."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from addnorm.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    EmbeddingsConfig,
    EncoderConfig,
    FeedForwardConfig,
    HeadConfig,
    InitConfig,
    Learned,
    NormConfig,
    NormKind,
    ShapingConfig,
    WiringConfig,
)
from addnorm.errors import AddnormError
from addnorm.nn.init import INITS


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is equal in all variants that are compared.

    `inner`: of the feed-forward, 4·width where None; `positions`: None gives a stack that sees a set of tokens;
    `norm`: one kind of norm in all slots instead of the paper's; `init`: a recipe of nn/init.py instead of the
    paper's; `outputs`: of a linear head that gives a row of logits for each token, none where 0.
    """

    depth: int = 12
    width: int = 64
    heads: int = 4
    inner: int | None = None
    vocabulary: int = 1000
    max_positions: int = 512
    positions: Literal["learned", "sinusoidal"] | None = None
    activation: Activation = "relu"
    eps: float = 1e-5
    norm: NormKind | None = None
    init: str | None = None
    outputs: int = 0

    def __post_init__(self) -> None:
        if self.depth < 1 or self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise AddnormError(
                f"depth {self.depth}, width {self.width}, heads {self.heads}: expected all above 0 and a width "
                "that the heads divide"
            )
        for what, value, known in (
            ("init", self.init, tuple(INITS)),
            ("norm", self.norm, get_args(NormKind)),
            ("activation", self.activation, get_args(Activation)),
        ):
            if value is not None and value not in known:
                raise AddnormError(f"{what} '{value}' is unknown; choose {', '.join(known)}")

    def norm_config(self, kind: NormKind = "layer", **changes: Any) -> NormConfig:
        """A norm of the paper's kind, or of the one that is asked for."""
        return NormConfig(**{"kind": self.norm or kind, "eps": self.eps} | changes)


def stack(
    size: Size,
    both: Mapping[str, Any] | None = None,
    attention: Mapping[str, Any] | None = None,
    feedforward: Mapping[str, Any] | None = None,
    tied_beta: bool = False,
    embedding_norm: NormConfig | None = None,
    init: str = "xavier",
    **encoder: Any,
) -> EncoderConfig:
    """N equal blocks, their slots filled in `both` units or in one."""
    shape: dict[str, Any] = {"heads": size.heads, "head_width": size.width // size.heads}
    inner: dict[str, Any] = {"width": size.inner or 4 * size.width, "activation": size.activation}
    block = BlockConfig(
        attention=AttentionConfig(**shape | {**(both or {})} | {**(attention or {})}),
        feedforward=FeedForwardConfig(**inner | {**(both or {})} | {**(feedforward or {})}),
        tied_beta=tied_beta,
    )
    head = HeadConfig(task="fill", outputs=size.outputs, bias=False) if size.outputs else None
    return EncoderConfig(
        width=size.width,
        embeddings=EmbeddingsConfig(
            vocabulary=size.vocabulary,
            positions=size.positions,
            max_positions=size.max_positions,
            scale=math.sqrt(size.width),
            norm=embedding_norm,
        ),
        blocks=(block,) * size.depth,
        head=head,
        **{"init": INITS[init](size.depth)} | encoder,
    )


# --- where the norm stands ----------------------------------------------------------------------------


def post(size: Size, init: str = "xavier", **changes: Any) -> EncoderConfig:
    """A norm after each sum."""
    return stack(size, {"norm_out": size.norm_config()} | changes, init=init)


def pre(size: Size, kind: NormKind = "layer", **changes: Any) -> EncoderConfig:
    """A norm before each F and one at the end."""
    norm = size.norm_config(kind)
    return stack(size, {"norm_in": norm}, norm=norm, **changes)


def peri(size: Size, embedding_norm: bool = True) -> EncoderConfig:
    """A norm before and after each F, one at the end and, where asked for, on the embeddings."""
    norm = size.norm_config()
    slots = {"norm_in": norm, "norm_branch": norm}
    return stack(size, slots, norm=norm, embedding_norm=norm if embedding_norm else None)


def res_post(size: Size) -> EncoderConfig:
    """A norm after each F, before the sum, and one at the end."""
    return stack(size, {"norm_branch": size.norm_config()}, norm=size.norm_config())


def sub_ln(size: Size) -> EncoderConfig:
    """Pre-norm, and a norm before each map that writes."""
    norm = size.norm_config()
    return stack(size, {"norm_in": norm}, {"mix_norm": norm}, {"inner_norm": norm}, norm=norm, init="sub-ln")


def normformer(size: Size) -> EncoderConfig:
    """Pre-norm, with a norm after attention and before W₂, a factor a head, and a scaled feed-forward skip."""
    norm = size.norm_config()
    return stack(
        size,
        {"norm_in": norm},
        {"norm_branch": norm, "head_scale": True},
        {"inner_norm": norm, "alpha": Learned(init=1.0, shape="vector")},
        norm=norm,
    )


def hybrid(size: Size, star: bool = False) -> EncoderConfig:
    """Norms of queries, keys and values, and after attention; `star`: the first block pre-norm."""
    norm = size.norm_config("rms")
    inside = {"query_norm": norm, "key_norm": norm, "value_norm": norm}
    config = stack(size, {}, {**inside, "norm_out": norm}, norm=norm, init="megatron")
    if not star:
        return config
    first = config.blocks[0]
    first = first.replace(
        attention=first.attention.replace(norm_in=norm, norm_out=None),
        feedforward=first.feedforward.replace(norm_in=norm),
    )
    return config.replace(blocks=(first, *config.blocks[1:]))


def post_blocks(depth: int) -> int:
    """How many of Mix-LN's blocks are post-norm: a quarter."""
    return max(1, round(depth / 4))


def mix_ln(size: Size) -> EncoderConfig:
    """Post-norm blocks below, pre-norm blocks above."""
    below, above = post(size), pre(size)
    count = post_blocks(size.depth)
    return above.replace(blocks=below.blocks[:count] + above.blocks[count:])


def ln_scaling(size: Size) -> EncoderConfig:
    """Pre-norm, each norm's result divided by the root of the block's number."""
    config = pre(size)
    blocks = []
    for i, block in enumerate(config.blocks):
        norm = size.norm_config(factor=(i + 1) ** -0.5)
        blocks.append(
            block.replace(
                attention=block.attention.replace(norm_in=norm), feedforward=block.feedforward.replace(norm_in=norm)
            )
        )
    return config.replace(blocks=tuple(blocks))


# --- scaled residuals ---------------------------------------------------------------------------------


def deepnorm_alpha(depth: int) -> float:
    """(2N)^¼ (Wang 2022, encoder only)."""
    return (2 * depth) ** 0.25


def admin_skip(depth: int) -> float:
    """w of admin-torch's "O(logn)": w² = (n+1)/ln(n+1) − 1 with n = 2N sub-layers."""
    n = 2 * depth
    return math.sqrt((n + 1) / math.log(n + 1) - 1)


def layer_scale(depth: int) -> float:
    """CaiT's start of the gains: 1e-5 up to 24 blocks, 1e-6 beyond."""
    return 1e-5 if depth <= 24 else 1e-6


def admin(size: Size, profiled: bool) -> EncoderConfig:
    """Post-norm with a learned vector on the skip; `profiled`: it starts from 1 and is measured later."""
    w = 1.0 if profiled else admin_skip(size.depth)
    return post(size, alpha=Learned(init=w, shape="vector"))


def rezero(size: Size) -> EncoderConfig:
    """One learned number a block on both branches, from 0; no norm."""
    return stack(size, {"beta": Learned(init=0.0)}, tied_beta=True)


def layer_scaled(size: Size) -> EncoderConfig:
    """Pre-norm with a small learned vector on each branch."""
    norm = size.norm_config()
    beta = Learned(init=layer_scale(size.depth), shape="vector")
    return stack(size, {"norm_in": norm, "beta": beta}, norm=norm)


def depth_scaled(size: Size) -> EncoderConfig:
    """Pre-norm with 1/√N on each branch."""
    norm = size.norm_config()
    return stack(size, {"norm_in": norm, "beta": size.depth**-0.5}, norm=norm)


# --- without a residual -------------------------------------------------------------------------------


def shaped(size: Size, shaping: ShapingConfig, init: str | InitConfig) -> EncoderConfig:
    """Pre-norm, attention without a skip and with shaped weights."""
    norm = size.norm_config()
    config = stack(size, {"norm_in": norm}, {"alpha": 0.0, "shaping": shaping}, norm=norm)
    return config.replace(init=INITS[init](size.depth) if isinstance(init, str) else init)


# --- another wiring -----------------------------------------------------------------------------------


def wired(config: EncoderConfig, kind: str, **settings: Any) -> EncoderConfig:
    """The same blocks in another wiring."""
    return config.replace(wiring=WiringConfig(kind=kind, **settings))  # type: ignore[arg-type]


def value_residual(size: Size) -> EncoderConfig:
    """Pre-norm, half of each block's values those of the first."""
    return stack(size, {"norm_in": size.norm_config()}, {"value_residual": 0.5}, norm=size.norm_config())


def residual(size: Size) -> EncoderConfig:
    """Post-norm beside a second stream."""
    return wired(post(size), "residual", norm=size.norm_config(eps=1e-7))


def attention_residuals(size: Size) -> EncoderConfig:
    """Pre-norm units without a skip, mixed over the depth."""
    norm = size.norm_config()
    return wired(stack(size, {"norm_in": norm, "alpha": 0.0}, norm=norm), "attention")


def no_norms(size: Size) -> str | None:
    """Why a stack without norms takes no kind of norm."""
    return None if size.norm is None else f"it has no norm that could be {size.norm}; leave norm out"


def scaled_twice(size: Size) -> str | None:
    """Why LayerNorm scaling takes no depth-scaled init."""
    if size.init != "megatron":
        return None
    return "its 1/√l and megatron's 1/√2N scale the same branch twice (Sun 2025); choose another init"


def streams(size: Size) -> str | None:
    """Why several streams take no batch norm."""
    return "batch norm would see each stream as a text's feature" if size.norm == "batch" else None
