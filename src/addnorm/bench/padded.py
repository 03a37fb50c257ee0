"""What the other systems share: the tokenizer, batches by length, padding, and a vector from the states."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from addnorm.errors import AddnormError

if TYPE_CHECKING:
    from torch import Tensor, nn

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]
# Texts, how many make a batch, the tokens they are cut to → vectors in the order of the texts.
Encode = Callable[[Sequence[str], int, int], Vectors]
# Token ids and mask, (B, T) each → vectors, (B, D).
Forward = Callable[[Ids, Ids], Vectors]


@dataclass(frozen=True)
class Setting:
    """What a system is built from. `sort`: by length; `scratch`: a folder for what is exported."""

    folder: Path
    precision: str
    threads: int
    scratch: Path
    sort: bool = True


def padded(setting: Setting, forward: Forward, workers: int = 1) -> Encode:
    """Texts to vectors with a function of padded batches; `workers`: batches at a time."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setting.folder)
    pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def encode(texts: Sequence[str], size: int, max_tokens: int) -> Vectors:
        ids = tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i])) if setting.sort else list(range(len(ids)))
        batches = [order[start : start + size] for start in range(0, len(order), size)]

        def run(batch: list[int]) -> Vectors:
            return forward(*pad([ids[i] for i in batch], tokenizer.pad_token_id or 0))

        found = list(map(run, batches) if pool is None else pool.map(run, batches))
        vectors = np.empty((len(ids), found[0].shape[1]), dtype=np.float32)
        for batch, rows in zip(batches, found, strict=True):
            vectors[batch] = rows
        return vectors

    return encode


def pad(ids: Sequence[Sequence[int]], token: int) -> tuple[Ids, Ids]:
    """Ids and mask, (B, T) each, T being the longest text's tokens."""
    shape = len(ids), max(map(len, ids))
    padded, mask = np.full(shape, token, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, row in enumerate(ids):
        padded[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return padded, mask


def sentences(setting: Setting, attention: str) -> "nn.Module":
    """The model in transformers with the pooling that the folder asks for: ids, mask → vectors, a module.

    Errors: another pooling than the mean or the first token, alone.
    """
    import torch
    from torch import nn
    from transformers import AutoModel

    dtype = {"bfloat16": torch.bfloat16}.get(setting.precision, torch.float32)
    encoder = AutoModel.from_pretrained(transformer(setting.folder), attn_implementation=attention, dtype=dtype)
    pool = pooling(setting.folder)

    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: "Tensor", attention_mask: "Tensor") -> "Tensor":
            return pool(self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0].float(), attention_mask)

    return Sentences().eval()


def transformer(folder: Path) -> Path:
    """Where in a model's folder the encoder is."""
    from addnorm import sentence

    return folder / sentence.read(folder).transformer


def pooling(folder: Path) -> "Callable[[Tensor, Tensor], Tensor]":
    """The pooling that a folder asks for: states (B, T, D), mask (B, T) → (B, D)."""
    import torch.nn.functional as F

    from addnorm import sentence

    settings = sentence.read(folder)
    ways: dict[tuple[str, ...], Callable[[Tensor, Tensor], Tensor]] = {("mean",): _mean, ("cls",): _first}
    if settings.modes not in ways or settings.dense or settings.prompt:
        what = "a dense map or a prompt" if settings.dense or settings.prompt else " + ".join(settings.modes)
        raise AddnormError(f"the benchmark pools by the mean or the first token; this model has {what}")
    pool = ways[settings.modes]

    def vectors(states: "Tensor", mask: "Tensor") -> "Tensor":
        pooled = pool(states, mask)
        return F.normalize(pooled, dim=-1) if settings.normalize else pooled

    return vectors


def _mean(states: "Tensor", mask: "Tensor") -> "Tensor":
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def _first(states: "Tensor", mask: "Tensor") -> "Tensor":
    return states[:, 0]


def with_torch(module: Any) -> Forward:
    """A module of ids and mask as a function of NumPy arrays."""
    import torch

    @torch.inference_mode()
    def forward(ids: Ids, mask: Ids) -> Vectors:
        return module(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return forward
