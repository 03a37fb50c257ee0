"""A model: tokenizer, encoder, sentence pooling; loading, encoding, tracing, saving."""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from addnorm import checkpoint, sentence
from addnorm.batch import Batch
from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError, remark
from addnorm.files import writing_folder
from addnorm.hub import DEFAULT_MODEL, SMALL_FILES, locate
from addnorm.nn.encoder import Encoder
from addnorm.nn.heads import SentenceDense, SentencePooling
from addnorm.tokenizer import PlacedTokens, Text, Tokenizer, Tokens

if TYPE_CHECKING:
    from addnorm.engine import Engine, State
    from addnorm.results import Rank
    from addnorm.tasks import Merge
    from addnorm.trace.record import Trace

# Tokens computed together where nobody says how many.
BATCH_TOKENS = 4096

Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor | Tokens


class Model:
    """An encoder with what turns texts into tokens and its stream into vectors.

    `Model(config)` has fresh weights and no tokenizer; `load` gives a trained one.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        encoder: Encoder | None = None,
        tokenizer: Tokenizer | None = None,
        settings: sentence.Sentence | None = None,
        dense: Sequence[SentenceDense] = (),
        origin: checkpoint.Origin | None = None,
        name: str = "fresh weights",
    ) -> None:
        if encoder is None:
            encoder = Encoder(config).eval()
            encoder.init_weights()
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.settings = settings or sentence.Sentence()
        self.pooling = SentencePooling(self.settings.modes, self.settings.normalize, dense)
        self.origin = origin
        self.name = name
        self._engines: dict[str, tuple[State, Engine]] = {}  # by precision: what was lowered, the engine

    @property
    def config(self) -> EncoderConfig:
        """The encoder's config."""
        return self.encoder.config

    @property
    def max_positions(self) -> int | None:
        """The longest text the encoder can take; None where positions have no table."""
        return self.config.max_tokens

    @property
    def max_tokens(self) -> int | None:
        """The length texts are cut to: what the checkpoint says, at most its positions."""
        stated = self.settings.max_tokens or (self.tokenizer.max_tokens if self.tokenizer else None)
        limits = [limit for limit in (stated, self.max_positions) if limit is not None]
        return min(limits, default=None)

    def encode(
        self,
        texts: str | Sequence[str],
        precision: str = "float32",
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
    ) -> NDArray[np.float32]:
        """One vector a text, in input order, (B, D); for a single str (D,).

        `precision`: of the computation, as `engine` has it; `normalize`: to length 1, None as the checkpoint
        says; `batch_tokens`: tokens computed together (default 1024); `max_tokens`: where texts are cut, None
        as the checkpoint says.
        Errors: a text that is no str, a model without tokenizer, an unknown precision.
        """
        from addnorm.engine.stream import WINDOW, windows

        several = [texts] if isinstance(texts, str) else texts
        vectors = np.zeros((len(several), self.pooling.width(self.config.width)), dtype=np.float32)
        start = 0
        with _progress(len(several), show_progress) as advance:
            for part in windows(self, several, WINDOW, precision, normalize, batch_tokens, max_tokens, advance):
                vectors[start : start + len(part)] = part
                start += len(part)
        return vectors[0] if isinstance(texts, str) else vectors

    def iter_encode(
        self,
        texts: Iterable[str],
        precision: str = "float32",
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        max_tokens: int | None = None,
        window: int = 1024,
    ) -> Iterator[NDArray[np.float32]]:
        """One vector (D,) after the other for a stream of texts, in input order, in bounded memory.

        `window`: so many texts are taken from the stream at a time and sorted by length among themselves;
        the vectors are those of `encode`, which has the other arguments and errors.
        """
        from addnorm.engine.stream import windows

        for part in windows(self, texts, window, precision, normalize, batch_tokens, max_tokens):
            yield from part

    def engine(self, precision: str = "float32") -> "Engine":
        """The engine that `encode` uses, kept until the model's parameters change.

        `precision`: "float32", "bfloat16", "int8", or "auto" for the faster one of the first two on this processor.
        Errors: an unknown precision.
        """
        return self._current(precision)[1]

    def _current(self, precision: str) -> "tuple[State, Engine]":
        """The engine and what the model was when it was made."""
        from addnorm import engine

        known = self._engines.get(precision)
        if known is None or not known[0].holds():
            # Before lowering: parameters written meanwhile make another engine next time.
            now = engine.State(self.encoder, self.pooling)
            sample = self._sample() if precision == "int8" else None
            lowered = engine.lower(self.encoder, precision, self.pooling, sample)
            known = self._engines[precision] = (now, lowered)
        return known

    def _sample(self) -> list[list[int]] | None:
        """Texts of many kinds as token ids; None without a tokenizer."""
        from addnorm.engine.int8 import SAMPLE

        if self.tokenizer is None:
            return None
        tokens = self.tokenizer.encode(SAMPLE.read_text(encoding="utf-8").splitlines(), self.max_tokens)
        return [t.ids for t in tokens]

    def trace(
        self,
        texts: Texts,
        sites: str | Sequence[str] | None = None,
        until: str | None = None,
        max_tokens: int | None = None,
    ) -> "Trace":
        """Run one or several texts (or their token ids) and keep the value of every site.

        `sites`: names or globs, only those are kept; `until`: the pass stops after that site.
        Errors: a site this model does not have.
        """
        from addnorm.trace.record import record

        tokens = self.as_tokens(texts, max_tokens)
        names = [self.tokenizer.tokens(t.ids) if self.tokenizer else [str(i) for i in t.ids] for t in tokens]
        with inference(self.encoder):
            return record(self.encoder, self.pooling, self.batch(tokens), names, sites, until)

    def fill_mask(self, texts: str | Sequence[str], top: int = 5, max_tokens: int | None = None) -> list[Any]:
        """The likeliest tokens for the mask in a text, best first: a list of `results.Filling`.

        A text with several masks gives such a list for each, filled one at a time; several texts a list of
        results. Errors: a text without mask, a model without a masked language model head.
        """
        from addnorm import tasks

        return tasks.fill_mask(self, texts, top, max_tokens)

    def classify(
        self, texts: Text | Sequence[Text], top: int | None = None, max_tokens: int | None = None
    ) -> list[Any]:
        """The labels of a text, or of a pair of texts given as a tuple, best first: a list of `results.Label`.

        Scores are probabilities: of one label of all, or (several may hold, or there is one) of each by
        itself, or plain values of a regression, as `problem_type` of the checkpoint says.
        Several texts, as a list, give a list of results. Errors: a model without a classification head.
        """
        from addnorm import tasks

        return tasks.classify(self, texts, top, max_tokens)

    def tag(
        self,
        texts: str | Sequence[str],
        merge: "Merge" = "first",
        ignore: Sequence[str] = ("O",),
        max_tokens: int | None = None,
    ) -> list[Any]:
        """The labelled pieces of a text in order: a list of `results.Entity` with character offsets.

        `merge`: how the tokens of a word agree on its label: its `first`, the one with the `max` score, the
        `average`; `simple`: they need not. Then neighbours of one label are one entity (B- begins another).
        `ignore`: labels left out. Several texts give a list of results.
        Errors: a model without a token classification head.
        """
        from addnorm import tasks

        return tasks.tag(self, texts, merge, ignore, max_tokens)

    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        no_answer: bool = False,
        max_answer_tokens: int = 15,
        whole_words: bool = True,
        max_tokens: int | None = None,
        overlap: int = 128,
    ) -> Any:
        """The piece of the context that answers the question: a `results.Answer` with character offsets.

        A long context is read in windows of `max_tokens` (question included; None: at most 384) that share
        `overlap` tokens; the likeliest span of all is taken, its probability counted within its window.
        `no_answer`: "" may be the answer, where that is likelier; `whole_words`: a span that begins or ends
        inside a word takes all of it. As many questions as contexts give a list.
        Errors: an empty question or context, a model without a question answering head.
        """
        from addnorm import tasks

        return tasks.answer(self, question, context, no_answer, max_answer_tokens, whole_words, max_tokens, overlap)

    def rerank(
        self,
        query: str,
        texts: Sequence[str],
        top: int | None = None,
        activation: str | None = None,
        max_tokens: int | None = None,
    ) -> "list[Rank]":
        """The texts by how well they fit the query, best first, read together with it (a cross-encoder).

        `activation`: what the score is of the logit, "identity" or "sigmoid"; None as the checkpoint says.
        Errors: a model without a classification head of one output.
        """
        from addnorm import tasks

        return tasks.rerank(self, query, texts, top, activation, max_tokens)

    def save(self, folder: str | Path) -> None:
        """Write the model in the layout it was loaded from; Hugging Face and sentence-transformers load it.

        Everything is written beside the target first and then moved: a failure leaves nothing behind.
        """
        origin = self.origin or checkpoint.fresh_origin(self.encoder)
        with writing_folder(Path(folder)) as target:
            (target / self.settings.transformer).mkdir(exist_ok=True)
            if origin.folder is not None:
                _copy_small_files(origin.folder, target, self.settings.folders)
            checkpoint.write(self.encoder, origin, target / self.settings.transformer)
            for own, module in zip(self.settings.dense, self.pooling.dense, strict=True):
                checkpoint.write_tensors(module.state_dict(), target / own.folder)

    def tokenize(self, texts: Sequence[str], max_tokens: int | None = None, prompt: str = "") -> list[Tokens]:
        """Texts as token ids, cut to `max_tokens` with one remark if any is longer."""
        tokenizer, limit = self.reader(max_tokens)
        tokens = tokenizer.encode([prompt + text for text in texts] if prompt else texts, limit)
        self.remark_cut(tokens, limit)
        return tokens

    def place(self, texts: Sequence[Text], max_tokens: int | None = None) -> list[PlacedTokens]:
        """Texts or pairs of texts as `tokenize` has them, with the place of each token in its text."""
        tokenizer, limit = self.reader(max_tokens)
        tokens = tokenizer.place(texts, limit)
        self.remark_cut(tokens, limit)
        return tokens

    def reader(self, max_tokens: int | None = None) -> tuple[Tokenizer, int | None]:
        """The tokenizer, and the length texts are cut to. Errors: no tokenizer; more than the positions."""
        if self.tokenizer is None:
            raise AddnormError(f"{self.name} has no tokenizer files; give token ids, or add tokenizer.json")
        limit = self.max_tokens if max_tokens is None else max_tokens
        if self.max_positions is not None and limit is not None and limit > self.max_positions:
            raise AddnormError(
                f"max_tokens {limit} exceeds the model's {self.max_positions} positions; give at most that"
            )
        return self.tokenizer, limit

    def remark_cut(self, tokens: Sequence[Tokens], limit: int | None) -> None:
        """One remark if any of the texts was cut."""
        cut = [t.full_length for t in tokens if t.full_length > len(t.ids)]
        if cut and limit is not None:
            which = "1 text is" if len(cut) == 1 else f"{len(cut)} texts are"
            room = "more" if self.max_positions is None else f"up to {self.max_positions}"
            more = "" if limit == self.max_positions else f"; max_tokens can be {room}"
            remark(f"{which} longer than {limit} tokens (up to {max(cut)}) and cut to that{more}")

    def as_tokens(self, texts: Texts, max_tokens: int | None = None) -> list[Tokens]:
        """One text or several, as str or as token ids, as tokens."""
        if isinstance(texts, Tensor):
            if texts.ndim != 1 or texts.dtype.is_floating_point:
                raise AddnormError(
                    f"token ids have shape {tuple(texts.shape)}, {texts.dtype}; expected 1-D whole numbers"
                )
            texts = texts.tolist()
        if isinstance(texts, str):
            return self.tokenize([texts], max_tokens)
        if isinstance(texts, Tokens):
            return [texts]
        items: list[Any] = list(texts)
        if items and all(isinstance(item, int) for item in items):
            items = [items]
        if any(isinstance(item, str) for item in items):
            return self.tokenize(items, max_tokens)
        return [Tokens(list(ids), [0] * len(ids), len(ids)) for ids in items]

    def batch(self, tokens: Sequence[Tokens]) -> Batch:
        """Tokens of several texts end to end, where the encoder's weights are."""
        device = self.encoder.embeddings.tokens.weight.device
        return Batch.pack([t.ids for t in tokens], [t.types for t in tokens], device)


