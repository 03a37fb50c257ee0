"""The variants of the Add & Norm unit as configs, with formulas, constants and sources.

N is the number of blocks, x ← … one unit, F attention or feed-forward.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from addnorm.config import EncoderConfig, Learned, MatrixInit, ShapingConfig
from addnorm.errors import AddnormError
from addnorm.lab import stacks
from addnorm.lab.stacks import Size
from addnorm.nn.init import INITS

Constants = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One variant: its formula as a line of text, its constants by depth, where it is from, how it is made.

    `clash`: for a size it cannot be combined with, why; `profiled`: its skips are measured on a batch.
    """

    name: str
    formula: str
    source: str
    make: Callable[[Size], EncoderConfig]
    constants: Callable[[int], Constants] = lambda depth: {}
    clash: Callable[[Size], str | None] = lambda size: None
    profiled: bool = False


def build(name: str, depth: int = 12, width: int = 64, heads: int = 4, **size: Any) -> EncoderConfig:
    """The config of a variant; `size` as in `Size`. Errors: unknown name, a combination that makes no sense."""
    if name not in VARIANTS:
        close = get_close_matches(name, VARIANTS, n=3, cutoff=0.4) or list(VARIANTS)
        raise AddnormError(f"variant '{name}' is unknown; did you mean {', '.join(close)}?")
    variant, wanted = VARIANTS[name], Size(depth=depth, width=width, heads=heads, **size)
    if reason := variant.clash(wanted):
        raise AddnormError(f"variant '{name}': {reason}")
    config = variant.make(wanted)
    init = config.init if wanted.init is None else INITS[wanted.init](depth)
    if wanted.positions == "learned":
        # The tokens are scaled by √D and the positions are not; drawn as large, both can be told apart.
        tokens = next((row.gain for row in init.matrices if row.matrix == "tokens"), 1.0)
        row = MatrixInit(matrix="positions", gain=tokens * math.sqrt(width))
        init = init.replace(matrices=(*init.matrices, row))
    return config.replace(init=init)


