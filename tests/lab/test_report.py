"""The report and the studies' pages: everything is there once, and verdicts follow from what was measured."""

import dataclasses
import json
import math
import re
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from addnorm import AddnormError
from addnorm.cli import app
from addnorm.lab import claims, report
from addnorm.lab.claims import Check, verdict
from addnorm.lab.report import PARTS, Part
from addnorm.lab.table import Table

TINY: dict[str, dict[str, Any]] = {
    "gradients": {"depths": (1, 2), "seeds": 1, "width": 16},
    "signal": {"depths": (2,), "seeds": 1, "length": 8, "width": 16},
    "parts": {"seeds": 1, "depth": 3, "length": 8, "width": 16},
    "closed-form": {"depth": 2, "seeds": 1, "width": 16, "length": 8},
    "update": {"depths": (1, 2), "seeds": 1, "length": 8},
    "step": {"depths": (1, 2), "seeds": 1, "length": 8},
    "predict": {"depth": 2, "seeds": 1, "length": 16, "width": 16},
    "diagram": {"depth": 2, "betas": (0.5, 4.0), "skips": (1.0, 3.0)},
    "growth": {"depth": 2, "width": 16, "seeds": 1},
    "squashed": {"depth": 2, "width": 16, "seeds": 1},
    "norms": {"depth": 1, "companies": (1,), "seeds": 1},
    "position": {"depth": 1, "seeds": 1, "texts": 12},
    "train": {"variants": ("post-norm", "deepnorm", "pre-norm"), "depths": (1, 2), "steps": 2, "processes": 1},
    "warm-up": {"depths": (1,), "warmups": (0, 2), "steps": 2, "processes": 1},
    "ablate": {"kinds": ("residual", "norm", "attention", "feedforward", "block"), "blocks": (0,)},
}


def tiny(part: Part) -> Part:
    return dataclasses.replace(part, settings=dict(part.settings) | TINY[part.name])


def named(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)


