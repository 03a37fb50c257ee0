"""The report: all studies at small size, and what each says about what is said of Add & Norm.

Nothing here knows how a study comes out: the verdicts are those of `claims`, from the tables that were measured.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

import torch

from addnorm import plots
from addnorm.lab import ablate, claims, gradients, norms, position, predict, signal, train, update
from addnorm.lab.claims import Check, Claim, Verdict
from addnorm.lab.page import document, download, note, picture, tabulate
from addnorm.lab.table import Progress, Table
from addnorm.panels import plotly

TEXTS = (
    "A cat sleeps on the sofa.",
    "The kitten naps on a couch.",
    "Stock markets fell sharply today.",
    "Shares dropped on Wall Street.",
    "How do I bake bread at home?",
    "A recipe for sourdough loaves.",
    "The train to Berlin leaves at noon.",
    "When is the next departure for Hamburg?",
)


@dataclass(frozen=True)
class Part:
    """A study of the report: how it is run (with `settings` and a progress), drawn, and what it decides.

    `summary`: columns whose means are shown, and by what; `command`: the study under `addnorm lab`.
    """

    name: str
    title: str
    command: str
    run: Callable[..., Table]
    figure: Callable[[Table], Any]
    claims: tuple[Claim, ...]
    summary: tuple[str, tuple[str, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a part: its table, or why there is none; checks in the order of the claims."""

    part: Part
    table: Table | None
    checks: tuple[tuple[Check, ...], ...]
    seconds: float
    failure: str = ""

    @property
    def verdicts(self) -> list[Verdict]:
        """One a claim."""
        return [claims.verdict(checks) for checks in self.checks]


def step(**settings: Any) -> Table:
    """`update` by one step of gradient descent, of matrices alone and of all: variants "deepnorm, matrices" …"""
    found = [
        row | {"variant": f"{row['variant']}, {what}"}
        for what in ("matrices", "all")
        for row in update.update(("deepnorm", "post-norm"), how="sgd", what=what, **settings).rows
    ]
    return Table("Change of the output by one step of SGD", tuple(found), update.NOTE)


def phases(progress: Progress | None = None, **settings: Any) -> Table:
    """`diagram`; nothing is run, so there is no progress."""
    return predict.diagram(**settings)


def parts_of_model(model: str | None = None, progress: Progress | None = None, **settings: Any) -> Table:
    """`ablate` of a trained model on texts of its own."""
    from addnorm.hub import DEFAULT_MODEL
    from addnorm.model import load

    return ablate.ablate(load(model or DEFAULT_MODEL), TEXTS, progress=progress, **settings)


