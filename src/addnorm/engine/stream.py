"""A stream of texts → vectors: windows of texts, sorted inside by length, in batches of so many tokens."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from addnorm.batch import Batch
from addnorm.engine.lower import Engine
from addnorm.engine.state import hooked
from addnorm.errors import AddnormError
from addnorm.tokenizer import Tokens

if TYPE_CHECKING:
    from addnorm.model import Model

# Tokens computed together where nobody says how many.
BATCH_TOKENS = 2048
# Texts that are read and sorted together.
WINDOW = 8192


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
    from addnorm.model import budget

    if window < 1:
        raise AddnormError(f"window {window} holds no text; give at least 1")
    if batch_tokens is not None and batch_tokens < 1:
        raise AddnormError(f"batch_tokens {batch_tokens} holds no token; give at least 1")
    engine = model.engine(precision)
    tokenizer, limit = model.reader(max_tokens)
    prompt, width = model.settings.prompt, model.pooling.width(model.config.width)
    stream, cut = _checked(texts), []
    while part := list(islice(stream, window)):
        tokens = tokenizer.encode([prompt + text for text in part], limit)
        cut += [Tokens([], [], t.full_length) for t in tokens if t.full_length > len(t.ids)]
        vectors = np.zeros((len(tokens), width), dtype=np.float32)
        for chosen in budget([len(t.ids) for t in tokens], batch_tokens or BATCH_TOKENS):
            chosen.reverse()  # shortest first, as the engine has them
            batch = model.batch([tokens[i] for i in chosen])
            vectors[chosen] = _vectors(model, engine, batch, normalize).float().cpu().numpy()
            advance(len(chosen))
        yield vectors
    model.remark_cut(cut, limit)


def _vectors(model: "Model", engine: Engine, batch: Batch, normalize: bool | None) -> Tensor:
    from addnorm.model import inference

    if not hooked(model.encoder, model.pooling):
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
