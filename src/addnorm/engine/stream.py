"""A stream of texts → vectors: windows of texts, sorted inside by length, in batches of so many tokens.

Batches are computed side by side, one on each of PyTorch's threads: that keeps processors busier than one batch on
all of them, whose threads wait for each other at every step. Meanwhile the next texts are tokenised.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from addnorm.batch import Batch
from addnorm.engine.lower import Engine
from addnorm.engine.state import State
from addnorm.errors import AddnormError
from addnorm.tokenizer import Tokens

if TYPE_CHECKING:
    from addnorm.model import Model

# Tokens computed together where nobody says how many, and the least worth a batch of their own.
BATCH_TOKENS, FEW_TOKENS = 1024, 256
# Texts that are read and sorted together, and those of them that are tokenised together.
WINDOW, PART = 8192, 1024

# Takes a function and its arguments, gives what waits for the result.
Submit = Callable[..., Callable[[], Tensor]]


def windows(
    model: "Model",
    texts: Iterable[str],
    window: int,
    precision: str = "float32",
    normalize: bool | None = None,
    batch_tokens: int | None = None,
    max_tokens: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[NDArray[np.float32]]:
    """The vectors of consecutive texts, (B, D), in input order, at most `window` at a time.

    `advance` is told how many texts are done. At the end one remark on the texts that were cut.
    Errors: a text that is no str or holds half a surrogate pair, by its number in the stream.
    """
    if window < 1:
        raise AddnormError(f"window {window} holds no text; give at least 1")
    if batch_tokens is not None and batch_tokens < 1:
        raise AddnormError(f"batch_tokens {batch_tokens} holds no token; give at least 1")
    state, engine = model._current(precision)
    tokenizer, limit = model.reader(max_tokens)
    prompt, width = model.settings.prompt, model.pooling.width(model.config.width)
    stream, cut = _checked(texts), []
    with _workers(1 if state.hooked else torch.get_num_threads()) as (count, submit):
        while part := list(islice(stream, window)):
            vectors = np.zeros((len(part), width), dtype=np.float32)
            running: list[tuple[list[int], Callable[[], Tensor]]] = []
            for places in _by_size(part):
                tokens = tokenizer.encode([prompt + part[i] for i in places], limit)
                cut += [Tokens([], [], t.full_length) for t in tokens if t.full_length > len(t.ids)]
                batches = _batches([len(t.ids) for t in tokens], batch_tokens, count)
                # A batch that has no company gets all of PyTorch's threads.
                hand = submit if len(batches) > 1 or len(part) > PART else _now
                for chosen in batches:
                    batch = model.batch([tokens[i] for i in chosen])
                    running.append(
                        ([places[i] for i in chosen], hand(_vectors, model, state, engine, batch, normalize))
                    )
            for places, result in running:
                vectors[places] = result().float().cpu().numpy()
                advance(len(places))
            yield vectors
    model.remark_cut(cut, limit)


def _by_size(texts: list[str]) -> Iterator[list[int]]:
    """The texts' numbers, longest first, in parts that are tokenised together."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    return (order[start : start + PART] for start in range(0, len(order), PART))


def _batches(lengths: list[int], batch_tokens: int | None, workers: int) -> list[list[int]]:
    """The batches of a part, longest texts first, in each the shortest first, as the engine has them.

    Towards the end they are smaller, so that all workers end at about the same time.
    """
    from addnorm.model import budget

    most = batch_tokens or BATCH_TOKENS

    def room(left: int) -> int:
        several = workers > 1 and left >= 2 * workers * FEW_TOKENS
        return min(most, max(FEW_TOKENS, -(-left // (2 * workers if several else workers))))

    return [chosen[::-1] for chosen in budget(lengths, room)]


@contextmanager
def _workers(count: int) -> Iterator[tuple[int, Submit]]:
    """So many threads with one of PyTorch's each, none for 1; and how a job is given to them."""
    if count == 1:
        yield 1, _now
        return
    started: list[ThreadPoolExecutor] = []

    def submit(run: Callable[..., Tensor], *arguments: Any) -> Callable[[], Tensor]:
        if not started:
            started.append(_start(count))
        return started[0].submit(run, *arguments).result

    try:
        yield count, submit
    finally:
        for pool in started:
            pool.shutdown(cancel_futures=True)


def _start(count: int) -> ThreadPoolExecutor:
    """The threads. PyTorch keeps a number for each that calls it, and one for those to come, which is put back."""
    pool, all_there = ThreadPoolExecutor(count, "addnorm"), Barrier(count)

    def alone() -> None:
        torch.set_num_threads(1)
        all_there.wait()

    for job in [pool.submit(alone) for _ in range(count)]:
        job.result()
    torch.set_num_threads(count)
    return pool


def _now(run: Callable[..., Tensor], *arguments: Any) -> Callable[[], Tensor]:
    result = run(*arguments)
    return lambda: result


def _vectors(model: "Model", state: State, engine: Engine, batch: Batch, normalize: bool | None) -> Tensor:
    from addnorm.model import inference

    if not state.hooked:
        return engine.encode(batch, normalize)
    with inference(model.encoder):  # someone watches or edits the plain modules
        return model.pooling(model.encoder(batch), batch, normalize)


def _checked(texts: Iterable[str]) -> Iterator[str]:
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise AddnormError(f"text {i} is a {type(text).__name__}; expected str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise AddnormError(
                f"text {i} is not valid Unicode at character {error.start}; decode it as UTF-8"
            ) from None
        yield text
