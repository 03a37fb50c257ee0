"""Text → token ids: a thin wrapper over the `tokenizers` library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from addnorm.errors import AddnormError
from addnorm.files import read_object

# A text, or two that a model reads together.
Text = str | tuple[str, str]

# What special tokens are called where the files of a folder do not say.
USUAL = {"cls": ("[CLS]", "<s>"), "mask": ("[MASK]", "<mask>")}


@dataclass(frozen=True)
class Tokens:
    """One text as ids and token types; `full_length`: how many tokens it had before it was cut."""

    ids: list[int]
    types: list[int]
    full_length: int


@dataclass(frozen=True)
class PlacedTokens(Tokens):
    """Tokens that know where they stand.

    For each token `texts`: of which text of a pair it is, 0 or 1, None for the special tokens around them;
    `words`: the number of its word in that text; `spans`: from which character of that text to which.
    """

    texts: list[int | None]
    words: list[int | None]
    spans: list[tuple[int, int]]


class Tokenizer:
    """Texts to token ids with special tokens, without padding.

    `special`: the ids of the special tokens by role (cls, mask …), of those it has;
    `max_tokens`: the length of texts its files name.
    """

    def __init__(
        self, backend: Backend, roles: Mapping[str, str] | None = None, max_tokens: int | None = None
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        names = {**USUAL, **{role: (token,) for role, token in (roles or {}).items()}}
        known = {
            role: [i for token in names[role] if (i := backend.token_to_id(token)) is not None] for role in names
        }
        self.special = {role: ids[0] for role, ids in known.items() if ids}
        self.max_tokens = max_tokens

    @classmethod
    def from_folder(cls, folder: Path, lowercase: bool = False) -> "Tokenizer | None":
        """From tokenizer.json or, alone, BERT's vocab.txt; None where the folder has neither.

        Errors: a file that cannot be read, or a vocabulary without BERT's special tokens.
        """
        settings = _settings(folder)
        try:
            if (folder / "tokenizer.json").is_file():
                backend = Backend.from_file(str(folder / "tokenizer.json"))
            elif (folder / "vocab.txt").is_file():
                backend = _bert_wordpiece(folder, settings)
            else:
                return None
        except AddnormError:
            raise
        except Exception as error:  # the backend raises bare Exceptions
            raise AddnormError(f"tokenizer files in '{folder}' cannot be read ({error}); copy them again") from None
        if lowercase:
            own = [backend.normalizer] if backend.normalizer else []
            backend.normalizer = normalizers.Sequence([Lowercase(), *own])
        return cls(backend, _roles(settings), _max_tokens(settings))

    def encode(self, texts: Sequence[Text], max_tokens: int | None = None) -> list[Tokens]:
        """Token ids of each text or pair, cut to `max_tokens` with its special tokens kept.

        Of a pair the longer text is cut first, then both to half of the room.
        Errors: a text that is no str or holds half a surrogate pair; a limit that leaves no room.
        """
        self._check(texts, max_tokens)
        tokens = []
        for text, encoding in zip(texts, self.backend.encode_batch(list(texts)), strict=True):
            length = len(encoding)
            if max_tokens is not None and length > max_tokens:
                parts = self._parts(text)
                self._shorten(parts, max_tokens)
                encoding = self._join(parts)
            tokens.append(Tokens(encoding.ids, encoding.type_ids, length))
        return tokens

    def place(self, texts: Sequence[Text], max_tokens: int | None = None) -> list[PlacedTokens]:
        """As `encode`, with the place of each token in its text."""
        self._check(texts, max_tokens)
        placed = []
        for text in texts:
            parts = self._parts(text)
            length = self._length(parts)
            self._shorten(parts, max_tokens)
            placed.append(self._place(parts, length))
        return placed

    def windows(self, first: str, second: str, max_tokens: int | None, overlap: int) -> list[PlacedTokens]:
        """A pair whose second text, where it is too long, is read in several windows.

        `overlap`: how many tokens of the second text two neighbouring windows share, at most half a window.
        Errors: as `encode`; a first text that leaves no room for the second.
        """
        self._check([(first, second)], max_tokens)
        question, context = parts = self._parts((first, second))
        length = self._length(parts)
        if max_tokens is not None and length > max_tokens:
            room = max_tokens - self._length(parts[:1], pair=True)
            if room < 1:
                raise AddnormError(
                    f"the first text has {len(question)} tokens, which leaves no room for the second "
                    f"in {max_tokens}; shorten it"
                )
            context.truncate(room, stride=min(overlap, room // 2))
        # One window at a time: together, the library gives all but the first the wrong token types.
        return [self._place([question, part], length) for part in (context, *context.overflowing)]

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of token ids, with or without special tokens."""
        return self.backend.decode(list(ids), skip_special_tokens=not special)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The token of each id; `<id>` for one the vocabulary lacks."""
        # The library raises for a number that fits no u32.
        return [(self.backend.id_to_token(i) if 0 <= i < 2**32 else None) or f"<{i}>" for i in ids]

    def _check(self, texts: Sequence[Text], max_tokens: int | None) -> None:
        for i, text in enumerate(texts):
            pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
            if not isinstance(text, str) and not pair:
                kind = "tuple that is no pair of str" if isinstance(text, tuple) else type(text).__name__
                raise AddnormError(f"text {i} is a {kind}; expected str")
            for part in (text,) if isinstance(text, str) else text:
                try:
                    part.encode()
                except UnicodeEncodeError as error:
                    raise AddnormError(
                        f"text {i} is not valid Unicode at character {error.start}; decode it as UTF-8"
                    ) from None
        special = self.backend.num_special_tokens_to_add(any(not isinstance(text, str) for text in texts))
        if max_tokens is not None and max_tokens <= special:
            raise AddnormError(f"max_tokens {max_tokens} leaves no room beside {special} special tokens; give more")

    def _parts(self, text: Text) -> list[Encoding]:
        """A text, or each of a pair, without special tokens."""
        return [
            self.backend.encode(part, add_special_tokens=False)
            for part in ((text,) if isinstance(text, str) else text)
        ]

    def _length(self, parts: Sequence[Encoding], pair: bool | None = None) -> int:
        """How many tokens parts have with the special ones around them."""
        special = self.backend.num_special_tokens_to_add(len(parts) > 1 if pair is None else pair)
        return sum(map(len, parts)) + special

    def _shorten(self, parts: Sequence[Encoding], max_tokens: int | None) -> None:
        if max_tokens is not None and self._length(parts) > max_tokens:
            room = max_tokens - self.backend.num_special_tokens_to_add(len(parts) > 1)
            for part, length in zip(parts, _longest_first([len(part) for part in parts], room), strict=True):
                part.truncate(length)

    def _join(self, parts: Sequence[Encoding]) -> Encoding:
        """Parts with the special tokens around them."""
        return self.backend.post_process(parts[0], parts[1] if len(parts) > 1 else None)

    def _place(self, parts: Sequence[Encoding], length: int) -> PlacedTokens:
        # Places are the parts' own: joining trims offsets once more, and numbers texts wrongly.
        joined = self._join(parts)
        inside = iter(
            [(i, *place) for i, part in enumerate(parts) for place in zip(part.word_ids, part.offsets, strict=True)]
        )
        around = (None, None, (0, 0))
        places = [around if special else next(inside) for special in joined.special_tokens_mask]
        return PlacedTokens(
            joined.ids,
            joined.type_ids,
            length,
            texts=[text for text, _, _ in places],
            words=[word for _, word, _ in places],
            spans=[span for _, _, span in places],
        )


def _longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """What is left of one or two lengths that exceed the room together: the longer gives way first."""
    if len(lengths) == 1:
        return [room]
    short = min(*lengths, room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]


def _settings(folder: Path) -> dict[str, Any]:
    """What the files beside the vocabulary say."""
    paths = [folder / name for name in ("special_tokens_map.json", "tokenizer_config.json")]
    return {key: value for path in paths if path.is_file() for key, value in read_object(path).items()}


def _roles(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by role, without `_token`; a token is a str or an object with its `content`."""
    tokens = {
        key.removesuffix("_token"): value.get("content") if isinstance(value, dict) else value
        for key, value in settings.items()
        if key.endswith("_token")
    }
    return {role: token for role, token in tokens.items() if isinstance(token, str)}


def _max_tokens(settings: Mapping[str, Any]) -> int | None:
    """`model_max_length`; transformers writes a huge number where there is none."""
    length = settings.get("model_max_length")
    return length if type(length) is int and 0 < length < 10**9 else None


def _bert_wordpiece(folder: Path, settings: Mapping[str, Any]) -> Backend:
    vocabulary = WordPiece.read_file(str(folder / "vocab.txt"))
    roles = _roles(settings)
    special = [roles.get(role) or f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")]
    unknown, cls_, sep = special[:3]
    if absent := [token for token in (unknown, cls_, sep) if token not in vocabulary]:
        raise AddnormError(f"'{folder / 'vocab.txt'}' lacks {absent[0]}; expected a BERT vocabulary")
    backend = Backend(WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = BertPreTokenizer()
    backend.post_processor = TemplateProcessing(
        single=f"{cls_} $A {sep}",
        pair=f"{cls_} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls_, vocabulary[cls_]), (sep, vocabulary[sep])],
    )
    backend.decoder = WordPieceDecoder()
    backend.add_special_tokens([token for token in special if token in vocabulary])
    return backend
