"""The check-up: what a checkpoint is, and whether it can be trusted.

Loading is strict already; the check-up says where it fails, and measures what loading cannot see.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from addnorm import checkpoint, sentence
from addnorm.errors import AddnormError
from addnorm.families import family_of
from addnorm.files import read_object
from addnorm.hub import locate
from addnorm.model import Model, load
from addnorm.trace.measure import identity_error

Status = Literal["ok", "warning", "wrong", "skipped"]
LENGTHS = (1, 2, 7, 33)  # tokens of the random texts
ROUNDING = 1e-4  # of float32, relative to the largest value of a site


@dataclass(frozen=True)
class Check:
    """One question, its answer, the figure it rests on, and what to do about it."""

    name: str
    status: Status
    figure: str
    advice: str = ""


@dataclass(frozen=True)
class CheckUp:
    """All checks of one checkpoint."""

    model: str
    checks: tuple[Check, ...]

    @property
    def wrong(self) -> bool:
        """Whether anything is wrong."""
        return any(check.status == "wrong" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def check(name: str | Path) -> CheckUp:
    """Check a folder or a named model, also one that fails to load: its first failure is then the last check."""
    checks: list[Check] = []
    try:
        for found in _loading(name):
            checks.append(found if isinstance(found, Check) else Check("loads", "ok", "in full"))
            if isinstance(found, Model):
                checks += [function(found) for function in CHECKS]
    except AddnormError as error:
        checks.append(Check(STAGES[len(checks)], "wrong", str(error), "mend what the message names"))
    return CheckUp(str(name), tuple(checks))


STAGES = ("found", "config fields", "weights file", "loads")


def _loading(name: str | Path) -> Iterator[Check | Model]:
    """The stages of loading, one after the other, so that the one that fails is known."""
    folder = locate(name)
    yield Check("found", "ok", str(folder))
    settings = sentence.read(folder)
    weights = folder / settings.transformer
    hf = read_object(weights / "config.json")
    family = family_of(hf)
    family.from_hf(hf)
    yield Check("config fields", "ok", f"family {family.name}, {len(hf)} fields, all understood")
    tensors = checkpoint.read_tensors(weights)
    yield Check("weights file", "ok", f"{len(tensors)} tensors readable")
    yield load(name)


def _tensors(model: Model) -> Check:
    assert model.origin is not None
    carried, plan = len(model.origin.carried), model.origin.plan
    files = sum(len(entry.files) for entry in plan)
    buffers = sum(len(entry.files) for entry in plan if not entry.ours and not entry.carried)
    figure = f"{files} tensors, each explained once; all finite; {buffers} buffers equal their formula"
    if carried:
        return Check("tensors", "warning", f"{figure}; {carried} kept but not computed", "see `addnorm info`")
    return Check("tensors", "ok", figure)


def _dtype(model: Model) -> Check:
    assert model.origin is not None
    stored = sorted({str(d).removeprefix("torch.") for d in model.origin.dtypes.values() if d.is_floating_point})
    computed = str(next(model.encoder.parameters()).dtype).removeprefix("torch.")
    figure = f"stored {' and '.join(stored)}, computed in {computed}"
    if len(stored) > 1:
        return Check("dtype", "warning", figure, "a file of one dtype is what writers intend")
    return Check("dtype", "ok", figure)


def _positions(model: Model) -> Check:
    embeddings, blocks = model.config.embeddings, model.config.blocks
    inside = {
        "rotation": any(block.attention.rotary for block in blocks),
        "a bias by distance": model.config.position_bias or any(block.attention.position_bias for block in blocks),
        "disentangled distances": any(block.attention.disentangled for block in blocks),
    }
    schemes = [scheme for scheme, used in inside.items() if used]
    if embeddings.positions:
        rows = f"{embeddings.max_positions} rows, a text starts at row {embeddings.position_offset}"
        schemes.insert(0, f"{embeddings.positions} ({rows})")
    if not schemes:
        return Check(
            "positions", "wrong", "nothing tells where a token stands", "the config lacks its position scheme"
        )
    return Check("positions", "ok", ", ".join(schemes))


def _lengths(model: Model) -> Check:
    folder = _folder(model)
    path = folder / "tokenizer_config.json"
    stated = read_object(path).get("model_max_length") if path.is_file() else None
    tokenizer = int(stated) if isinstance(stated, int | float) and stated < 1e9 else None
    limits = {"positions": model.max_positions, "pooling file": model.settings.max_tokens, "tokenizer": tokenizer}
    known = {name: limit for name, limit in limits.items() if limit is not None}
    figure = ", ".join(f"{name} {limit}" for name, limit in known.items()) or "no limit stated"
    over = [name for name, limit in known.items() if model.max_positions is not None and limit > model.max_positions]
    if over:
        return Check("maximum length", "warning", figure, f"{over[0]} allows more than the positions; texts are cut")
    if len(set(known.values())) > 1:
        return Check(
            "maximum length", "warning", figure, f"texts are cut to {model.max_tokens}; max_tokens overrides"
        )
    return Check("maximum length", "ok", figure)


def _tokenizer(model: Model) -> Check:
    if model.tokenizer is None:
        return Check("tokenizer", "warning", "no tokenizer files", "only token ids can be given")
    assert model.origin is not None
    backend, rows = model.tokenizer.backend, model.config.embeddings.vocabulary
    vocabulary = backend.get_vocab(with_added_tokens=True)
    highest = max(vocabulary.values())
    if highest >= rows:
        return Check(
            "tokenizer", "wrong", f"ids up to {highest}, but {rows} embeddings", "take the model's own tokenizer"
        )
    settings = _folder(model) / "tokenizer_config.json"
    named = read_object(settings) if settings.is_file() else {}
    for role in ("pad", "bos", "eos"):
        token, expected = named.get(f"{role}_token"), model.origin.hf.get(f"{role}_token_id")
        content = token.get("content") if isinstance(token, dict) else token
        actual = vocabulary.get(content) if content else None
        if None not in (actual, expected) and actual != expected:
            figure = f"'{content}' is {actual}, the config says {role}_token_id {expected}"
            return Check("tokenizer", "warning", figure, "tokenizer and config may be of two models")
    figure = f"{len(vocabulary)} tokens for {rows} embeddings"
    if len(vocabulary) < rows // 2:
        return Check("tokenizer", "warning", figure, "more than half of the table cannot be reached")
    return Check("tokenizer", "ok", figure)


def _pooling(model: Model) -> Check:
    modes = " + ".join(model.settings.modes) + (", normalised" if model.settings.normalize else "")
    if model.settings.stated:
        return Check("pooling", "ok", modes)
    return Check("pooling", "warning", f"{modes}: a guess", "the folder has no modules.json; ask its author")


def _final_norm(model: Model) -> Check:
    if not model.config.blocks:
        return Check("final norm", "skipped", "no blocks")
    last = model.config.blocks[-1].feedforward
    ends_normed = last.norm_out is not None
    if not ends_normed and last.norm_in is not None and model.config.norm is None:
        return Check("final norm", "wrong", "pre-norm without a final norm", "the stream leaves un-normalised")
    if ends_normed and model.config.norm is not None:
        return Check("final norm", "warning", "post-norm and a final norm", "normalised twice in a row")
    return Check("final norm", "ok", "present" if model.config.norm else "each block ends in its norm or has none")


def _windows(model: Model) -> Check:
    """What a window means here, measured: the farthest token that gets any weight."""
    windows = {i: b.attention.window for i, b in enumerate(model.config.blocks) if b.attention.window is not None}
    if not windows:
        return Check("windows", "skipped", "every token sees every other")
    widest = max(windows.values())
    length = min(2 * widest + 5, model.max_positions or 2 * widest + 5, 1024)
    (ids,) = _texts(model, (length,))
    for i, window in windows.items():
        weights = model.trace(ids, sites=f"blocks.{i}.attention.weights")[f"blocks.{i}.attention.weights"]
        seen = weights.amax(0).nonzero()
        farthest = int((seen[:, 0] - seen[:, 1]).abs().max())
        if farthest != min(window, length - 1):
            figure = f"block {i} sees {farthest} tokens away, its window is {window}"
            return _measured("windows", False, figure)
    figure = f"{len(windows)} of {len(model.config.blocks)} blocks see at most {widest} tokens to either side"
    return Check("windows", "ok", figure)


def _packed(model: Model) -> Check:
    texts = _texts(model, LENGTHS)
    together, worst = model.trace(texts), 0.0
    for i, ids in enumerate(texts):
        alone = model.trace(ids)
        worst = max(worst, *(_relative(together[i][site], alone[site]) for site in alone.sites))
    return _measured("packed = alone", worst <= ROUNDING, f"largest relative difference {worst:.1e}")


def _identity(model: Model) -> Check:
    worst = identity_error(model.encoder, model.trace(_texts(model, LENGTHS)[-1]))
    return _measured("add = α·x + branch", worst == 0, f"largest difference {worst:.1e} at any unit")


def _twin(model: Model) -> Check:
    from addnorm.trace.compare import compare

    if find_spec("transformers") is None:
        return Check("twin", "skipped", "transformers is not installed", "pip install 'addnorm[compare]'")
    worst, sites = 0.0, 0
    for ids in _texts(model, LENGTHS):
        try:
            comparison = compare(model, ids)
        except (AddnormError, ImportError, ValueError, OSError, RuntimeError, KeyError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return Check("twin", "warning", f"transformers cannot load it: {reason}", "nothing to compare with")
        worst, sites = max(worst, comparison.largest), len(comparison.differences)
        if (first := comparison.first_above(ROUNDING * 10)) is not None:
            figure = f"{first.site} differs from {first.module} by {first.largest:.1e}"
            return Check("twin", "wrong", figure, "the first site that differs shows the cause; report this")
    return Check("twin", "ok", f"{sites} sites, largest difference {worst:.1e}")


CHECKS: tuple[Callable[[Model], Check], ...] = (
    _tensors,
    _dtype,
    _positions,
    _lengths,
    _tokenizer,
    _pooling,
    _final_norm,
    _windows,
    _packed,
    _identity,
    _twin,
)


def _folder(model: Model) -> Path:
    assert model.origin is not None
    assert model.origin.folder is not None
    return model.origin.folder / model.settings.transformer


def _texts(model: Model, lengths: tuple[int, ...]) -> list[list[int]]:
    """Random token ids, the same at every call; no pad, which some families count apart."""
    generator = torch.Generator().manual_seed(0)
    longest, vocabulary = model.max_positions or max(lengths), model.config.embeddings.vocabulary
    pad = model.config.embeddings.pad
    drawn = [torch.randint(0, vocabulary, (min(n, longest),), generator=generator).tolist() for n in lengths]
    return [[(pad + 1) % vocabulary if pad is not None and i == pad else i for i in ids] for ids in drawn]


def _measured(name: str, holds: bool, figure: str) -> Check:
    """A promise of this library: where it does not hold, the fault is ours."""
    return Check(name, "ok", figure) if holds else Check(name, "wrong", figure, "report this")


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1))