_ALL = (
    Variant(
        name="post-norm",
        formula="x ← LN(x + F(x))",
        source="Vaswani 2017, 1706.03762",
        make=stacks.post,
    ),
    Variant(
        name="pre-norm",
        formula="x ← x + F(LN(x)), LN at the end",
        source="Xiong 2020, 2002.04745",
        make=stacks.pre,
    ),
    Variant(
        name="peri-norm",
        formula="x ← x + LN(F(LN(x))), LN on the embeddings and at the end",
        source="Kim 2025, 2502.02732",
        make=stacks.peri,
    ),
    Variant(
        name="sandwich",
        formula="x ← x + LN(F(LN(x))), LN at the end",
        source="CogView, Ding 2021, 2105.13290",
        make=lambda size: stacks.peri(size, embedding_norm=False),
    ),
    Variant(
        name="res-post-norm",
        formula="x ← x + LN(F(x)), LN at the end",
        source="SwinV2, Liu 2021, 2111.09883; OLMo 2",
        make=stacks.res_post,
    ),
    Variant(
        name="sub-ln",
        formula="x ← x + W_O LN(heads(LN(x))), x ← x + W_2 LN(φ(W_1 LN(x)))",
        source="Magneto, Wang 2022, 2210.06423",
        make=stacks.sub_ln,
        constants=lambda depth: {"gain of W_V W_O W_1 W_2": math.sqrt(math.log(2 * depth))},
    ),
    Variant(
        name="normformer",
        formula="x ← x + LN(Σ γ_h head_h W_O), x ← λx + W_2 LN(φ(W_1 LN(x)))",
        source="Shleifer 2021, 2110.09456",
        make=stacks.normformer,
        constants=lambda depth: {"γ": 1.0, "λ": 1.0},
    ),
    Variant(
        name="hybrid-norm",
        formula="z = RMS(x + MHA(RMS(q), RMS(k), RMS(v))), x ← z + FFN(z)",
        source="Zhuo 2025, 2503.04598",
        make=stacks.hybrid,
    ),
    Variant(
        name="hybrid-norm-star",
        formula="hybrid-norm, the first block pre-norm",
        source="Zhuo 2025, 2503.04598",
        make=lambda size: stacks.hybrid(size, star=True),
    ),
    Variant(
        name="mix-ln",
        formula="the first quarter of the blocks post-norm, the rest pre-norm",
        source="Li 2024, 2412.13795",
        make=stacks.mix_ln,
        constants=lambda depth: {"post-norm blocks": stacks.post_blocks(depth)},
        clash=lambda size: "one block cannot be both post-norm and pre-norm" if size.depth < 2 else None,
    ),
    Variant(
        name="ln-scaling",
        formula="x ← x + F(LN(x)/√l), l the number of the block from 1",
        source="Sun 2025, 2502.05795",
        make=stacks.ln_scaling,
        constants=lambda depth: {"last factor": depth**-0.5},
        clash=stacks.scaled_twice,
    ),
    Variant(
        name="deepnorm",
        formula="x ← LN(αx + F(x)), W_V W_O W_1 W_2 drawn with gain β",
        source="Wang 2022, 2203.00555",
        make=lambda size: stacks.post(size, "deepnorm", alpha=stacks.deepnorm_alpha(size.depth)),
        constants=lambda depth: {"α": stacks.deepnorm_alpha(depth), "β": (8 * depth) ** -0.25},
    ),
    Variant(
        name="admin",
        formula="x ← LN(w⊙x + F(x)), w² = (n+1)/ln(n+1) − 1, n = 2N",
        source="Liu 2020, 2004.08249; admin-torch",
        make=lambda size: stacks.admin(size, profiled=False),
        constants=lambda depth: {"w": stacks.admin_skip(depth)},
    ),
    Variant(
        name="admin-profiled",
        formula="x ← LN(w⊙x + F(x)), w_{i+1}² = Var(w_i x) + Var(F_i), w_1 = 1, measured (lab.fresh.profile)",
        source="Liu 2020, 2004.08249",
        make=lambda size: stacks.admin(size, profiled=True),
        profiled=True,
        constants=lambda depth: {"w of the first": 1.0},
    ),
    Variant(
        name="rezero",
        formula="x ← x + a·F(x), one a a block",
        source="Bachlechner 2020, 2003.04887",
        make=stacks.rezero,
        constants=lambda depth: {"a": 0.0},
        clash=stacks.no_norms,
    ),
    Variant(
        name="skipinit",
        formula="x ← x + a·F(x), one a a unit",
        source="De & Smith 2020, 2002.10444",
        make=lambda size: stacks.stack(size, {"beta": Learned(init=0.0)}),
        constants=lambda depth: {"a": 0.0},
        clash=stacks.no_norms,
    ),
    Variant(
        name="layerscale",
        formula="x ← x + g⊙F(LN(x)), LN at the end",
        source="CaiT, Touvron 2021, 2103.17239",
        make=stacks.layer_scaled,
        constants=lambda depth: {"g": stacks.layer_scale(depth)},
    ),
    Variant(
        name="t-fixup",
        formula="x ← x + F(x), small weights",
        source="Huang 2020, ICML",
        make=lambda size: stacks.stack(size, init="t-fixup"),
        constants=lambda depth: {"gain of W_V W_O W_1 W_2": 0.67 * depth**-0.25, "embeddings": (9 * depth) ** -0.25},
        clash=stacks.no_norms,
    ),
    Variant(
        name="depth-scaled",
        formula="x ← x + F(LN(x))/√N, LN at the end",
        source="Noci 2022, 2206.03126",
        make=stacks.depth_scaled,
        constants=lambda depth: {"β": depth**-0.5},
    ),
    Variant(
        name="rms",
        formula="x ← x + F(RMS(x)), RMS at the end",
        source="Zhang & Sennrich 2019, 1910.07467",
        make=lambda size: stacks.pre(size, "rms"),
    ),
    Variant(
        name="batch",
        formula="x ← x + F(BN(x)), BN at the end, over the tokens of the batch",
        source="Ioffe & Szegedy 2015, 1502.03167; Shen 2020, 2003.07845",
        make=lambda size: stacks.pre(size, "batch"),
    ),
    Variant(
        name="dyt",
        formula="x ← x + F(g⊙tanh(a·x) + b), the same at the end",
        source="Zhu 2025, 2503.10622",
        make=lambda size: stacks.pre(size, "dyt"),
        constants=lambda depth: {"a": 0.5},
    ),
    Variant(
        name="derf",
        formula="x ← x + F(g⊙erf(a·x + s) + b), the same at the end",
        source="Chen 2025, 2512.10938",
        make=lambda size: stacks.pre(size, "derf"),
        constants=lambda depth: {"a": 0.5, "s": 0.0},
    ),
    Variant(
        name="no-norm",
        formula="x ← g⊙(x + F(x)) + b",
        source="MobileBERT, Sun 2020, 2004.02984",
        make=lambda size: stacks.stack(size, {"norm_out": size.norm_config("affine")}),
    ),
    Variant(
        name="none",
        formula="x ← x + F(x)",
        source="a control: neither norm nor scale",
        make=lambda size: stacks.stack(size),
        clash=stacks.no_norms,
    ),
    Variant(
        name="no-residual",
        formula="x ← LN(F(x))",
        source="Dong 2021, 2103.03404",
        make=lambda size: stacks.post(size, alpha=0.0),
    ),
    Variant(
        name="value-skipinit",
        formula="x ← (aI + b·softmax) LN(x) W_V W_O, x ← x + FFN(LN(x)), LN at the end",
        source="He 2023, 2302.10322",
        make=lambda size: stacks.shaped(size, ShapingConfig(identity=1.0, softmax=0.0, centre=0.0), "skipless"),
        constants=lambda depth: {"a": 1.0, "b": 0.0},
    ),
    Variant(
        name="shaped",
        formula="x ← (aI + b·softmax − g/T) LN(x) W_V W_O, x ← x + FFN(LN(x)), W_Q = 0, LN at the end",
        source="Noci 2023, 2306.17759; He & Hofmann 2023, 2311.01906",
        make=lambda size: stacks.shaped(size, ShapingConfig(), "skipless"),
        constants=lambda depth: {"a": 1.0, "b": 1.0, "g": 1.0},
    ),
    Variant(
        name="parallel",
        formula="x ← x + Attention(LN(x)) + FFN(LN(x)), LN at the end",
        source="GPT-J, Wang & Komatsuzaki 2021",
        make=lambda size: stacks.wired(stacks.pre(size), "parallel"),
    ),
    Variant(
        name="b2t",
        formula="u = LN(x + Attention(x)), x ← LN(u + FFN(u) + x)",
        source="Takase 2022, 2206.00330",
        make=lambda size: stacks.wired(stacks.post(size, "b2t"), "b2t"),
        constants=lambda depth: {"gain": depth**-0.5},
    ),
    Variant(
        name="residual",
        formula="D ← D + s·F(u), u ← LN(u + F(u)); the end is u + LN(D)",
        source="ResiDual, Xie 2023, 2304.14802",
        make=stacks.residual,
        constants=lambda depth: {"s": 1.0, "eps of the last LN": 1e-7},
    ),
    Variant(
        name="value-residual",
        formula="pre-norm, V_l ← λ·V_1 + (1−λ)·V_l",
        source="ResFormer, Zhou 2024, 2410.17897",
        make=stacks.value_residual,
        constants=lambda depth: {"λ": 0.5},
    ),
    Variant(
        name="denseformer",
        formula="pre-norm, x_l ← Σ_j a_lj X_j over all blocks' results, a_ll = 1, the others 0",
        source="Pagliardini 2024, 2402.02622",
        make=lambda size: stacks.wired(stacks.pre(size), "dense"),
    ),
    Variant(
        name="hyper-connections",
        formula="H ← B·F(LN(A_mᵀH)) + A_rᵀH, n streams; the end is LN(ΣH)",
        source="Zhu 2024, 2409.19606",
        make=lambda size: stacks.wired(stacks.pre(size), "hyper", streams=4, dynamic=True),
        constants=lambda depth: {"n": 4, "B": 1.0, "s": 0.01},
        clash=stacks.streams,
    ),
    Variant(
        name="attention-residuals",
        formula="h = Σ_i softmax_i(w·RMS(v_i)) v_i, v = F(LN(h)), w = 0; LN at the end",
        source="2603.15031",
        make=stacks.attention_residuals,
    ),
)
VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _ALL}