class Page(HTMLParser):
    """Counts tags, keeps ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href") and value and not value.startswith(("#", "data:")):
                self.sources.append(value)


@pytest.fixture(scope="module")
def page() -> str:
    begun: list[str] = []
    outcomes = report.report([tiny(part) for part in PARTS], progress=lambda part: begun.append(part.name))
    assert begun == [part.name for part in PARTS]
    assert [outcome.failure for outcome in outcomes] == [""] * len(PARTS)
    return report.html(outcomes, "addnorm lab report -o report.html")


def test_each_study_has_a_section_with_claim_source_figures_verdict_and_picture(page: str) -> None:
    found = Page(page)
    assert {part.name for part in PARTS} <= set(found.ids)
    sections = dict(re.findall(r'<section id="([^"]+)">(.*?)</section>', page, flags=re.DOTALL))
    for part in PARTS:
        section = sections[part.name]
        assert "plotly-graph-div" in section
        assert section.count("Verdict:") == len(part.claims)
        assert "(limit: " in section
        assert "not a number" not in section
        for claim in part.claims:
            assert escape(claim.source) in section
    assert set(sections) == set(TINY)


def test_the_page_is_one_file_with_plotly_in_it_once(page: str) -> None:
    assert page.count("plotly.js v") == 1
    assert Page(page).sources == []
    assert 'name="viewport"' in page
    assert "addnorm lab report -o report.html" in page


# --- verdicts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([("", True), ("", True)], "holds"),
        ([("", True), ("", False)], "does not hold"),
        ([("a", True), ("b", False)], "depends"),
        ([("a", True), ("a", False), ("b", False)], "does not hold"),
        ([], "not measured"),
    ],
)
def test_conditions_make_a_verdict(kept: list[tuple[str, bool]], said: str) -> None:
    assert verdict([Check("x", 1.0, "below 2", ok, under) for under, ok in kept]) == said


def test_a_figure_that_is_not_a_number_decides_nothing() -> None:
    assert verdict([claims.below("x", math.nan, 1.0)]) == "not measured"
    assert verdict([claims.above("x", math.inf, 1.0)]) == "holds"


def powers(column: str, exponents: dict[str, float], **more: Any) -> Table:
    rows = [
        {"variant": name, "depth": depth, "seed": 0, column: depth**power} | more
        for name, power in exponents.items()
        for depth in (6, 12, 24)
    ]
    return Table("by noise", tuple(row | {"layer": row["depth"]} for row in rows))


def losses(post: float, deep: float, pre: float = 0.1) -> Table:
    key = {"rate": 1e-3, "warmup": 0, "seed": 0, "step": 10, "chance": 4.0, "depth": 24}
    names = {"post-norm": post, "deepnorm": deep, "pre-norm": pre}
    return Table("", tuple({"variant": name, "loss": loss} | key for name, loss in names.items()))


def companies(batch: float, layer: float) -> Table:
    return Table(
        "", tuple({"norm": n, "company": 1, "layer": 1, "change": c} for n, c in (("batch", batch), ("layer", layer)))
    )


def beside(gap: float, **more: Any) -> Table:
    return Table("", tuple({"seed": 0, "layer": i, "measured": 0.5 + gap, "predicted": 0.5} | more for i in (0, 1)))


def parts(without: float) -> Table:
    residues = {"attention": without, "attention + feed-forward": without, "full": 0.5}
    return Table("", tuple({"parts": name, "layer": 3, "residue": value} for name, value in residues.items()))


def readable(pre: float, alone: float) -> Table:
    rows = [(v, w, a) for v, a in (("pre-norm", pre), ("no-residual", alone)) for w in ("position", "token")]
    return Table("", tuple({"variant": v, "what": w, "layer": 1, "accuracy": a, "chance": 0.05} for v, w, a in rows))


def stream(post: float) -> Table:
    rows = [("post-norm", 0, post), ("post-norm", 2, 1.0)]
    return Table(
        "", tuple({"variant": v, "depth": 2, "where": "stream", "layer": k, "gradient": g} for v, k, g in rows)
    )


def off(residual: float, block: float = 0.9) -> Table:
    ranks = {"residual": residual, "norm": 0.6, "attention": 0.8, "feedforward": 0.8, "block": block}
    return Table("", tuple({"kind": kind, "rank": rank} for kind, rank in ranks.items()))


def cosines(post: float, pre: float) -> Table:
    ends = {"post-norm": post, "pre-norm": pre}
    return Table("", tuple({"variant": v, "depth": 2, "layer": 2, "cosine": c} for v, c in ends.items()))


def sizes(measured: float) -> Table:
    return Table("", ({"layer": 1, "measured": measured, "lower": 1.5, "upper": 2.5},))


def skips(large: float) -> Table:
    return Table("", tuple({"beta": 0.5, "skip": s, "cosine": c} for s, c in ((1.0, 0.999), (2.75, large))))


def steps(everything: float, matrices: float = 0.0) -> Table:
    return powers("change", {"deepnorm, matrices": matrices, "deepnorm, all": everything})


def warm(short: float, deep: float) -> Table:
    key = {"variant": "post-norm", "rate": 1e-3, "warmup": 50, "seed": 0, "step": 10, "chance": 4.0}
    return Table("", tuple({"depth": d, "loss": loss} | key for d, loss in ((6, short), (24, deep))))


def down(post: float, pre: float) -> Table:
    return powers("gradient", {"post-norm": post, "pre-norm": pre}, where="down")


MOVED = {"post-norm": 1.0, "pre-norm": 0.3, "admin": 0.3}


@pytest.mark.parametrize(
    ("judge", "table", "said"),
    [
        (claims.last_gradients, down(0.0, -0.5), "holds"),
        (claims.last_gradients, down(-0.5, -0.5), "does not hold"),
        (claims.last_gradients, down(0.0, math.nan), "not measured"),
        (claims.post_norm_vanishes, stream(0.4), "does not hold"),
        (claims.post_norm_vanishes, stream(0.01), "holds"),
        (claims.tokens_stay_apart, cosines(0.999, 0.9), "depends"),
        (claims.tokens_stay_apart, cosines(0.999, 0.999), "does not hold"),
        (claims.collapse, parts(0.001), "holds"),
        (claims.collapse, parts(0.4), "does not hold"),
        (claims.likeness, beside(0.01, scale=1.0), "holds"),
        (claims.likeness, beside(0.1, scale=1.0), "does not hold"),
        (claims.noise, powers("change", MOVED), "holds"),
        (claims.noise, powers("change", MOVED | {"admin": 1.0}), "does not hold"),
        (claims.deepnorm_step, steps(0.8), "depends"),
        (claims.deepnorm_step, steps(0.8, 0.7), "does not hold"),
        (claims.deepnorm_step, steps(0.1), "holds"),
        (claims.recursion, beside(0.01, beta=3.0), "holds"),
        (claims.recursion, beside(0.05, beta=3.0), "does not hold"),
        (claims.larger_skip, skips(0.8), "holds"),
        (claims.larger_skip, skips(0.999), "does not hold"),
        (claims.between_lines, sizes(2.0), "holds"),
        (claims.between_lines, sizes(3.0), "does not hold"),
        (claims.kernels, beside(0.001, kind="derf", slope=1.0), "holds"),
        (claims.kernels, beside(0.1, kind="derf", slope=1.0), "does not hold"),
        (claims.company, companies(0.9, 0.0), "holds"),
        (claims.company, companies(0.9, 0.5), "does not hold"),
        (claims.still_readable, readable(1.0, 0.06), "holds"),
        (claims.still_readable, readable(1.0, 0.9), "does not hold"),
        (claims.deepest_learn, losses(4.1, 0.1), "holds"),
        (claims.deepest_learn, losses(math.nan, 0.1), "holds"),
        (claims.deepest_learn, losses(4.1, math.nan), "does not hold"),
        (claims.pre_beats_post, losses(4.1, 0.1, 4.1), "does not hold"),
        (claims.pre_beats_post, losses(math.nan, 0.1), "holds"),
        (claims.warm_up, warm(0.1, 4.0), "depends"),
        (claims.warm_up, warm(3.0, 4.0), "does not hold"),
        (claims.residual_matters_most, off(0.3), "holds"),
        (claims.residual_matters_most, off(0.7), "depends"),
        (claims.residual_matters_most, off(0.9), "does not hold"),
        (claims.any_block_can_go, off(0.3, 0.5), "does not hold"),
        (claims.any_block_can_go, off(0.3, 0.9), "holds"),
    ],
)
def test_the_verdict_is_that_of_the_table(judge: Any, table: Table, said: str) -> None:
    checks = judge(table)
    assert verdict(checks) == said
    assert all(check.what and check.limit for check in checks)


def test_every_claim_of_the_report_was_tried_on_a_table_that_violates_it() -> None:
    cases = test_the_verdict_is_that_of_the_table.pytestmark[0].args[1]
    violated = {judge for judge, _, said in cases if said in ("does not hold", "depends")}
    asked = {claim.judge for part in PARTS for claim in part.claims}
    assert asked - violated == {claims.residuals_save_gradients}  # below, it has conditions of its own


@pytest.mark.parametrize(("alone", "said"), [(1e-6, "depends"), (0.5, "does not hold")])
def test_residuals_and_gradients(alone: float, said: str) -> None:
    """The stream keeps its gradient without residuals; W_Q does where tokens stay apart."""
    query = {"no-residual": alone, "pre-norm": 0.05, "post-norm": 0.001}
    rows = [
        {"variant": v, "where": "query", "layer": k, "gradient": g}
        for v, end in query.items()
        for k, g in ((1, 1.0), (2, end))
    ]
    rows += [{"variant": v, "where": "stream", "layer": k, "gradient": 1.0} for v in query for k in (0, 2)]
    table = Table("", tuple(row | {"depth": 2} for row in rows))
    checks = claims.residuals_save_gradients(table)
    assert verdict(checks) == said
    if said == "depends":
        assert report.decision(checks) == (
            "depends: holds for W_Q with pre-norm; does not hold for the stream, for W_Q with post-norm"
        )


# --- what goes wrong ----------------------------------------------------------------------------------


def test_a_study_that_fails_is_a_result() -> None:
    def broken(**settings: Any) -> Table:
        raise AddnormError("no such <model>")

    outcomes = report.report([dataclasses.replace(named("norms"), run=broken)])
    assert outcomes[0].verdicts == ["not measured"]
    page = report.html(outcomes, "x")
    assert "the study failed: AddnormError: no such &lt;model&gt;" in page


def test_a_loss_that_is_not_finite_is_a_result() -> None:
    """At a rate this high the first step leaves nothing finite."""
    settings = {"variants": ("post-norm", "deepnorm", "pre-norm"), "depths": (1,), "steps": 6, "rates": (1e30,)}
    part = dataclasses.replace(named("train"), settings=settings | {"processes": 1, "every": 1, "width": 16})
    (outcome,) = report.report([part])
    assert outcome.failure == ""
    assert "not measured" not in outcome.verdicts
    assert "does not hold" in outcome.verdicts
    assert 'id="train"' in report.html([outcome], "x")


# --- the command line ---------------------------------------------------------------------------------


def lab(arguments: str) -> Result:
    return CliRunner().invoke(app, ["lab", *arguments.split()])


@pytest.mark.parametrize(
    "study",
    [
        "gradients --variants post-norm,pre-norm --depths 1,2 --seeds 2 --width 16",
        "signal --variants post-norm --depths 2 --seeds 1 --width 16",
        "signal --closed-form --seeds 1",
        "update --variants post-norm --depths 1,2 --seeds 1 --width 16 --how adam",
        "train --variants rezero --depths 1 --steps 2 --width 16 --processes 1 --warmups 0,1",
        "predict --depth 2 --seeds 1 --width 16",
        "predict --diagram --depth 2",
        "predict --growth --depth 2 --seeds 1 --width 16",
        "norms --kinds layer,batch --depth 1 --seeds 1",
        "position --variants pre-norm --depth 1 --seeds 1",
    ],
)
def test_a_study_writes_a_page(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    typed = f"{study} --html {target}"
    monkeypatch.setattr(sys, "argv", ["addnorm", "lab", *typed.split()])
    result = lab(typed)
    assert result.exit_code == 0, result.output
    page = target.read_text(encoding="utf-8")
    found = Page(page)
    assert page.count("plotly.js v") == 1
    assert found.sources == []
    assert found.tags.index("script") < found.tags.index("table")
    assert f"addnorm lab {study}" in page
    assert "--diagram" in study or "seeds " in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_report_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PARTS", tuple(tiny(part) for part in PARTS))
    target = tmp_path / "report.html"
    result = lab(f"report -o {target} --only norms,growth --json")
    assert result.exit_code == 0, result.output
    assert "1/2 The same text in other company" in result.stderr
    found = json.loads(result.stdout)["rows"]
    assert [row["part"] for row in found] == ["norms", "growth"]
    assert found[0]["verdict"] == "holds"
    assert {"norms", "growth"} <= set(Page(target.read_text(encoding="utf-8")).ids)
    assert "Verdict" not in lab(f"report -o {target} --only growth").stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("report -o {} --only norms", "is a folder"),
        ("report -o {}/r.html --only nroms", "--only 'nroms' is unknown; choose gradients or"),
        ("norms --kinds layer --depth 1 --seeds 1 --html {}", "is a folder"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: str, reason: str, tmp_path: Path) -> None:
    result = lab(arguments.format(tmp_path))
    assert isinstance(result.exception, AddnormError)
    assert reason in str(result.exception)
