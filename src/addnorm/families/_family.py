"""A family: one dialect of checkpoint, as tables, read strictly and written back."""

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Size, Tensor

from addnorm import lora
from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import _rows as rows
from addnorm.families._rows import HF, At, Entry, Field, HeadRows, Modules, Numbers, Split


def own_numbers(config: EncoderConfig) -> list[dict[str, int]]:
    """The placeholders of each block that has parameters of its own: {i}."""
    return [{"i": i} for i in config.owners]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One dialect of checkpoint, as data.

    Config: `fields`; `fixed`: what the family always is, by our path; `derived`: our path from the whole HF
    config; `blocks`: for each block what it has of its own, by path within the block; `only`: HF fields with
    the one value understood; `ignored`: HF fields without effect; `present`: our boolean paths that are true
    when a tensor of the file is there; `exports`: HF fields that no path holds, from our config; `reads`: those
    that functions look at and nothing writes; `older`: fields under an earlier name, today's in place of a path;
    `also`: fields that mark a config as of this family under another `model_type`; `aliases`: architectures
    under an earlier name; `measured`: our path from a tensor of the file, found under one of several names;
    `options`: HF fields that may be chosen on loading, by the option's name; `updates`: whether the file may hold
    low-rank updates for tasks.

    Tensors: `prefix`: what may stand before every name (the base model's attribute in a task model), several by
    `|`, the first of which is written;
    `modules`; `heads` by architecture; `numbers`: the placeholders of each block with parameters of its own,
    several sets where a row holds several times in a block; `names`: further placeholders from the HF config;
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
    reads: frozenset[str] = frozenset()
    older: tuple[Field, ...] = ()
    also: tuple[Mapping[str, Any], ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, HeadRows] = field(default_factory=dict)
    numbers: Callable[[EncoderConfig], Sequence[Numbers]] = own_numbers
    names: Callable[[HF], Mapping[str, str]] = lambda hf: {}
    measured: Mapping[str, tuple[tuple[str, ...], Callable[[Tensor], Any]]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    updates: bool = False
    buffers: Mapping[str, Callable[[EncoderConfig], Tensor]] = field(default_factory=dict)
    carried: tuple[str, ...] = ()
    twin: Modules | None = None
    sites: Mapping[str, At] | Callable[[EncoderConfig], Mapping[str, At]] = field(default_factory=dict)

    # --- config ---------------------------------------------------------------------------------------

    def from_hf(self, hf: HF, present: Iterable[str] | Mapping[str, Tensor] = ()) -> EncoderConfig:
        """The config of a Hugging Face config; `present`: the tensors of the file, by their standard spelling.

        Errors: a field unknown to the family, or one whose value it does not understand.
        """
        self._check_fields(hf)
        hf = self._today(hf)
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
        for path, (spellings, measure) in self.measured.items():
            if isinstance(present, Mapping) and (held := [name for name in spellings if name in present]):
                rows.put(tree, path, measure(present[held[0]]))
        if (head := self._head_rows(hf)) is not None and not _without(head, present):
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
        known = self.ignored | self.reads | self.only.keys() | self.exports.keys()
        known |= {row.name for row in (*self.fields, *self.older)}
        if unknown := sorted(name for name in hf if name not in known):
            raise AddnormError(
                f"config.json: field '{unknown[0]}' ({hf[unknown[0]]!r}) is unknown to family {self.name}, and it "
                "may change what the model computes; remove it if it does not"
            )

    def claims(self, hf: HF) -> bool:
        """Whether a config of another `model_type` is of this family."""
        return any(mark.items() <= hf.items() for mark in self.also)

    def _today(self, hf: HF) -> HF:
        """A config with today's names. Errors: a field under two names whose values differ."""
        told = dict(hf)
        for row in self.older:
            if row.name in told:
                value = _translate(row, told.pop(row.name))
                if told.setdefault(row.paths, value) != value:
                    raise AddnormError(
                        f"config.json: '{row.paths}' is {told[row.paths]!r}, but '{row.name}', its earlier name, "
                        f"says {value!r}; remove the one that is wrong"
                    )
        return told

    def choose(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The HF fields that options of a load set. Errors: an option the family does not have."""
        for name in options.keys() - self.options.keys():
            known = f"it has {', '.join(self.options)}" if self.options else "it has none"
            raise AddnormError(f"load: family {self.name} has no option '{name}'; {known}")
        return {self.options[name]: value for name, value in options.items()}

    def head_architecture(self, hf: HF) -> str | None:
        """The architecture a config names, if it has a head that is computed here."""
        name = (hf.get("architectures") or [None])[0]
        name = self.aliases.get(name, name)
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
        filled = {name for entry in entries for name in entry.ours}
        head = self._head_rows(hf)
        for theirs, name in (head.spare if head else {}).items():
            if name in ours and name not in filled and (file := spelled.pop(theirs, None)) is not None:
                entries.append(rows.same((file,), name))
        numbers = self._numbers(config, hf)
        for pattern, formula in self.buffers.items():
            for name, _ in rows.expand(pattern, pattern, numbers):
                if (file := spelled.pop(name, None)) is not None:
                    entries.append(rows.buffer(file, formula(config)))
        beginnings = tuple(name for pattern in self.carried for name, _ in rows.expand(pattern, pattern, numbers))
        carried = [name for name in spelled if name.startswith(beginnings)]
        carried += [name for name in spelled if self.updates and lora.is_update(name)]
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
        prefix = f"{self.prefix.split('|')[0]}." if config.head and self.prefix else ""
        heads = {theirs for _, theirs, _ in self._head_expanded(config, hf)}
        return self.plan(config, hf, ours, [name if _within(name, heads) else prefix + name for name in names])

    def parts(
        self, config: EncoderConfig, hf: HF, ours: Mapping[str, Size], matrices: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """What additions to matrices of the file, or of the twin, are for parameters of ours.

        Errors: one to a matrix that is not there.
        """
        expanded = [*self._expanded(self.twin or {}, config, hf), *self._expanded(self.modules, config, hf)]
        places = {theirs: (mine, split) for mine, theirs, split in [*expanded, *self._head_expanded(config, hf)]}
        for name, matrix in matrices.items():
            spelled = next(iter(self.spellings([f"{name}.weight"]))).removesuffix(".weight")
            mine, split = places.get(spelled, ((), None))
            names = [f"{module}.weight" for module in mine]
            if not names or any(name not in ours for name in names):
                raise AddnormError(f"weights: an update is for '{name}', which this {self.name} encoder lacks")
            sizes = [ours[name][0] for name in names]
            yield from zip(names, split.divide(matrix, sizes, config) if split else [matrix], strict=True)

    def spellings(self, files: Iterable[str]) -> dict[str, str]:
        """The standard spelling of each tensor name of a file: no task prefix, no legacy gamma and beta."""
        legacy = {"gamma": "weight", "beta": "bias"}
        prefixes = [f"{prefix}." for prefix in self.prefix.split("|")]
        spelled: dict[str, str] = {}
        for file in files:
            before = next((prefix for prefix in prefixes if file.startswith(prefix)), "")
            stem, dot, leaf = file.removeprefix(before).replace(lora.ORIGINAL, ".weight").rpartition(".")
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
        for mine, theirs, split in [*self._expanded(self.modules, config, hf), *self._head_expanded(config, hf)]:
            if isinstance(split, Split):
                for leaf in [leaf for leaf in by_module.get(mine[0], []) if all(f"{m}.{leaf}" in ours for m in mine)]:
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
        tied = head.tied if config.head.tied else {}
        return list(self._expanded({**tied, **head.modules, **tied}, config, hf))

    def _numbers(self, config: EncoderConfig, hf: HF) -> list[Numbers]:
        """All sets of placeholders, first that of rows which are not a block's."""
        names = self.names(hf)
        return [names, *({**names, **number} for number in self.numbers(config))]

    def _expanded(
        self, modules: Modules, config: EncoderConfig, hf: HF
    ) -> Iterator[tuple[tuple[str, ...], str, Split | None]]:
        """Each row for every block: our name or names, the file's name, how it is split."""
        numbers = self._numbers(config, hf)
        for theirs, row in modules.items():
            if isinstance(row, Split):
                for their_name, our_names in rows.filled(theirs, row.ours, numbers):
                    yield tuple(rows.siblings(our_names)), their_name, row
            else:
                for their_name, our_name in rows.expand(theirs, row, numbers):
                    yield (our_name,), their_name, None

    # --- what others show -----------------------------------------------------------------------------

    def module_names(self, hf: HF) -> Iterator[tuple[str, str]]:
        """Our module names beside the file's, with {i} for the number of a block."""
        head, names = self._head_rows(hf), self.names(hf)
        for pattern, row in {**self.modules, **(head.modules if head else {})}.items():
            theirs = rows.fill(pattern, names)
            if isinstance(row, Split):
                yield from ((ours, theirs) for ours in rows.siblings(row.ours))
            else:
                yield from zip(rows.siblings(row), rows.siblings(theirs), strict=True)

    def twin_sites(self, config: EncoderConfig, hf: HF) -> dict[str, At]:
        """Each of our sites that the twin shows, and where."""
        shown: dict[str, At] = {}
        twin = self._expanded(self.modules if self.twin is None else self.twin, config, hf)
        for mine, theirs, split in [*twin, *self._head_expanded(config, hf)]:
            if not isinstance(split, rows.SplitHeads):  # whose parts are not each one piece of the features
                shown |= {site: At(theirs, part=(k, len(mine)) if split else None) for k, site in enumerate(mine)}
        head, numbers = self._head_rows(hf), self._numbers(config, hf)
        sites = self.sites(config) if callable(self.sites) else self.sites
        for site, at in {**sites, **(head.sites if head else {})}.items():
            for theirs, ours in rows.expand(at.module, site, numbers):
                shown[ours] = replace(at, module=theirs)
        for i, owner in enumerate(config.shared or ()):
            again = (config.shared or ())[:i].count(owner)  # a module that several blocks share runs for each
            for site, at in list(shown.items()) if again else ():
                if f"{site}.".startswith(own := f"blocks.{owner}."):
                    ours = f"{site}.".replace(own, f"blocks.{i}.", 1).removesuffix(".")
                    shown[ours] = replace(at, call=at.call + again)
        return shown


def _translate(row: Field, value: Any) -> Any:
    if row.least is not None and (type(value) is not int or value < row.least):
        raise AddnormError(f"config.json: '{row.name}' is {value!r}; expected a whole number of at least {row.least}")
    if row.values is None:
        return value
    if not isinstance(value, Hashable) or value not in row.values:
        raise AddnormError(f"config.json: '{row.name}' is {value!r}; understood: {', '.join(map(str, row.values))}")
    return row.values[value]


def _without(head: HeadRows, present: Iterable[str] | Mapping[str, Tensor]) -> bool:
    """Whether a file holds nothing of the head its config names: the base model alone was saved."""
    modules = [module for theirs in head.modules for module in rows.siblings(theirs)]
    return isinstance(present, Mapping) and not any(_within(name, modules) for name in present)


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'s' if len(things) != 1 else ''}"
