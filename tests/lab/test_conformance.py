"""Variants against the constants that the papers print, and against each other where they must be equal."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import addnorm
from addnorm import AddnormError, Batch
from addnorm.config import EncoderConfig, Learned, NormConfig, ShapingConfig, WiringConfig
from addnorm.lab.exact import with_units
from addnorm.lab.fresh import profile, random_tokens, streams, transplant, units
from addnorm.lab.variants import VARIANTS, build
from addnorm.model import Model
from addnorm.nn.attention import Context
from addnorm.nn.init import INITS
from addnorm.nn.norms import build_norm
from addnorm.trace.rebuild import check_block
from tests.lab.stacked import apart, batch_of, config_of, encoder_of, largest


@pytest.mark.parametrize(
    ("name", "constant", "printed"),
    [
        ("deepnorm", "α", {6: 1.8612, 12: 2.2134, 24: 2.6321, 50: 3.1623, 100: 3.7606}),
        ("deepnorm", "β", {6: 0.3799, 12: 0.3195, 24: 0.2686, 50: 0.2236, 100: 0.1880}),
        ("admin", "w", {6: 2.017, 12: 2.601, 24: 3.404}),
        ("sub-ln", "gain of W_V W_O W_1 W_2", {6: 1.576, 12: 1.783, 24: 1.968}),
        ("t-fixup", "gain of W_V W_O W_1 W_2", {6: 0.428, 12: 0.360}),
        ("t-fixup", "embeddings", {6: 0.369, 12: 0.310}),
        ("mix-ln", "post-norm blocks", {12: 3}),
        ("layerscale", "g", {12: 1e-5, 24: 1e-5, 36: 1e-6, 48: 1e-6}),
        ("depth-scaled", "β", {4: 0.5, 16: 0.25}),
    ],
)
def test_constants_are_those_printed(name: str, constant: str, printed: dict[int, float]) -> None:
    for depth, value in printed.items():
        digits = len(str(value).partition(".")[2])
        found = VARIANTS[name].constants(depth)[constant]
        assert found == pytest.approx(value, abs=0.51 * 10**-digits if value >= 1e-3 else 1e-12), depth


@pytest.mark.parametrize("depth", [2, 12, 24])
def test_constants_are_where_they_belong(depth: int) -> None:
    def first(name: str) -> Any:
        return build(name, depth=depth, width=8, heads=2).blocks[0]

    def gains(name: str) -> dict[str, float]:
        return {row.matrix: row.gain for row in build(name, depth=depth, width=8, heads=2).init.matrices}

    deepnorm = VARIANTS["deepnorm"].constants(depth)
    assert first("deepnorm").attention.alpha == first("deepnorm").feedforward.alpha == deepnorm["α"]
    assert gains("deepnorm") == dict.fromkeys(("value", "output", "up", "gate", "down"), deepnorm["β"])
    assert first("admin").feedforward.alpha == Learned(init=VARIANTS["admin"].constants(depth)["w"], shape="vector")
    assert first("rezero").attention.beta == Learned(init=0.0)
    assert gains("sub-ln").keys() == {"value", "output", "up", "gate", "down"}
    assert gains("t-fixup")["tokens"] == VARIANTS["t-fixup"].constants(depth)["embeddings"]
    assert gains("b2t")["query"] == gains("b2t")["down"] == depth**-0.5
    scaled = build("ln-scaling", depth=depth, width=8, heads=2).blocks
    factors = [block.feedforward.norm_in.factor for block in scaled if block.feedforward.norm_in]
    assert factors == pytest.approx([1 / math.sqrt(i + 1) for i in range(depth)])
    assert first("parallel").attention.norms.keys() == first("parallel").feedforward.norms.keys() == {"norm_in"}


@pytest.mark.parametrize("recipe", INITS)
def test_matrices_are_drawn_with_their_gains(recipe: str) -> None:
    width, inner, depth = 120, 160, 4
    config = build("post-norm", depth=depth, width=width, heads=2, inner=inner, vocabulary=300, init=recipe)
    encoder = encoder_of(config)
    rows = {row.matrix: row for row in config.init.matrices}
    shapes = {"query": (width, width), "output": (width, width), "up": (width, inner), "down": (inner, width)}
    for matrix, (inputs, outputs) in shapes.items():
        unit = encoder.blocks[1].attention if matrix in ("query", "output") else encoder.blocks[1].feedforward
        weight = getattr(unit.sublayer, matrix).weight.detach()
        row = rows.get(matrix)  # type: ignore[call-overload]
        expected = {
            "normal": config.init.std,
            "xavier": math.sqrt(2 / (inputs + outputs)),
            "xavier_normal": math.sqrt(2 / (inputs + outputs)),
            "he": math.sqrt(2 / inputs),
            "orthogonal": width**-0.5,
            "zero": 0.0,
        }[(row and row.kind) or config.init.kind] * (row.gain if row else 1.0)
        assert float(weight.std()) == pytest.approx(expected, rel=0.05), matrix


def test_admin_measures_its_skips() -> None:
    encoder = encoder_of(config_of("admin-profiled"))
    batch = batch_of()
    skips = profile(encoder, batch)
    assert skips[0] == 1
    encoder = encoder_of(config_of("admin-profiled"))  # the weights that were measured, before they are drawn anew
    with torch.no_grad():
        for unit, w in zip(units(encoder), skips, strict=True):
            unit.add.alpha.weight.fill_(w)
        seen: list[float] = []
        for unit in units(encoder):
            unit.add.register_forward_pre_hook(
                lambda module, inputs: seen.append(
                    float((module.alpha(inputs[0])).var(correction=0) + inputs[1].var(correction=0)) ** 0.5
                )
            )
        encoder(batch)
    assert seen[:-1] == pytest.approx(skips[1:], abs=1e-6)
    assert skips == sorted(skips)
    # Post-norm inputs have variance 1, so w² grows by the variance of each branch.
    assert skips[-1] ** 2 > 1.5


@pytest.mark.parametrize("name", ["rezero", "skipinit"])
def test_a_branch_of_0_leaves_the_embeddings(name: str) -> None:
    encoder = encoder_of(config_of(name))
    batch = batch_of()
    assert torch.equal(encoder(batch), encoder.embeddings(batch))


def test_rezero_has_one_number_a_block() -> None:
    rezero, skipinit = (encoder_of(config_of(name)) for name in ("rezero", "skipinit"))
    assert sum(p.ndim == 0 for p in rezero.parameters()) == 3
    assert sum(p.ndim == 0 for p in skipinit.parameters()) == 6


def test_layer_scale_of_0_is_the_normalised_embeddings() -> None:
    config = with_units(config_of("layerscale"), beta=Learned(init=0.0, shape="vector"))
    encoder = encoder_of(config)
    assert encoder.norm is not None
    batch = batch_of()
    assert torch.equal(encoder(batch), encoder.norm(encoder.embeddings(batch)))


@pytest.mark.parametrize(
    ("name", "bound"),
    [("denseformer", 1e-12), ("hyper-connections", 1e-10), ("attention-residuals", 1e-8), ("value-residual", None)],
)
def test_wirings_start_as_pre_norm(name: str, bound: float | None) -> None:
    """All but the value residual; attention residuals up to eps, since they average what pre-norm sums."""
    pre, wired = config_of("pre-norm"), config_of(name)
    encoder = encoder_of(wired)
    with torch.no_grad():
        for path, parameter in encoder.named_parameters():
            if not path.startswith("wiring."):
                torch.manual_seed(len(path))
                parameter.add_(0.3 * torch.randn_like(parameter))
    plain = transplant(encoder, pre)
    if bound is None:
        assert apart(plain, encoder) > 1e-3
    else:
        assert apart(plain, encoder) <= bound


def test_attention_residuals_differ_without_a_final_norm_by_the_number_of_terms() -> None:
    wired = config_of("attention-residuals").replace(norm=None)
    encoder = encoder_of(wired)
    plain = transplant(encoder, config_of("pre-norm").replace(norm=None))
    batch = batch_of()
    assert largest(encoder(batch) * (2 * 3 + 1) - plain(batch)) <= 1e-8


def test_scales_of_1_are_post_norm() -> None:
    post = encoder_of(config_of("post-norm"), stir=True)
    deepnorm = transplant(post, with_units(config_of("deepnorm"), alpha=1.0))
    admin = transplant(post, config_of("admin-profiled"))
    assert apart(post, deepnorm) == 0
    assert apart(post, admin) == 0


def test_residual_is_post_norm_and_a_second_stream() -> None:
    post = encoder_of(config_of("post-norm"), stir=True)
    both = transplant(post, config_of("residual"))
    batch = batch_of()
    branches: list[torch.Tensor] = [post.embeddings(batch)]
    for unit in units(post):
        unit.branch.register_forward_hook(lambda module, inputs, output: branches.append(output))
    plain = post(batch)
    second = torch.nn.functional.layer_norm(sum(branches), (12,), eps=1e-7)
    assert largest(both(batch) - (plain + second)) <= 1e-12


def test_b2t_adds_the_blocks_input_below_its_top() -> None:
    encoder = encoder_of(config_of("b2t", depth=1), stir=True)
    batch = batch_of()
    x = encoder.embeddings(batch)
    attention, feedforward = units(encoder)
    u = attention(x, Context(batch, encoder.kernel_for(), (None,) * len(batch.groups)))
    assert feedforward.norm_out is not None
    expected = feedforward.norm_out(u + feedforward.sublayer(u) + x)
    assert largest(encoder(batch) - expected) <= 1e-12


def test_parallel_feeds_both_from_one_input() -> None:
    encoder = encoder_of(config_of("parallel", depth=1), stir=True)
    batch = batch_of()
    x = encoder.embeddings(batch)
    attention, feedforward = units(encoder)
    context = Context(batch, encoder.kernel_for(), (None,) * len(batch.groups))
    assert encoder.norm is not None
    expected = encoder.norm(x + attention.compute(x, context) + feedforward.compute(x))
    assert largest(encoder(batch) - expected) <= 1e-12


def test_value_skipinit_of_identities_needs_no_attention() -> None:
    """With W_V W_O = 1 the attention unit gives what enters it: the stack is that of its feed-forwards."""
    encoder = encoder_of(config_of("value-skipinit"), stir=False)
    with torch.no_grad():
        for block in encoder.blocks:
            block.attention.sublayer.value.weight.copy_(torch.eye(12))
            block.attention.sublayer.output.weight.copy_(torch.eye(12))
    batch = batch_of()
    x = encoder.embeddings(batch)
    for block in encoder.blocks:
        x = block.feedforward(block.attention.norm_in(x))
    assert encoder.norm is not None
    assert largest(encoder(batch) - encoder.norm(x)) <= 1e-12


def test_shaped_attention_starts_as_value_skipinit() -> None:
    """W_Q = 0 makes all scores equal, so softmax and centre cancel."""
    shaped = encoder_of(config_of("shaped"))
    other = transplant(shaped, config_of("value-skipinit"))
    for block in other.blocks:
        assert block.attention.sublayer.weights.softmax.eq(1).all()
        torch.nn.init.zeros_(block.attention.sublayer.weights.softmax)
        torch.nn.init.zeros_(block.attention.sublayer.weights.centre)
    assert apart(shaped, other) <= 1e-12


def test_shaped_weights_are_their_formula() -> None:
    attention = (
        config_of("post-norm")
        .blocks[0]
        .attention.replace(shaping=ShapingConfig(identity=0.7, softmax=1.3, centre=0.4), window=2)
    )
    config = config_of("post-norm", depth=1)
    config = config.replace(blocks=(config.blocks[0].replace(attention=attention),))
    encoder = encoder_of(config)
    weights = encoder.blocks[0].attention.sublayer.weights
    scores = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    scores[..., 0, 3] = float("-inf")
    centre = torch.full((4, 4), 0.25, dtype=torch.float64)
    centre[0] = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0])
    expected = 0.7 * torch.eye(4, dtype=torch.float64) + 1.3 * scores.softmax(-1) - 0.4 * centre
    assert largest(weights(scores) - expected) <= 1e-6  # 0.7 is stored in float32 first
    assert encoder(batch_of()).isfinite().all()


@pytest.mark.parametrize("name", ["normformer", "hybrid-norm-star", "peri-norm", "hyper-connections", "shaped"])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    encoder = encoder_of(config_of(name), stir=True)
    stream = encoder(batch_of())
    (stream * torch.linspace(-1, 1, 12)).sum().backward()
    lost = [path for path, p in encoder.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert lost == []


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_built_counted_and_read_back(name: str) -> None:
    config = config_of(name, outputs=5)
    encoder = encoder_of(config)
    assert config.num_params() == sum(p.numel() for p in encoder.parameters())
    assert EncoderConfig.from_json(config.to_json()) == config
    assert encoder(batch_of()).isfinite().all()
    assert [x.shape for x in streams(encoder, batch_of())] == [(18, 12)] * 4


@pytest.mark.parametrize("name", VARIANTS)
def test_a_text_gives_the_same_alone(name: str) -> None:
    encoder = encoder_of(config_of(name), stir=True).eval()
    batch = batch_of()
    with torch.no_grad():
        together = encoder(batch)
        for i, span in enumerate(batch.spans):
            alone = encoder(Batch.pack([batch.ids[span].tolist()]))
            scale = max(1.0, float(alone.abs().max()))
            assert largest(together[span] - alone) <= 1e-10 * scale, i


@pytest.mark.parametrize("kind", ["rms", "batch", "dyt", "derf", "affine"])
def test_a_norm_can_be_another_in_any_placement(kind: Any) -> None:
    for name in ("post-norm", "pre-norm", "peri-norm", "deepnorm"):
        encoder = encoder_of(config_of(name, norm=kind))
        assert {norm.kind for norm in encoder.config.blocks[0].attention.norms.values()} == {kind}
        assert encoder(batch_of()).isfinite().all()


def test_norms_without_statistics_are_their_formulas() -> None:
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    expected = {
        "dyt": lambda g, b: g * torch.tanh(0.8 * x) + b,
        "derf": lambda g, b: g * torch.erf(0.8 * x) + b,
        "affine": lambda g, b: g * x + b,
    }
    for kind, formula in expected.items():
        norm = build_norm(NormConfig(kind=kind, slope=0.8, factor=0.5), 7)  # type: ignore[arg-type]
        assert norm is not None
        norm.double()
        with torch.no_grad():
            for p in norm.parameters():
                if p.ndim:
                    p.copy_(torch.linspace(0.5, 2, 7))
        g = b = torch.linspace(0.5, 2, 7).double()
        assert largest(norm(x) - 0.5 * formula(g, b)) <= 1e-7


@pytest.mark.parametrize("name", VARIANTS)
def test_every_block_on_one_stream_is_its_equations(name: str) -> None:
    config = config_of(name)
    model = Model(config, encoder=encoder_of(config, stir=True).eval())
    trace = model.trace(random_tokens(1, 6, 31, 0).ids)
    if config.wiring is not None:
        with pytest.raises(AddnormError, match=f"wiring '{config.wiring.kind}'"):
            check_block(model.encoder, trace, 0)
        return
    for i in range(3):
        differences = check_block(model.encoder, trace, i)
        assert differences.keys() == {site for site in trace.sites if site.startswith(f"blocks.{i}.")}
        assert max(differences.values()) <= 1e-10


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("post-nrom", {}, "did you mean post-norm"),
        ("rezero", {"norm": "rms"}, "no norm that could be rms"),
        ("ln-scaling", {"init": "megatron"}, "scale the same branch twice"),
        ("mix-ln", {"depth": 1}, "both post-norm and pre-norm"),
        ("hyper-connections", {"norm": "batch"}, "batch norm"),
        ("pre-norm", {"width": 10, "heads": 3}, "heads divide"),
        ("pre-norm", {"norm": "group"}, "norm 'group' is unknown"),
        ("pre-norm", {"init": "glorot"}, "init 'glorot' is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(name: str, size: dict[str, Any], reason: str) -> None:
    with pytest.raises(AddnormError, match=reason):
        config_of(name, **size)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: WiringConfig(kind="b2t", scale=0.5), "'b2t' has no scale; 'residual' has"),
        (lambda: WiringConfig(kind="dense", streams=2), "'dense' has no streams; 'hyper' has"),
        (lambda: WiringConfig(kind="hyper", streams=0), "streams above 0"),
        (lambda: config_of("pre-norm").blocks[0].replace(tied_beta=True), "tied_beta needs one and the same"),
    ],
)
def test_options_that_belong_elsewhere_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(AddnormError, match=reason):
        make()


def test_values_of_other_shapes_have_no_residual() -> None:
    config = config_of("value-residual")
    other = config.blocks[1].replace(attention=config.blocks[1].attention.replace(head_width=5))
    with pytest.raises(AddnormError, match="value_residual needs blocks with the same"):
        config.replace(blocks=(config.blocks[0], other))


def test_a_wiring_is_not_lost_in_a_file(minilm: addnorm.Model, tmp_path: Path) -> None:
    """No checkpoint format has wirings, so saving one is refused and nothing is written."""
    config = minilm.config.replace(wiring=WiringConfig(kind="parallel"))
    model = Model(config, encoder=transplant(minilm.encoder, config))
    with pytest.raises(AddnormError, match="no family can express this config"):
        model.save(tmp_path / "parallel")
    assert list(tmp_path.iterdir()) == []