def load(name: str | Path = DEFAULT_MODEL, dtype: torch.dtype = torch.float32, **options: Any) -> Model:
    """Load a model by folder or name; the weights are computed in `dtype`.

    `options`: what its family leaves open, as `language="de_DE"` where blocks have an adapter a language, or
    `task="retrieval.query"` where the checkpoint has low-rank updates for tasks, to merge one and to put that
    task's prompt before the texts that are encoded.

    A name is looked up as a local folder, an installed weight package, in the Hugging Face cache, on the hub.
    Errors: nothing there, or anything in the files that is unknown, missing or damaged.
    """
    folder = locate(name)
    settings = sentence.read(folder, options.get("task"))
    encoder, origin = checkpoint.read(folder / settings.transformer, dtype, options)
    settings = dataclasses.replace(settings, prompt=settings.prompt or origin.prompt)
    tokenizer = Tokenizer.from_folder(folder / settings.transformer, settings.lowercase)
    return Model(
        encoder.config,
        encoder=encoder,
        tokenizer=tokenizer,
        settings=settings,
        dense=[_read_dense(folder, own, dtype) for own in settings.dense],
        origin=dataclasses.replace(origin, folder=folder),
        name=str(name),
    )


def _read_dense(folder: Path, settings: sentence.Dense, dtype: torch.dtype) -> SentenceDense:
    held = checkpoint.read_tensors(folder / settings.folder)
    if not {"linear.weight"} <= held.keys() <= {"linear.weight", "linear.bias"}:
        raise AddnormError(f"{settings.folder}: holds {', '.join(held)}; expected linear.weight and linear.bias")
    bias = held.get("linear.bias")
    return SentenceDense(
        held["linear.weight"].to(dtype), None if bias is None else bias.to(dtype), settings.activation
    )


@contextmanager
def inference(encoder: Encoder) -> Iterator[None]:
    """No gradients and no dropout; the encoder's mode is put back afterwards."""
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        encoder.train(training)


@contextmanager
def _progress(total: int, show: bool | None) -> Iterator[Any]:
    if not show:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("encode", total=total)
        yield lambda count: bar.advance(task, count)


def budget(lengths: Sequence[int], room: Callable[[int], int]) -> Iterator[list[int]]:
    """Texts by length, longest first, in batches of at most so many tokens (at least one text each).

    `room`: how many, where so many are left.
    """
    batch: list[int] = []
    used, left = 0, sum(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and used + lengths[i] > room(left):
            yield batch
            batch, used, left = [], 0, left - used
        batch.append(i)
        used += lengths[i]
    if batch:
        yield batch


def _copy_small_files(source: Path, target: Path, folders: Iterable[str]) -> None:
    """What a saved model takes over from the one it came from: tokenizer, pooling, description."""
    for path in [path for part in set(folders) for pattern in SMALL_FILES for path in (source / part).glob(pattern)]:
        if not path.name.endswith(".index.json"):  # shards are written as one file
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
