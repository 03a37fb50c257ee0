"""What a trace says in a few figures: of a site, and of what a unit added and its norms did."""

from typing import Any

from torch import Tensor
from torch.nn.functional import cosine_similarity

from addnorm.nn.addnorm import AddNorm
from addnorm.nn.encoder import Encoder
from addnorm.trace.rebuild import stream_before
from addnorm.trace.record import Trace
from addnorm.trace.sites import meaning_of

# The last step of F in a unit's sub-layer; that of the others is `down`.
LAST_STEPS = {"attention": "output", "bottleneck": "exit"}


def measure_site(trace: Trace, name: str, first: int) -> dict[str, Any]:
    """Mean, standard deviation, mean Euclidean norm of a row, and the first values, of one text's site."""
    value: Tensor = trace[name]
    finite = value[value.isfinite()]  # scores beyond a window are −∞
    return {
        "site": name,
        "meaning": meaning_of(name).meaning,
        "shape": list(value.shape),
        "mean": float(finite.mean()),
        "std": float(finite.std(correction=0)),
        "norm": _row_norm(value.where(value.isfinite(), 0)),
        "first": value.flatten()[:first].tolist(),
    }


def measure_unit(encoder: Encoder, trace: Trace, block: int, unit: str) -> dict[str, Any]:
    """What an Add & Norm unit did to one text, as means over its tokens.

    `alpha_x`, `branch`: Euclidean norms of α·x and of the branch; `cosine`: between x and the branch;
    `norms`: mean and variance over the features, before and after each norm.
    """
    path = f"blocks.{block}.{unit}"
    module = _module(encoder, path)
    sites = [name for name in trace.sites if name.startswith(f"{path}.")]
    x = _entering(encoder, trace, block, unit)
    branch = trace[f"{path}.branch"]
    before = {
        "norm_in": x,
        "norm_branch": trace[f"{path}.{LAST_STEPS.get(unit, 'down')}"],
        "norm_out": trace[f"{path}.add"],
    }
    return {
        "unit": path,
        "alpha_x": _row_norm(module.add.alpha(x).detach()),
        "branch": _row_norm(branch),
        "cosine": float(cosine_similarity(x, branch, dim=-1).mean()),
        "norms": [
            {
                "norm": name,
                "mean": [float(value.mean()) for value in (before[name], trace[f"{path}.{name}"])],
                "variance": [_variance(value) for value in (before[name], trace[f"{path}.{name}"])],
            }
            for name in before
            if f"{path}.{name}" in sites
        ],
    }


def identity_error(encoder: Encoder, trace: Trace) -> float:
    """The largest |add − (α·x + branch)| at any unit of one text's trace; 0, exactly, is the contract."""
    worst = 0.0
    for i, block in enumerate(encoder.config.blocks):
        for unit in (*block.units, *(["bottleneck"] if block.bottleneck else [])):
            path = f"blocks.{i}.{unit}"
            x = _entering(encoder, trace, i, unit)
            expected = _module(encoder, path).add.alpha(x).detach() + trace[f"{path}.branch"]
            worst = max(worst, float((trace[f"{path}.add"] - expected).abs().max()))
    return worst


def _module(encoder: Encoder, path: str) -> AddNorm:
    module = encoder.get_submodule(path)
    assert isinstance(module, AddNorm)
    return module


def _entering(encoder: Encoder, trace: Trace, block: int, unit: str) -> Tensor:
    """The stream that enters a unit: a block's first unit stands on the narrow stream of a bottleneck."""
    config, path = encoder.config.blocks[block], f"blocks.{block}"
    before = list(config.units)[: list(config.units).index(unit)] if unit in config.units else []
    if before:
        site = _last(trace, f"{path}.{before[-1]}")
    elif config.bottleneck is None or unit == "bottleneck":
        site = stream_before(block)
    else:
        site = f"{path}.bottleneck.entry_norm" if config.bottleneck.norm else f"{path}.bottleneck.entry"
    x: Tensor = trace[site]
    return x


def _last(trace: Trace, unit: str) -> str:
    """The site of the stream that leaves a unit."""
    return f"{unit}.norm_out" if f"{unit}.norm_out" in trace else f"{unit}.add"


def _row_norm(value: Tensor) -> float:
    return float(value.norm(dim=-1).mean())


def _variance(value: Tensor) -> float:
    """Over the features of each token, averaged over the tokens."""
    return float(value.var(dim=-1, correction=0).mean())
