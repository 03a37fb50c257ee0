"""Low-rank updates of a checkpoint's matrices (LoRA, Hu 2021), one for each of several tasks, merged on loading.

W ← W + (alpha/rank)·B·A. Two layouts are read: the updates of all tasks stacked in the weights file, as PyTorch's
parametrizations name them (jina-embeddings-v3), and one PEFT folder a task beside it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from addnorm.errors import AddnormError

# The field that the option `task` of a load sets.
TASK = "lora_task"
ORIGINAL = ".parametrizations.weight.original"
STACKED = (".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B")
FIELDS = frozenset(
    "lora_adaptations lora_alpha lora_rank lora_dropout_p lora_main_params_trainable load_trained_adapters "
    "task_instructions".split()
)
# A, B, and whether their product lies the other way round, as for embeddings.
PEFT = ((".lora_A.weight", ".lora_B.weight", False), (".lora_embedding_A", ".lora_embedding_B", True))
ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
# Settings of a PEFT folder: those with one value understood, and those without effect on a merge.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", None),
}
WITHOUT_EFFECT = frozenset(
    "r lora_alpha use_rslora lora_dropout target_modules exclude_modules task_type inference_mode auto_mapping "
    "base_model_name_or_path revision peft_version layers_pattern layers_to_transform megatron_core "
    "qalora_group_size".split()
)


@dataclass(frozen=True)
class Updates:
    """What a task adds: to each matrix, by the name of its module in the file or in transformers."""

    matrices: dict[str, Tensor]
    prompt: str = ""


def is_update(name: str) -> bool:
    """Whether a tensor of the file is one factor of stacked updates."""
    return name.endswith(STACKED)


def stacked(hf: Mapping[str, Any], tensors: Mapping[str, Tensor], task: str) -> Updates:
    """The updates of one task in a weights file. Errors: a task the config does not name, misshapen factors."""
    tasks, rank = hf.get("lora_adaptations") or [], hf.get("lora_rank", 4)
    if task not in tasks:
        raise AddnormError(f"load: task '{task}' is unknown; the checkpoint has {', '.join(map(str, tasks))}")
    index, scale = tasks.index(task), hf.get("lora_alpha", 1) / rank
    matrices = {}
    for name, weight in tensors.items():
        if not name.endswith(ORIGINAL):
            continue
        module = name.removesuffix(ORIGINAL)
        a, b = (_float(tensors[module + factor][index]) for factor in STACKED)
        rows, columns = weight.shape
        if (b.shape, a.shape) == ((rows, rank), (rank, columns)):
            matrices[module] = b @ a * scale
        elif (a.shape, b.shape) == ((rows, rank), (rank, columns)):  # embeddings lie the other way round
            matrices[module] = a @ b * scale
        else:
            raise AddnormError(
                f"weights: the factors of '{name}' are {tuple(a.shape)} and {tuple(b.shape)}; expected {rows} and "
                f"{columns}, and rank {rank}"
            )
    return Updates(matrices, (hf.get("task_instructions") or {}).get(task, ""))


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file as if it never had updates."""
    return {name.replace(ORIGINAL, ".weight"): t for name, t in tensors.items() if not is_update(name)}


def adapter(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Updates:
    """The updates of a PEFT folder. Errors: a setting or a tensor that is not understood."""
    for name, value in settings.items():
        understood = ONLY.get(name)
        if value not in understood if understood is not None else name not in WITHOUT_EFFECT and value:
            raise AddnormError(f"adapter_config.json: '{name}' is {value!r}, which is not understood")
    rank, alpha = settings["r"], settings["lora_alpha"]
    scale = alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank
    matrices, left = {}, dict(tensors)
    for name in tensors:
        first, second, flipped = next((kind for kind in PEFT if name.endswith(kind[0])), ("", "", False))
        if not first or (other := name.removesuffix(first) + second) not in tensors:
            continue
        update = _float(left.pop(other)) @ _float(left.pop(name)) * scale
        module = name.removesuffix(first).removeprefix("base_model.model.")
        matrices[module] = update.T if flipped else update
    if left:
        raise AddnormError(f"adapter: tensor '{next(iter(left))}' is not part of a low-rank update of a matrix")
    return Updates(matrices)


def folders(task: str) -> list[str]:
    """What the folder of a task may be called."""
    return list(dict.fromkeys([task, task.replace(".", "_").replace("-", "_")]))


def _float(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype.itemsize > 4 else tensor.float()
