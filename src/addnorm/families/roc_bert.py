"""RoCBert (Su et al. 2022): BERT whose tokens also have a written shape and a pronunciation.

Both are further ids of a token, which its own tokenizer looks up. Token ids alone do not give them, so every
token takes row 0 of both tables, as transformers does where they are left out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from addnorm.config import EncoderConfig, TableConfig
from addnorm.families import bert
from addnorm.families._rows import HF, architectures

SIZES = {"shape": (24858, 512), "pronunciation": (910, 768)}


def table(kind: str) -> Callable[[HF], dict[str, int] | None]:
    """The table of a kind, where its rows are laid beside the tokens' vectors."""

    def of(hf: HF) -> dict[str, int] | None:
        used = hf.get("concat_input", True) and hf.get(f"enable_{kind}", True)
        names = (f"{kind}_vocab_size", f"{kind}_embed_dim")
        sizes = [hf.get(name, default) for name, default in zip(names, SIZES[kind], strict=True)]
        return dict(zip(("rows", "width"), sizes, strict=True)) if used else None

    return of


def exports(kind: str, read: Callable[[EncoderConfig], TableConfig | None]) -> dict[str, Callable[..., Any]]:
    """The three HF fields of a table."""
    rows, width = SIZES[kind]
    return {
        f"enable_{kind}": lambda config: read(config) is not None,
        f"{kind}_vocab_size": lambda config: held.rows if (held := read(config)) else rows,
        f"{kind}_embed_dim": lambda config: held.width if (held := read(config)) else width,
    }


ROC_BERT = replace(
    bert.BERT,
    name="roc_bert",
    architecture="RoCBertModel",
    prefix="roc_bert",
    derived={
        **bert.BERT.derived,
        "embeddings.merge": lambda hf: hf.get("concat_input", True),
        "embeddings.shapes": table("shape"),
        "embeddings.pronunciations": table("pronunciation"),
    },
    ignored=bert.BERT.ignored | {"enable_cls"},
    exports={
        **bert.BERT.exports,
        "concat_input": lambda config: config.embeddings.merge,
        **exports("shape", lambda config: config.embeddings.shapes),
        **exports("pronunciation", lambda config: config.embeddings.pronunciations),
    },
    modules={
        **bert.BERT.modules,
        "embeddings.shape_embed": "embeddings.shapes",
        "embeddings.pronunciation_embed": "embeddings.pronunciations",
        "embeddings.map_inputs_layer": "embeddings.merge",
    },
    heads=architectures("RoCBert", bert.TASKS),
    # The file holds both tables also where they are not used.
    carried=(*bert.BERT.carried, "embeddings.shape_embed.", "embeddings.pronunciation_embed."),
)

FAMILIES = (ROC_BERT,)