BY_DEPTH = ("variant", "depth")
LEARNERS = ("post-norm", "pre-norm", "deepnorm")
PARTS = (
    Part(
        "gradients", "Gradients by depth", "gradients", gradients.gradients, plots.gradients,
        (
            Claim(
                "At the start the gradient of the last block does not depend on the depth with post-norm, and falls "
                "with it with pre-norm", "Xiong 2020, theorem 1", claims.last_gradients,
            ),
            Claim(
                "In a post-norm encoder gradients vanish exponentially on the way down", "textbooks; Liu 2020 "
                "measured that of encoders and decoders only decoders do this", claims.post_norm_vanishes,
            ),
            Claim(
                "Residual connections are what keeps gradients from vanishing", "He 2016; Noci 2022 for W_Q",
                claims.residuals_save_gradients,
            ),
        ),
        ("gradient", ("where", "variant", "depth")), {"seeds": 3, "width": 96, "outputs": 500},
    ),
    Part(
        "signal", "The stream by depth", "signal", signal.signal, plots.signal,
        (
            Claim(
                "With residual connections the tokens of a text stay apart, also in a deep stack", "often read into "
                "Dong 2021; Noci 2022 says it takes a small branch", claims.tokens_stay_apart,
            ),
        ),
        ("cosine", ("variant", "layer")),
    ),
    Part(
        "parts", "What keeps tokens apart", "signal --parts", signal.fresh_parts, plots.parts,
        (
            Claim(
                "Without residuals all tokens of a text become the same vector within a few blocks, with or without "
                "feed-forwards; with residuals they do not", "Dong 2021, figure 2", claims.collapse,
            ),
        ),
        ("residue", ("parts", "layer")), {"depth": 6, "length": 48},
    ),
    Part(
        "closed-form", "Likeness of tokens in closed form", "signal --closed-form", signal.closed_form,
        plots.closed_form,
        (
            Claim(
                "Likeness grows by ln(1 + a²) a block on the logit scale, a being the scale of the branch, so that "
                "1/√N keeps tokens apart", "Noci 2022", claims.likeness,
            ),
        ),
        ("measured", ("scale", "layer")), {"width": 384},
    ),
    Part(
        "update", "Change of the output by noise", "update", update.update, plots.update,
        (
            Claim(
                "With the same small noise on all matrices the output of a post-norm stack moves in proportion to "
                "its depth, that of pre-norm and Admin with the logarithm", "Liu 2020, theorem 2 and corollary 2",
                claims.noise,
            ),
        ),
        ("change", BY_DEPTH), {"variants": ("post-norm", "pre-norm", "admin", "deepnorm")},
    ),
    Part(
        "step", "Change of the output by one step", "update --how sgd", step, plots.update,
        (
            Claim(
                "One step of gradient descent changes the output of a DeepNorm stack by the same amount at any "
                "depth", "Wang 2022 (DeepNet), theorem 4.2", claims.deepnorm_step,
            ),
        ),
        ("change", BY_DEPTH),
    ),
    Part(
        "predict", "Token cosine, predicted", "predict", predict.predict, plots.predict,
        (
            Claim(
                "The likeness of tokens in a fresh post-norm stack can be computed from its config alone",
                "Giorlandino & Goldt, ICLR 2026", claims.recursion,
            ),
        ),
        ("measured", ("beta", "layer")), {"seeds": 16},
    ),
    Part(
        "diagram", "Where post-norm can be trained", "predict --diagram", phases, plots.diagram,
        (
            Claim(
                "A larger skip, as DeepNorm has it, takes 24 post-norm blocks out of rank collapse (predicted, "
                "nothing is run)", "Giorlandino & Goldt, ICLR 2026; Wang 2022", claims.larger_skip,
            ),
        ),
        ("cosine", ("skip",)),
    ),
    Part(
        "growth", "Growth of a pre-norm stream", "predict --growth", predict.growth, plots.growth,
        (
            Claim(
                "A fresh pre-norm stream stays between two lines that are linear in depth", "Xiong 2020, lemma 2",
                claims.between_lines,
            ),
        ),
        ("measured", ("layer",)),
    ),
    Part(
        "squashed", "Growth without statistics", "predict (from Python: lab.predict.squashed)", predict.squashed,
        plots.squashed,
        (
            Claim(
                "With DyT and Derf in place of LayerNorm the growth of the stream follows a recursion",
                "Doshi 2023; Chen 2025 (Derf), Zhu 2025 (DyT) for the norms", claims.kernels,
            ),
        ),
        ("measured", ("kind", "slope", "layer")), {"width": 512, "seeds": 4},
    ),
    Part(
        "norms", "The same text in other company", "norms", norms.norms, plots.norms,
        (
            Claim(
                "With BatchNorm a text's vectors depend on the other texts of its batch; with LayerNorm, RMSNorm "
                "and DyT they do not", "Ba 2016; Shen 2020 (PowerNorm) for encoders", claims.company,
            ),
        ),
        ("change", ("norm", "company", "layer")),
    ),
    Part(
        "position", "What can be read from the stream", "position", position.position, plots.position,
        (
            Claim(
                "Residuals carry the input, position included, up the stack, and without them it is lost",
                "often said of residual streams", claims.still_readable,
            ),
        ),
        ("accuracy", ("what", "variant", "layer")), {"depth": 8},
    ),
    Part(
        "train", "Who learns", "train", train.train, plots.train,
        (
            Claim(
                "24 post-norm blocks do not learn from scratch without warm-up, and with DeepNorm they do",
                "Liu 2020; Wang 2022", claims.deepest_learn,
            ),
            Claim("Pre-norm trains better than post-norm", "Xiong 2020", claims.pre_beats_post),
        ),
        ("loss", ("variant", "depth", "step")), {"variants": LEARNERS, "depths": (4, 12, 24), "steps": 120},
    ),
    Part(
        "warm-up", "Post-norm with warm-up", "train --variants post-norm --warmups 0,50", train.train, plots.train,
        (
            Claim(
                "A short warm-up is enough for a deep post-norm stack to learn", "Vaswani 2017 and Xiong 2020 for 6 "
                "blocks; often said of any depth", claims.warm_up,
            ),
        ),
        ("loss", ("depth", "warmup", "step")),
        {"variants": ("post-norm",), "depths": (6, 24), "warmups": (0, 50), "steps": 150},
    ),
    Part(
        "ablate", "One part of a trained model off", "ablate", parts_of_model, plots.ablate,
        (
            Claim(
                "Of what an Add & Norm unit has, a trained encoder can least do without its residual",
                "expected from Dong 2021", claims.residual_matters_most,
            ),
            Claim(
                "A trained residual stack can do without any one of its blocks", "Veit 2016, for images",
                claims.any_block_can_go,
            ),
        ),
        ("rank", ("kind", "block")), {"kinds": ("residual", "norm", "attention", "feedforward", "block")},
    ),
)  # fmt: skip


def measure(part: Part, progress: Progress | None = None) -> Outcome:
    """Run one part and judge it. A study that fails is an outcome too."""
    began = time.monotonic()
    try:
        table = part.run(progress=progress, **part.settings)
        checks = tuple(tuple(claim.judge(table)) for claim in part.claims)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        return Outcome(part, None, ((),) * len(part.claims), time.monotonic() - began, failure)
    return Outcome(part, table, checks, time.monotonic() - began)


