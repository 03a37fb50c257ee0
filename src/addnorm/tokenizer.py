"""Text → token ids: a thin wrapper over the `tokenizers` library."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from addnorm.errors import AddnormError
from addnorm.files import read_object


@dataclass(frozen=True)
class Tokens:
    """One text as ids and token types; `full_length`: how many tokens it had before it was cut."""

    ids: list[int]
    types: list[int]
    full_length: int


class Tokenizer:
    """Texts to token ids with special tokens, without padding."""

    def __init__(self, backend: Backend) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend

    @classmethod
    def from_folder(cls, folder: Path, lowercase: bool = False) -> "Tokenizer | None":
        """From tokenizer.json or, alone, BERT's vocab.txt; None where the folder has neither.

        Errors: a file that cannot be read, or a vocabulary without BERT's special tokens.
        """
        try:
            if (folder / "tokenizer.json").is_file():
                backend = Backend.from_file(str(folder / "tokenizer.json"))
            elif (folder / "vocab.txt").is_file():
                backend = _bert_wordpiece(folder)
            else:
                return None
        except AddnormError:
            raise
        except Exception as error:  # the backend raises bare Exceptions
            raise AddnormError(f"tokenizer files in '{folder}' cannot be read ({error}); copy them again") from None
        if lowercase:
            own = [backend.normalizer] if backend.normalizer else []
            backend.normalizer = normalizers.Sequence([Lowercase(), *own])
        return cls(backend)

    def encode(self, texts: Sequence[str], max_tokens: int | None = None) -> list[Tokens]:
        """Token ids of each text, cut to `max_tokens` with its special tokens kept.

        Errors: a text that is no str or holds half a surrogate pair; a limit that leaves no room.
        """
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise AddnormError(f"text {i} is a {type(text).__name__}; expected str")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise AddnormError(
                    f"text {i} is not valid Unicode at character {error.start}; decode it as UTF-8"
                ) from None
        special = self.backend.num_special_tokens_to_add(False)
        if max_tokens is not None and max_tokens <= special:
            raise AddnormError(f"max_tokens {max_tokens} leaves no room beside {special} special tokens; give more")
        encodings = self.backend.encode_batch(list(texts))
        return [self._cut(text, encoding, max_tokens) for text, encoding in zip(texts, encodings, strict=True)]

    def _cut(self, text: str, encoding: Encoding, max_tokens: int | None) -> Tokens:
        length = len(encoding)
        if max_tokens is not None and length > max_tokens:
            encoding = self.backend.encode(text, add_special_tokens=False)
            encoding.truncate(max_tokens - self.backend.num_special_tokens_to_add(False))
            encoding = self.backend.post_process(encoding)
        return Tokens(encoding.ids, encoding.type_ids, length)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The token of each id; `<id>` for one the vocabulary lacks."""
        return [self.backend.id_to_token(i) or f"<{i}>" for i in ids]


def _bert_wordpiece(folder: Path) -> Backend:
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    vocabulary = WordPiece.read_file(str(folder / "vocab.txt"))
    special = [
        str(settings.get(f"{role}_token") or f"[{role.upper()}]") for role in ("unk", "cls", "sep", "pad", "mask")
    ]
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
