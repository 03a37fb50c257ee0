"""Systems that run the model in PyTorch: ours, transformers, sentence-transformers, torch.compile."""

from collections.abc import Callable, Sequence
from typing import Any

from addnorm.bench.padded import Encode, Setting, Vectors, padded, sentences, with_torch

Ways = dict[str, Callable[[], Encode]]


def addnorm(setting: Setting) -> Ways:
    """This library."""
    import addnorm

    model = addnorm.load(setting.folder)
    model.engine(setting.precision)

    def encode(texts: Sequence[str], size: int, max_tokens: int) -> Vectors:
        return model.encode(texts, precision=setting.precision, batch_tokens=size, max_tokens=max_tokens)

    return {"": lambda: encode}


def sdpa(setting: Setting) -> Ways:
    """transformers with PyTorch's fused attention."""
    return {"": lambda: padded(setting, with_torch(sentences(setting, "sdpa")))}


def eager(setting: Setting) -> Ways:
    """transformers with attention in plain operations."""
    return {"": lambda: padded(setting, with_torch(sentences(setting, "eager")))}


def sentence_transformers(setting: Setting) -> Ways:
    """sentence-transformers, which sorts and pads by itself."""
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(setting.folder), device="cpu", local_files_only=True)

    def encode(texts: Sequence[str], size: int, max_tokens: int) -> Vectors:
        model.max_seq_length = max_tokens
        return model.encode(list(texts), batch_size=size, show_progress_bar=False)

    return {"": lambda: encode}


def compiled(setting: Setting) -> Ways:
    """torch.compile of transformers, for any length, with weights packed ahead (freezing)."""
    import torch
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch._inductor.config.freezing = True
    module = torch.compile(sentences(setting, "sdpa"), dynamic=True)
    return {"": lambda: padded(setting, with_torch(module))}
