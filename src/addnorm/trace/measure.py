"""What a trace says in a few figures: of a site, and of what a unit added and its norms did."""

from typing import Any

from torch import Tensor
from torch.nn.functional import cosine_similarity

from addnorm.nn.addnorm import AddNorm
from addnorm.nn.encoder import Encoder
from addnorm.trace.rebuild import stream_before
from addnorm.trace.record import Trace
from addnorm.trace.sites import meaning_of


def measure_site(trace: Trace, name: str, first: int) -> dict[str, Any]:
    """Mean, standard deviation, mean Euclidean norm of a row, and the first values, of one text's site."""
    value: Tensor = trace[name]
    return {
        "site": name,
        "meaning": meaning_of(name).meaning,
        "shape": list(value.shape),
        "mean": float(value.mean()),
        "std": float(value.std(correction=0)),
        "norm": _row_norm(value),
        "first": value.flatten()[:first].tolist(),
    }


def measure_unit(encoder: Encoder, trace: Trace, block: int, unit: str) -> dict[str, Any]:
    """What an Add & Norm unit did to one text, as means over its tokens.

    `alpha_x`, `branch`: Euclidean norms of α·x and of the branch; `cosine`: between x and the branch;
    `norms`: mean and variance over the features, before and after each norm.
    """
    path = f"blocks.{block}.{unit}"
    module = getattr(encoder.blocks[block], unit)
    assert isinstance(module, AddNorm)
    sites = [name for name in trace.sites if name.startswith(f"{path}.")]
    x = trace[stream_before(block)] if unit == "attention" else trace[_last(trace, f"blocks.{block}.attention")]
    branch = trace[f"{path}.branch"]
    before = {
        "norm_in": x,
        "norm_branch": trace[f"{path}.output" if unit == "attention" else f"{path}.down"],
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


def _last(trace: Trace, unit: str) -> str:
    """The site of the stream that leaves a unit."""
    return f"{unit}.norm_out" if f"{unit}.norm_out" in trace else f"{unit}.add"


def _row_norm(value: Tensor) -> float:
    return float(value.norm(dim=-1).mean())


def _variance(value: Tensor) -> float:
    """Over the features of each token, averaged over the tokens."""
    return float(value.var(dim=-1, correction=0).mean())
