"""A model against its twin in transformers, site by site."""

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from addnorm.checkpoint import Origin
from addnorm.errors import AddnormError
from addnorm.families._rows import At

if TYPE_CHECKING:
    from addnorm.model import Model
    from addnorm.tokenizer import Tokens


@dataclass(frozen=True)
class Difference:
    """One site beside the twin's: the twin's module, and the largest element-wise difference."""

    site: str
    module: str
    largest: float


@dataclass(frozen=True)
class Comparison:
    """The sites that the twin shows, in forward order; `dtype`: that of both computations."""

    differences: tuple[Difference, ...]
    dtype: str

    @property
    def largest(self) -> float:
        """The largest difference at any site."""
        return max(row.largest for row in self.differences)

    def first_above(self, tolerance: float) -> Difference | None:
        """The first site that differs by more than `tolerance`: where the cause lies."""
        return next((row for row in self.differences if not row.largest <= tolerance), None)


def compare(model: "Model", text: Any) -> Comparison:
    """Run one text through the model and through transformers (unpadded, eager), in the model's dtype.

    Errors: transformers is not installed, the model was not loaded from a folder, several texts.
    """
    if model.origin is None or model.origin.folder is None:
        raise AddnormError("compare: this model was not loaded from a folder, so it has no twin; save and load it")
    tokens = model.as_tokens(text)
    if len(tokens) != 1:
        raise AddnormError(f"compare: {len(tokens)} texts; give one")
    dtype = next(model.encoder.parameters()).dtype
    twin = load_twin(model.origin, model.origin.folder / model.settings.transformer, dtype)
    return against(model, twin, tokens[0])


def load_twin(origin: Origin, folder: Path, dtype: torch.dtype) -> nn.Module:
    """The same folder in transformers, with its head if we compute that, and eager attention.

    Errors: transformers is not installed, or cannot read the folder by itself.
    """
    if origin.task is not None:
        raise AddnormError(f"compare: the update for '{origin.task}' was merged on loading; save and load the model")
    if origin.family.claims(origin.hf):
        raise AddnormError(
            f"compare: transformers reads model_type '{origin.hf['model_type']}' of this folder only with code of "
            "its authors, which is not run"
        )
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise AddnormError("compare: transformers is not installed; pip install 'addnorm[compare]'") from None
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(ERROR)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        name = origin.family.head_architecture(origin.hf) or origin.family.architecture
        kind = getattr(transformers, name, transformers.AutoModel)
        twin: nn.Module = kind.from_pretrained(folder, attn_implementation="eager", dtype=dtype, **origin.chosen)
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    return twin.eval()


def against(model: "Model", twin: nn.Module, tokens: "Tokens") -> Comparison:
    """The differences between a model and a twin already loaded, for one text."""
    assert model.origin is not None
    trace = model.trace(tokens)
    places = model.origin.family.twin_sites(model.config, model.origin.hf)
    theirs = twin_values(twin, {site: at for site, at in places.items() if site in trace}, tokens)
    rows = tuple(
        Difference(site, places[site].module, float((trace[site] - theirs[site]).abs().max()))
        for site in trace.sites
        if site in theirs
    )
    return Comparison(rows, str(next(twin.parameters()).dtype).removeprefix("torch."))


def twin_values(twin: nn.Module, places: dict[str, At], tokens: "Tokens") -> dict[str, Tensor]:
    """What a transformers model computes at each place, for one unpadded text."""
    base = twin.base_model
    assert isinstance(base, nn.Module)
    modules = dict(base.named_modules()) | dict(twin.named_modules())
    values: dict[str, Tensor] = {}

    def hook(site: str, at: At) -> Any:
        calls = count()

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            if next(calls) != at.call:
                return
            shown = inputs if at.input else output
            tensor = shown if isinstance(shown, Tensor) else shown[at.item]
            if at.part is not None:
                tensor = tensor.chunk(at.part[1], dim=-1)[at.part[0]]
            values[site] = tensor.detach()[0].clone()  # some models go on to change it in place

        return keep

    with ExitStack() as stack, torch.no_grad():
        for site, at in places.items():
            if at.module in modules:
                stack.enter_context(modules[at.module].register_forward_hook(hook(site, at)))
        ids, types = torch.tensor([tokens.ids]), torch.tensor([tokens.types])
        typed = {"token_type_ids": types} if types.any() else {}
        twin(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, **typed)
    return values
