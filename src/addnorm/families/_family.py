"""A family: one dialect of checkpoint, as tables, read strictly and written back."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Size, Tensor

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import _rows as rows
from addnorm.families._rows import HF, At, Entry, Field, HeadRows, Modules, Split


def own_numbers(config: EncoderConfig) -> list[dict[str, int]]:
    """The placeholders of each block that has parameters of its own: {i}."""
    return [{"i": i} for i in config.owners]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One dialect of checkpoint, as data.

    Config: `fields`; `fixed`: what the family always is, by our path; `derived`: our path from the whole HF
    config; `blocks`: for each block what it has of its own, by path within the block; `only`: HF fields with
    the one value understood; `ignored`: HF fields without effect; `present`: our boolean paths that are true
    when a tensor of the file is there; `exports`: HF fields that no path holds, from our config.

    Tensors: `prefix`: what may stand before every name (the base model's attribute in a task model);
    `modules`; `heads` by architecture; `numbers`: the placeholders of each block with parameters of its own;
    `buffers`: tensors of the file that a formula gives; `carried`: beginnings of names that are kept for
    saving and not computed.

    The twin: `twin`: module rows where transformers names its modules otherwise than the file; `sites`: where
    it shows what module rows do not.
    """

    name: str
    architecture: str
    prefix: str
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any]
    modules: Modules
    derived: Mapping[str, Callable[[HF], Any]] = field(default_factory=dict)
    blocks: Callable[[HF], Sequence[Mapping[str, Any]]] | None = None
    only: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    present: Mapping[str, str] = field(default_factory=dict)
    exports: Mapping[str, Callable[[EncoderConfig], Any]] = field(default_factory=dict)
    heads: Mapping[str, HeadRows] = field(default_factory=dict)
    numbers: Callable[[EncoderConfig], Sequence[Mapping[str, int]]] = own_numbers
    buffers: Mapping[str, Callable[[EncoderConfig], Tensor]] = field(default_factory=dict)
    carried: tuple[str, ...] = ()
    twin: Modules | None = None
    sites: Mapping[str, At] = field(default_factory=dict)

    # --- config ---------------------------------------------------------------------------------------

    def from_hf(self, hf: HF, present: Iterable[str] = ()) -> EncoderConfig:
        """The config of a Hugging Face config; `present`: the tensors of the file.

        Errors: a field unknown to the family, or one whose value it does not understand.
        """
        self._check_fields(hf)
        full = {**hf, **{row.name: hf.get(row.name, row.default) for row in self.fields}}
        tree: dict[str, Any] = {}
        for path, value in self.fixed.items():
            rows.put(tree, path, copy.deepcopy(value))
        for row in self.fields:
            for path in row.paths.split():
                rows.put(tree, path, _translate(row, full[row.name]))
        for path, function in self.derived.items():
            rows.put(tree, path, function(full))
        names = set(present)
        for path, tensor in self.present.items():
            rows.put(tree, path, tensor in names)
        if (head := self._head_rows(hf)) is not None:
            tree["head"] = head.config(full)
        depth, block = tree.pop("depth"), tree.pop("block")
        if type(depth) is not int or depth < 0:
            raise AddnormError(f"config.json: the number of blocks is {depth!r}; expected a whole number")
        blocks = [copy.deepcopy(block) for _ in range(depth)]
        for own, changes in zip(blocks, self.blocks(full) if self.blocks else (), strict=self.blocks is not None):
            for path, value in changes.items():
                rows.put(own, path, value)
        return EncoderConfig.from_dict(tree | {"blocks": blocks})

    def to_hf(self, config: EncoderConfig) -> dict[str, Any]:
        """The Hugging Face config of ours. Errors: the family cannot express it."""
        tree = config.to_dict()
        tree |= {"depth": len(config.blocks), "block": tree["blocks"][0] if config.blocks else {}}
        hf: dict[str, Any] = {"model_type": self.name}
        for row in self.fields:
            value = rows.get(tree, row.paths.split()[0])
            back = {ours: theirs for theirs, ours in reversed(list((row.values or {}).items()))}
            hf[row.name] = back.get(value, value) if row.values else value
        hf |= {name: function(config) for name, function in self.exports.items()}
        if config.head is not None:
            hf["tie_word_embeddings"] = config.head.tied or config.head.task != "fill"
            hf["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.head.outputs)}
        present = [tensor for path, tensor in self.present.items() if rows.get(tree, path)]
        first = None
        for architecture in self.heads if config.head else [self.architecture]:
            hf["architectures"] = [architecture]
            again = self.from_hf(hf, present).to_dict()
            first = next(rows.differences(config.to_dict(), again), None)
            if first is None:
                if config.head is None or config.head.task in ("fill", "answer", "detect"):
                    hf.pop("id2label", None)
                return hf
        path, ours, theirs = first or ("head", config.head, None)
        raise AddnormError(f"family {self.name} has {path} {theirs!r}, this config {ours!r}")

    def _check_fields(self, hf: HF) -> None:
        for name, value in hf.items():
            if name in self.only and value != self.only[name] and value is not None:
                raise AddnormError(
                    f"config.json: '{name}' is {value!r}; family {self.name} computes only {self.only[name]!r}"
                )
        known = self.ignored | self.only.keys() | self.exports.keys() | {row.name for row in self.fields}
        if unknown := sorted(name for name in hf if name not in known):
            raise AddnormError(
                f"config.json: field '{unknown[0]}' ({hf[unknown[0]]!r}) is unknown to family {self.name}, and it "
                "may change what the model computes; remove it if it does not"
            )

    def head_architecture(self, hf: HF) -> str | None:
        """The architecture a config names, if it has a head that is computed here."""
        name = (hf.get("architectures") or [None])[0]
        return name if name in self.heads else None

    def _head_rows(self, hf: HF) -> HeadRows | None:
        name = self.head_architecture(hf)
        return self.heads[name] if name else None

    # --- tensors --------------------------------------------------------------------------------------

    def plan(self, config: EncoderConfig, hf: HF, ours: Mapping[str, Size], files: Iterable[str]) -> list[Entry]:
        """Explain every tensor of `files` and fill every parameter of `ours`, each exactly once.

        Errors: a tensor that is not explained, a parameter that is not filled.
        """
        spelled = self.spellings(files)
        candidates, splits = self._candidates(config, hf, ours)
        entries = []
        for theirs, names, split in splits:
            if (file := spelled.pop(theirs, None)) is not None:
                entries.append(rows.fused(file, names, split, [ours[name][0] for name in names], config))
        for name, theirs_ in candidates.items():
            if held := tuple(spelled.pop(theirs) for theirs in theirs_ if theirs in spelled):
                entries.append(rows.same(held, name))
        for name, formula in self.buffers.items():
            if (file := spelled.pop(name, None)) is not None:
                entries.append(rows.buffer(file, formula(config)))
        carried = [name for name in spelled if name.startswith(self.carried)] if self.carried else []
        entries += [rows.carry(spelled.pop(name)) for name in carried]
        if spelled:
            raise AddnormError(
                f"weights: tensor '{next(iter(spelled.values()))}' is not part of a {self.name} encoder "
                f"({_count(spelled, 'tensor')} unexplained); the config may not belong to these weights"
            )
        filled = {name for entry in entries for name in entry.ours}
        if missing := sorted(ours.keys() - filled):
            wanted = candidates.get(missing[0]) or [theirs for theirs, names, _ in splits if missing[0] in names]
            raise AddnormError(
                f"weights: {wanted[0] if wanted else 'a tensor'!r} for {missing[0]} is missing "
                f"({_count(missing, 'parameter')} not filled); the file is incomplete or not for this config"
            )
        return entries

    def fresh_plan(self, config: EncoderConfig, hf: HF, ours: Mapping[str, Size]) -> list[Entry]:
        """The plan for parameters that no file has held yet."""
        candidates, splits = self._candidates(config, hf, ours)
        names = [theirs for theirs, _, _ in splits] + [theirs[0] for theirs in candidates.values()]
        prefix = f"{self.prefix}." if config.head and self.prefix else ""
        heads = {theirs for _, theirs, _ in self._head_expanded(config, hf)}
        return self.plan(config, hf, ours, [name if _within(name, heads) else prefix + name for name in names])

    def spellings(self, files: Iterable[str]) -> dict[str, str]:
        """The standard spelling of each tensor name of a file: no task prefix, no legacy gamma and beta."""
        legacy = {"gamma": "weight", "beta": "bias"}
        spelled: dict[str, str] = {}
        for file in files:
            stem, dot, leaf = file.removeprefix(f"{self.prefix}.").rpartition(".")
            name = f"{stem}{dot}{legacy.get(leaf, leaf)}"
            if name in spelled:
                raise AddnormError(f"weights: '{spelled[name]}' and '{file}' both stand for {name}; keep one")
            spelled[name] = file
        return spelled

    def _candidates(
        self, config: EncoderConfig, hf: HF, ours: Mapping[str, Size]
    ) -> tuple[dict[str, list[str]], list[tuple[str, tuple[str, ...], Split]]]:
        """For each parameter the names it may have in a file; and the fused tensors with what they hold."""
        by_module: dict[str, list[str]] = {}
        for name in ours:
            by_module.setdefault(name.rpartition(".")[0], []).append(name.rpartition(".")[2])
        candidates: dict[str, list[str]] = {}
        splits = []
        for mine, theirs, split in [*self._expanded(self.modules, config), *self._head_expanded(config, hf)]:
            if isinstance(split, Split):
                for leaf in by_module.get(mine[0], []):
                    splits.append((f"{theirs}.{leaf}", tuple(f"{module}.{leaf}" for module in mine), split))
            elif mine[0] in ours:
                candidates.setdefault(mine[0], []).append(theirs)
            else:
                for leaf in by_module.get(mine[0], []):
                    candidates.setdefault(f"{mine[0]}.{leaf}", []).append(f"{theirs}.{leaf}")
        return candidates, splits

    def _head_expanded(self, config: EncoderConfig, hf: HF) -> list[tuple[tuple[str, ...], str, Split | None]]:
        head = self._head_rows(hf)
        if head is None or config.head is None:
            return []
        return list(self._expanded({**head.modules, **(head.tied if config.head.tied else {})}, config))

    def _expanded(
        self, modules: Modules, config: EncoderConfig
    ) -> Iterator[tuple[tuple[str, ...], str, Split | None]]:
        """Each row for every block: our name or names, the file's name, how it is split."""
        for theirs, row in modules.items():
            if isinstance(row, Split):
                for number in self.numbers(config) if "{i}" in row.ours else [{}]:
                    yield tuple(rows.siblings(rows.fill(row.ours, number))), rows.fill(theirs, number), row
            else:
                for their_name, our_name in rows.expand(theirs, row, self.numbers(config)):
                    yield (our_name,), their_name, None

    # --- what others show -----------------------------------------------------------------------------

    def module_names(self, hf: HF) -> Iterator[tuple[str, str]]:
        """Our module names beside the file's, with {i} for the number of a block."""
        head = self._head_rows(hf)
        for theirs, row in {**self.modules, **(head.modules if head else {})}.items():
            if isinstance(row, Split):
                yield from ((ours, theirs) for ours in rows.siblings(row.ours))
            else:
                yield from zip(rows.siblings(row), rows.siblings(theirs), strict=True)

    def twin_sites(self, config: EncoderConfig, hf: HF) -> dict[str, At]:
        """Each of our sites that the twin shows, and where."""
        shown: dict[str, At] = {}
        twin = self._expanded(self.modules if self.twin is None else self.twin, config)
        for mine, theirs, split in [*twin, *self._head_expanded(config, hf)]:
            for k, site in enumerate(mine):
                shown[site] = At(theirs, part=(k, len(mine)) if split else None)
        for site, at in self.sites.items():
            for theirs, ours in rows.expand(at.module, site, self.numbers(config)):
                shown[ours] = At(theirs, at.item, at.input, at.part)
        return shown


def _translate(row: Field, value: Any) -> Any:
    if row.values is None:
        return value
    if value not in row.values:
        raise AddnormError(f"config.json: '{row.name}' is {value!r}; understood: {', '.join(map(str, row.values))}")
    return row.values[value]


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'s' if len(things) != 1 else ''}"
