"""Recording a forward pass: PyTorch's own forward hooks, set while recording and only then."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.errors import AddnormError
from addnorm.files import writing_file
from addnorm.nn.encoder import Encoder
from addnorm.nn.heads import SentencePooling
from addnorm.trace.sites import Site, select, sites_of

FORMAT = "addnorm-trace-1"


@dataclass(frozen=True, eq=False)
class Trace:
    """The values of sites for one or several texts, a reader seeing one text at a time.

    `kernel`: the attention kernel of the pass ("eager" whenever scores or weights were asked for).
    """

    texts: tuple[tuple[str, ...], ...]
    values: tuple[dict[str, Tensor], ...]
    kernel: str

    @property
    def tokens(self) -> list[str] | list[list[str]]:
        """The tokens of the one text, or a list for each of several."""
        rows = [list(tokens) for tokens in self.texts]
        return rows[0] if len(rows) == 1 else rows

    @property
    def sites(self) -> list[str]:
        """The recorded sites in forward order."""
        return list(self.values[0])

    def __len__(self) -> int:
        return len(self.texts)

    def __contains__(self, site: str) -> bool:
        return site in self.values[0]

    def __getitem__(self, key: str | int) -> Any:
        """`trace[site]`: the tensor of the one text; `trace[i]`: the trace of text i."""
        if isinstance(key, int):
            return Trace((self.texts[key],), (self.values[key],), self.kernel)
        if len(self) != 1:
            raise AddnormError(f"the trace holds {len(self)} texts; take one first: trace[0]['{key}']")
        if key not in self:
            select(self.sites, key)
            raise AddnormError(f"'{key}' is a pattern; a trace is read by one site's name")
        return self.values[0][key]

    def save(self, path: str | Path) -> None:
        """Write tokens and values as safetensors; `Trace.load` reads them back."""
        tensors = {
            f"{i}/{site}": value.contiguous().clone()
            for i, text in enumerate(self.values)
            for site, value in text.items()
        }
        facts = {"tokens": self.texts, "sites": self.sites, "kernel": self.kernel}
        with writing_file(Path(path)) as file:
            save_file(tensors, file, metadata={"format": FORMAT, "trace": json.dumps(facts)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Errors: not there, damaged, or not a trace."""
        if not Path(path).is_file():
            raise AddnormError(f"no trace file '{path}'; check the path")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise AddnormError(
                        f"'{path}' is a safetensors file but no trace; expected one written by Trace.save"
                    )
                facts = json.loads(metadata["trace"])
                values = tuple(
                    {site: file.get_tensor(f"{i}/{site}") for site in facts["sites"]}
                    for i in range(len(facts["tokens"]))
                )
        except AddnormError:
            raise
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise AddnormError(f"'{path}' is damaged or not a trace ({error}); record it again") from None
        return cls(tuple(tuple(tokens) for tokens in facts["tokens"]), values, facts["kernel"])


class _Stop(Exception):  # noqa: N818 (a signal, not an error)
    """Raised by the last hook of a pass that need not go on."""


def record(
    encoder: Encoder,
    pooling: SentencePooling,
    batch: Batch,
    texts: Sequence[Sequence[str]],
    sites: str | Sequence[str] | None = None,
    until: str | None = None,
) -> Trace:
    """Run the encoder and what reads its stream, keeping the values of `sites`, text by text.

    The pass ends after `until`. Errors: an unknown site, or nothing to record before `until`.
    """
    available = sites_of(encoder, {"pooling": pooling})
    names = list(available)
    if until is not None:
        last = names.index(select(names, until)[-1])
        names = names[: last + 1]
    chosen = [name for name in select(list(available), sites) if name in names]
    if not chosen:
        raise AddnormError(
            f"trace: nothing of '{sites}' happens until {until}; choose an earlier site or a later end"
        )
    inside = any(available[name][0].grouped for name in [*chosen, *(names[-1:] if until else [])])
    kernel = encoder.kernel_for("eager" if inside else None).name
    fired: dict[str, list[Tensor]] = {}

    def hook(name: str, site: Site) -> Any:
        expected = len(batch.groups) if site.grouped else 1

        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            outputs = fired.setdefault(name, [])
            outputs.append(output.detach())
            if name == names[-1] and until is not None and len(outputs) == expected:
                raise _Stop

        return keep

    with ExitStack() as stack:
        for name in dict.fromkeys([*chosen, names[-1]]):
            site, module = available[name]
            stack.enter_context(module.register_forward_hook(hook(name, site)))
        try:
            stream = encoder(batch, kernel)
            encoder.read(stream, batch)
            pooling(stream, batch)
        except _Stop:
            pass
    values = tuple(
        {name: _of_text(available[name][0], fired[name], batch, i) for name in chosen} for i in range(len(batch))
    )
    return Trace(tuple(tuple(tokens) for tokens in texts), values, kernel)


def _of_text(site: Site, outputs: list[Tensor], batch: Batch, text: int) -> Tensor:
    """The part of a site's value that belongs to one text."""
    if site.grouped:
        for group, output in zip(batch.groups, outputs, strict=True):
            if text in group.texts:
                return output[group.texts.index(text)]
    return outputs[0][text] if site.pooled else outputs[0][batch.spans[text]]
