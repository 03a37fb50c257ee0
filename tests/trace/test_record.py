"""Recording a forward pass: what is kept, where it stops, what it leaves behind."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from addnorm import AddnormError, Model
from addnorm.nn.encoder import named_parts
from addnorm.trace.record import Trace
from addnorm.trace.sites import sites_of
from tests.nn.drawn import ids_of, largest, model_of, small
from tests.trace.test_sites import FULL

MODEL = model_of(FULL)
IDS = ids_of(6)[0]
SITES = list(sites_of(MODEL.encoder, {"pooling": MODEL.pooling}))
WEIGHTS = "blocks.0.attention.weights"


def same(a: Trace, b: Trace) -> bool:
    return (a.texts, a.kernel, a.sites) == (b.texts, b.kernel, b.sites) and all(
        torch.equal(one[site], other[site]) for one, other in zip(a.values, b.values, strict=True) for site in a.sites
    )


def modules_of(model: Model) -> dict[str, torch.nn.Module]:
    return {**named_parts(model.encoder), "pooling": model.pooling}


def hooks(model: Model) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in [*model.encoder.modules(), *model.pooling.modules()]
    )


# --- selection ----------------------------------------------------------------------------------------


def test_sites_come_in_forward_order() -> None:
    order: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, module in modules_of(MODEL).items()
        if name in SITES
    ]
    try:
        trace = MODEL.trace(IDS)
    finally:
        for handle in handles:
            handle.remove()
    assert trace.sites == order


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("blocks.*.attention.add", r"blocks\.\d+\.attention\.add"),
        (WEIGHTS, re.escape(WEIGHTS)),
        (["pooling", "embeddings*", WEIGHTS], rf"pooling|embeddings.*|{re.escape(WEIGHTS)}"),
        ("*", ".*"),
        ("blocks.?", r"blocks\.\d"),
    ],
)
def test_only_the_wanted_sites_are_kept(wanted: str | list[str], expected: str) -> None:
    trace, full = MODEL.trace(IDS, sites=wanted), MODEL.trace(IDS)
    assert trace.sites == [site for site in SITES if re.fullmatch(expected, site)]
    for site in trace.sites:
        assert largest(trace[site], full[site]) <= 1e-12


@pytest.mark.parametrize("how", ["sites", "until"])
def test_an_unknown_site_is_named_with_what_is_near(how: str) -> None:
    with pytest.raises(AddnormError, match=r"no site 'blocks.0.atention.ad'.*did you mean .*blocks.0.attention.add"):
        MODEL.trace(IDS, **{how: "blocks.0.atention.ad"})


@pytest.mark.parametrize(
    ("sites", "kernel"),
    [
        ("blocks.*.add", "sdpa"),
        ("*.attention.mix", "sdpa"),
        (None, "eager"),
        ("*.scores", "eager"),
        (WEIGHTS, "eager"),
    ],
)
def test_only_sites_inside_attention_need_eager(sites: str | None, kernel: str) -> None:
    assert MODEL.trace(IDS, sites=sites).kernel == kernel


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_other_sites_are_computed_by_the_models_own_kernel(kernel: str) -> None:
    model = model_of(small())
    model.encoder.kernel = kernel
    assert model.trace(IDS, sites="blocks.0").kernel == kernel
    assert model.trace(IDS, sites=WEIGHTS).kernel == "eager"
    assert model.encoder.kernel == kernel


# --- until --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", SITES)
def test_nothing_runs_after_until(last: str) -> None:
    def refuse(*inputs: Any) -> None:
        raise AssertionError("ran after until")

    later = SITES[SITES.index(last) + 1 :]
    handles = [modules_of(MODEL)[name].register_forward_hook(refuse) for name in later]
    try:
        trace = MODEL.trace(IDS, until=last)
    finally:
        for handle in handles:
            handle.remove()
    full = MODEL.trace(IDS)
    assert trace.sites == SITES[: SITES.index(last) + 1]
    for site in trace.sites:
        assert largest(trace[site], full[site]) <= 1e-12


@pytest.mark.parametrize("last", ["blocks.1.attention.scores", "blocks.1.attention.weights", "blocks.1"])
def test_until_waits_for_every_group_of_texts(last: str) -> None:
    texts = ids_of(4, 2, 4, 7)
    trace, full = MODEL.trace(texts, until=last), MODEL.trace(texts)
    for i in range(4):
        assert trace[i].sites == SITES[: SITES.index(last) + 1]
        for site in trace[i].sites:
            assert largest(trace[i][site], full[i][site]) <= 1e-12


@pytest.mark.parametrize(
    "last", ["blocks.0.attention.weights", "blocks.0.attention.scores", "blocks.0.attention.mix"]
)
def test_until_stops_at_a_site_that_is_not_kept(last: str) -> None:
    ran: list[object] = []
    handle = MODEL.encoder.blocks[0].feedforward.register_forward_hook(lambda *inputs: ran.append(inputs))
    try:
        trace = MODEL.trace(IDS, sites="blocks.0.attention.query", until=last)
    finally:
        handle.remove()
    assert trace.sites == ["blocks.0.attention.query"]
    assert not ran


def test_until_a_glob_goes_to_its_last_match() -> None:
    assert MODEL.trace(IDS, until="blocks.0.attention.*").sites[-1] == "blocks.0.attention.norm_out"


def test_a_site_after_until_is_refused() -> None:
    with pytest.raises(AddnormError, match=r"nothing of .blocks\.1. happens until blocks\.0"):
        MODEL.trace(IDS, sites="blocks.1", until="blocks.0")


# --- what goes in, what a reader sees -----------------------------------------------------------------


@pytest.mark.parametrize("make", [list, tuple, torch.tensor, lambda ids: [ids], lambda ids: [tuple(ids)]])
def test_ids_of_one_text_in_any_form(make: Callable[[list[int]], Any]) -> None:
    assert same(MODEL.trace(make(IDS)), MODEL.trace(IDS))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (torch.tensor([[1, 2]]), r"shape \(1, 2\)"),
        (torch.tensor([1.0, 2.0]), "float32; expected 1-D whole numbers"),
        (torch.tensor(3), r"shape \(\)"),
        ([], "no texts"),
        ([[1], []], "text 1 has no tokens"),
        ([1, 23], "token id 23 is outside"),
        ([1, -1], "token id -1 is outside"),
        ("text", "no tokenizer files; give token ids"),
        (["a", "b"], "no tokenizer files"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, says: str) -> None:
    with pytest.raises(AddnormError, match=says):
        MODEL.trace(texts)


@pytest.mark.parametrize("ids", [[-1], [30522], [2**40], [[101, -5]]])
def test_ids_that_the_tokenizer_does_not_know_are_refused(minilm: Model, ids: Any) -> None:
    with pytest.raises(AddnormError, match=r"token id .* is outside the model's 30522 vocabulary"):
        minilm.trace(ids)


def test_tokens_of_one_text_and_of_several(minilm: Model) -> None:
    one, several = minilm.trace("a test", until="embeddings"), minilm.trace(["a test", "tests"], until="embeddings")
    assert one.tokens == ["[CLS]", "a", "test", "[SEP]"]
    assert several.tokens == [["[CLS]", "a", "test", "[SEP]"], ["[CLS]", "tests", "[SEP]"]]
    assert minilm.trace(["a test"], until="embeddings").tokens == one.tokens
    assert MODEL.trace([3, 0, 7], until="embeddings").tokens == ["3", "0", "7"]


def test_a_trace_of_several_is_read_text_by_text() -> None:
    texts = ids_of(5, 1, 5)
    trace = MODEL.trace(texts)
    assert len(trace) == 3
    for i, ids in enumerate(texts):
        assert trace[i].tokens == [str(token) for token in ids]
        assert trace[i]["blocks.0.attention.weights"].shape == (3, len(ids), len(ids))
        assert trace[i]["pooling"].shape == (10,)
    assert same(trace[-1], trace[2])
    with pytest.raises(AddnormError, match=r"holds 3 texts; take one first: trace\[0\]\['blocks.0'\]"):
        trace["blocks.0"]
    with pytest.raises(IndexError):
        trace[3]


def test_a_trace_is_read_by_the_name_of_a_site() -> None:
    trace = MODEL.trace(IDS, sites="blocks.*")
    assert "blocks.0" in trace
    assert "embeddings" not in trace
    with pytest.raises(AddnormError, match=r"no site 'blocks.0.attention.ad'.*blocks.0.attention.add"):
        trace["blocks.0.attention.ad"]
    with pytest.raises(AddnormError, match=r"'blocks\.\?' is a pattern"):
        trace["blocks.?"]


# --- what stays behind --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [{}, {"until": "blocks.0.attention.weights"}, {"sites": "nowhere"}, {"until": "nowhere"}, {"texts": [99]}],
)
def test_no_hook_stays_behind(arguments: dict[str, Any]) -> None:
    before = hooks(MODEL)
    try:
        MODEL.trace(**{"texts": IDS, **arguments})
    except AddnormError:
        assert "until" not in arguments or arguments["until"] == "nowhere"
    assert hooks(MODEL) == before


def test_no_hook_stays_behind_when_the_pass_fails() -> None:
    def fail(*inputs: Any) -> None:
        raise RuntimeError("broken")

    handle = MODEL.encoder.blocks[1].register_forward_pre_hook(fail)
    before = hooks(MODEL)
    with pytest.raises(RuntimeError, match="broken"):
        MODEL.trace(IDS)
    assert hooks(MODEL) == before
    handle.remove()


def test_tracing_is_without_dropout_and_gradients() -> None:
    model = model_of(small(dropout=0.5, attention={"weights_dropout": 0.5}))
    expected = model.trace(IDS)
    model.encoder.train()
    trace = model.trace(IDS)
    assert same(trace, expected)
    assert model.encoder.training
    assert not any(trace[site].requires_grad for site in trace.sites)
