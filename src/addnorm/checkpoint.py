"""Reading a checkpoint folder into an encoder, strictly, and writing it back, bit for bit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from addnorm import lora
from addnorm.errors import AddnormError
from addnorm.families import export, family_of
from addnorm.families._family import Family
from addnorm.families._rows import Entry
from addnorm.files import expect, read_object
from addnorm.nn.encoder import Encoder, named_parts

SINGLE = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Origin:
    """Where a model came from: enough to write the same files again.

    `dtypes`: how the file stores each tensor; `carried`: tensors that are kept but not computed; `chosen`:
    fields of `hf` that were chosen on loading; `task`: whose low-rank update has been merged, `prompt`: what that
    task wants before a text.
    """

    folder: Path | None
    family: Family
    hf: dict[str, Any]
    plan: tuple[Entry, ...]
    dtypes: dict[str, torch.dtype]
    carried: dict[str, Tensor]
    chosen: dict[str, Any] = field(default_factory=dict)
    task: str | None = None
    prompt: str = ""


def read(
    folder: Path, dtype: torch.dtype = torch.float32, options: Mapping[str, Any] | None = None
) -> tuple[Encoder, Origin]:
    """The encoder of a Hugging Face folder, its weights in `dtype`; `options`: choices its family offers.

    The encoder is built without memory of its own and the file's tensors are put in place, so the weights
    are in memory once. Errors: anything unknown, missing, left over, misshapen, damaged or not finite.
    """
    hf = read_object(folder / "config.json")
    family = family_of(hf)
    chosen = family.choose(options or {})
    task: str | None = chosen.pop(lora.TASK, None)
    hf |= chosen
    tensors = read_tensors(folder)
    updates = _updates(folder, hf, tensors, task)
    if task is not None:
        tensors = lora.plain(tensors)
        hf = {name: value for name, value in hf.items() if name not in lora.FIELDS}
    names = family.spellings(tensors)
    config = family.from_hf(hf, {name: tensors[file] for name, file in names.items()})
    with torch.device("meta"):
        encoder = Encoder(config)
    slots = _slots(encoder)
    plan = family.plan(config, hf, _shapes(slots), tensors)
    for entry in plan:
        loaded = entry.load([tensors[name] for name in entry.files])
        for name, tensor in zip(entry.ours, loaded, strict=True):
            module, leaf = slots[name]
            expected = getattr(module, leaf).shape
            source = " + ".join(entry.files)
            if tensor.shape != expected:
                raise AddnormError(
                    f"weights: '{source}' has shape {tuple(tensor.shape)}, but the config asks for "
                    f"{tuple(expected)}; the config does not belong to these weights"
                )
            # A norm is finite when all terms are, and quick also where a tensor lies unaligned in its file.
            norm = torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
            if not torch.isfinite(norm) and not torch.isfinite(tensor).all():
                raise AddnormError(f"weights: '{source}' contains NaN or infinity; take another copy of the file")
            setattr(module, leaf, nn.Parameter(tensor.to(dtype)))
    for name, update in family.parts(config, hf, _shapes(slots), updates.matrices):
        module, leaf = slots[name]
        weight = getattr(module, leaf)
        if update.shape != weight.shape:
            shapes = f"{tuple(update.shape)}, not {tuple(weight.shape)}"
            raise AddnormError(f"weights: the update of '{name}' has shape {shapes}")
        setattr(module, leaf, nn.Parameter(weight.detach() + update.to(dtype)))
    encoder.tie()
    dtypes = {name: tensors[name].dtype for entry in plan for name in entry.files}
    carried = {name: tensors[name] for entry in plan if entry.carried for name in entry.files}
    return encoder.eval(), Origin(folder, family, hf, tuple(plan), dtypes, carried, chosen, task, updates.prompt)


def _updates(folder: Path, hf: dict[str, Any], tensors: dict[str, Tensor], task: str | None) -> lora.Updates:
    """What a task adds to the weights. Errors: nothing of that name, in the weights or beside them."""
    if task is None:
        return lora.Updates({})
    if any(map(lora.is_update, tensors)):
        return lora.stacked(hf, tensors, task)
    for name in lora.folders(task):
        if (folder / name / "adapter_config.json").is_file():
            settings = read_object(folder / name / "adapter_config.json")
            return lora.adapter(settings, read_tensors(folder / name, lora.ADAPTER))
    found = ", ".join(sorted(path.parent.name for path in folder.glob("*/adapter_config.json"))) or "none"
    raise AddnormError(f"load: no update for task '{task}' in '{folder}'; sub-folders with one: {found}")


def fresh_origin(encoder: Encoder) -> Origin:
    """How a model that was never loaded is written. Errors: no family can express its config."""
    family, hf = export(encoder.config)
    plan = family.fresh_plan(encoder.config, hf, _shapes(_slots(encoder)))
    dtypes = {name: next(encoder.parameters()).dtype for entry in plan for name in entry.files}
    return Origin(None, family, hf, tuple(plan), dtypes, {})


def write(encoder: Encoder, origin: Origin, folder: Path) -> None:
    """Write config.json and model.safetensors into `folder`, under the names and dtypes of the origin."""
    slots = _slots(encoder)
    tensors: dict[str, Tensor] = dict(origin.carried)
    for entry in origin.plan:
        if not entry.carried:
            ours = [getattr(*slots[name]).detach() for name in entry.ours]
            for name, tensor in zip(entry.files, entry.save(ours), strict=True):
                tensors[name] = tensor.to(origin.dtypes[name]).contiguous()
    config = json.dumps(origin.hf, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    write_tensors(tensors, folder)


def write_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write tensors as the one weights file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def _slots(encoder: Encoder) -> dict[str, tuple[nn.Module, str]]:
    """Every parameter by the name users see: the module that holds it, and the attribute.

    One that several blocks share is that of the first of them.
    """
    slots: dict[int, tuple[str, nn.Module, str]] = {}
    for name, module in named_parts(encoder).items():
        for leaf, parameter in module.named_parameters(recurse=False):
            slots.setdefault(id(parameter), (name, module, leaf))
    return {f"{name}.{leaf}": (module, leaf) for name, module, leaf in slots.values()}


def _shapes(slots: dict[str, tuple[nn.Module, str]]) -> dict[str, torch.Size]:
    return {name: getattr(module, leaf).shape for name, (module, leaf) in slots.items()}


def read_tensors(folder: Path, names: tuple[str, ...] = SINGLE) -> dict[str, Tensor]:
    """All tensors of a folder: one file, or the shards that an index lists; mapped, not copied."""
    for single in names:
        index = folder / f"{single}.index.json"
        if (folder / single).is_file():
            return _read_file(folder / single)
        if index.is_file():
            shards = expect(read_object(index).get("weight_map"), dict, f"'{index}': 'weight_map'")
            return _read_shards(folder, index, shards)
    raise AddnormError(f"'{folder}' has no weights; expected {' or '.join(names)}, or shards with their index")


def _read_shards(folder: Path, index: Path, shards: dict[str, str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in sorted({expect(shard, str, f"'{index}': a shard") for shard in shards.values()}):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise AddnormError(f"'{folder}' lacks the shard {shard} that {index.name} lists; download it again")
        tensors |= _read_file(folder / shard)
    if lost := sorted(shards.keys() - tensors.keys()):
        raise AddnormError(f"'{index}' lists tensor '{lost[0]}', but its shard does not hold it; download it again")
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".bin":
            return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise AddnormError(
            f"'{path}' is damaged or not a weights file ({reason}); download or copy it again"
        ) from None
    except Exception as error:  # the unpickler's own errors: a file that asks for code is refused
        reason = str(error).splitlines()[0]
        raise AddnormError(f"'{path}' is not a weights-only file ({reason}); convert it to safetensors") from None