def report(
    parts: Iterable[Part] = PARTS, model: str | None = None, progress: Callable[[Part], Progress | None] | None = None
) -> list[Outcome]:
    """All parts, one after the other. `model`: that of `ablate`; `progress`: asked for when a part begins."""
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small are no faster on several, and much slower on a busy machine
    try:
        for part in parts:
            run = partial(parts_of_model, model) if part.run is parts_of_model and model is not None else part.run
            begun = None if progress is None else progress(part)
            found.append(measure(dataclasses.replace(part, run=run), begun))
    finally:
        torch.set_num_threads(threads)
    return found


def verdicts(outcomes: Sequence[Outcome]) -> Table:
    """A row a claim: part, claim, source, verdict, and what was measured."""
    rows = tuple(
        {
            "part": outcome.part.name,
            "claim": claim.text,
            "source": claim.source,
            "verdict": decision(checks),
            "measured": _figures(checks) or outcome.failure,
        }
        for outcome in outcomes
        for claim, checks in zip(outcome.part.claims, outcome.checks, strict=True)
    )
    return Table("What is said of Add & Norm, and what was measured", rows)


# --- words --------------------------------------------------------------------------------------------


def sentence(check: Check) -> str:
    """A measured figure and its limit."""
    value = f"{check.value:.3g}".replace("-", "−") if check.value == check.value else "not a number"
    return f"{check.what} {value} (limit: {check.limit})"


def _figures(checks: Sequence[Check]) -> str:
    """All of them, each once: one figure can stand under several conditions."""
    return "; ".join(dict.fromkeys(map(sentence, checks)))


def decision(checks: Sequence[Check]) -> str:
    """The verdict in words; where it depends, on what."""
    found = claims.verdict(checks)
    if found != "depends":
        return found
    said = claims.conditions(checks)
    yes, no = ([under for under, kept in said.items() if kept is wanted] for wanted in (True, False))
    return f"depends: holds {_listed(yes)}; does not hold {_listed(no)}"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)


def html(outcomes: Sequence[Outcome], command: str) -> str:
    """The report as one file. Errors: Plotly is not installed."""
    seconds = sum(outcome.seconds for outcome in outcomes)
    title = "Add & Norm, measured"
    rows = "".join(
        f'<tr><td class="w"><a href="#{outcome.part.name}">{escape(claim.text)}</a></td>'
        f'<td class="verdict">{escape(found)}</td></tr>'
        for outcome in outcomes
        for claim, found in zip(outcome.part.claims, outcome.verdicts, strict=True)
    )
    parts = [
        f"<h1>{escape(title)}</h1><p>What is said about residual connections and normalisation in Transformer "
        f"encoders, and what came out when it was measured at small size. Bands are 95 % confidence over seeds. Each "
        f"verdict follows from the figures and the limits beside them.</p>",
        f"<table><tbody>{rows}</tbody></table>",
        *(_section(outcome) for outcome in outcomes),
        f"<footer><p>Made by <code>{escape(command)}</code> in {seconds / 60:.1f} minutes.</p></footer>",
    ]
    return document(title, parts, pictures=True)


def _section(outcome: Outcome) -> str:
    part, table = outcome.part, outcome.table
    said = [f'<section id="{part.name}"><h2>{escape(part.title)}</h2>']
    for claim, checks in zip(part.claims, outcome.checks, strict=True):
        figures = _figures(checks) or f"nothing, the study failed: {outcome.failure}"
        said.append(
            f"<p>{escape(claim.text)} ({escape(claim.source)}). Measured: {escape(figures)}. "
            f'<span class="verdict">Verdict:</span> <strong>{escape(decision(checks))}</strong>.</p>'
        )
    if table is not None:
        column, by = part.summary
        settings = ", ".join(f"{name} {value}" for name, value in part.settings.items())
        seeds = sorted({row["seed"] for row in table.rows if "seed" in row})
        made = f"addnorm lab {part.command}" + (f"; with {settings}" if settings else "")
        made += f"; seeds {', '.join(map(str, seeds))}" if seeds else ""
        said += [
            _drawn(part, table),
            note(table.note),
            f"<details><summary>Figures</summary>{tabulate(table.mean(column, *by))}",
            f"<p>{escape(made)}; {outcome.seconds:.0f} s; {download(table, part.name)}</p></details>",
        ]
    return "".join(said) + "</section>"


def _drawn(part: Part, table: Table) -> str:
    try:
        return picture(part.figure(table))
    except (ValueError, KeyError, IndexError, TypeError, StopIteration) as error:
        plotly()  # that it is missing is no fault of the table
        return f'<p class="note">No picture can be made of these rows: {escape(str(error))}</p>'
