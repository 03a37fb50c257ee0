"""X-MOD (Pfeiffer et al. 2022): RoBERTa with an adapter for each language after the feed-forward.

The adapter is one more unit of the block. A load takes those of one language, by `language` or the config's
`default_language`; the others are carried.
"""

from dataclasses import replace
from functools import partial

from addnorm.config import EncoderConfig
from addnorm.errors import AddnormError
from addnorm.families import bert, roberta
from addnorm.families._rows import ACTIVATIONS, HF, At, amend, architectures

LANGUAGE = "en_XX"


def slots(hf: HF) -> dict[str, str | None]:
    """The slot each norm of a block fills: `own` the adapter's, `last` the layer's, `second` that once more."""
    pre, own, reused = hf.get("pre_norm"), hf.get("adapter_layer_norm"), hf.get("adapter_reuse_layer_norm", True)
    adapter = "feedforward.norm_out" if hf.get("ln_before_adapter", True) else "further.0.norm_in"
    last = "feedforward.norm_in" if pre else "further.0.norm_out"
    if own or not reused:
        return {"own": adapter if own else None, "last": last, "second": None}
    first, second = (last, adapter) if pre else (adapter, last)
    return {"own": None, "last": first, "second": second}


def norm(slot: str, hf: HF) -> dict[str, object] | None:
    """The norm of a slot, if there is one."""
    filled = {*slots(hf).values(), f"attention.norm_{'in' if hf.get('pre_norm') else 'out'}"}
    return bert.NORM | {"eps": hf["layer_norm_eps"]} if slot in filled else None


def adapter(hf: HF) -> list[dict[str, object]]:
    """The adapter as a feed-forward unit."""
    return [
        {
            "width": int(hf["hidden_size"] // hf.get("adapter_reduction_factor", 2)),
            "activation": ACTIVATIONS[hf["hidden_act"]],
            "dropout": hf["hidden_dropout_prob"],
            **{slot: norm(f"further.0.{slot}", hf) for slot in ("norm_in", "norm_out")},
        }
    ]


def names(hf: HF) -> dict[str, str]:
    """{language}, and the slots of the norms. Errors: no language, or one without adapters."""
    language, known = hf.get("default_language"), hf.get("languages") or [LANGUAGE]
    if not isinstance(language, str) or language not in known:
        raise AddnormError(
            f"config.json: 'default_language' is {language!r}; the blocks have adapters for {', '.join(known)}: "
            f"choose one, as in load(…, language='{known[0]}')"
        )
    return {"language": language, **{name: slot for name, slot in slots(hf).items() if slot}}


def tied(config: EncoderConfig) -> tuple[str, ...]:
    """The slots of a norm that is used twice."""
    return config.blocks[0].tied_norms if config.blocks else ()


def has(config: EncoderConfig, slot: str) -> bool:
    """Whether the blocks have a norm there."""
    return bool(config.blocks) and slot in config.blocks[0].norms


def reduction(config: EncoderConfig) -> int:
    """How much narrower than the stream the adapters are."""
    further = config.blocks[0].further if config.blocks else ()
    return config.width // further[0].width if further else 2


LAYER = "encoder.layer.{i}.output"
ADAPTER = f"{LAYER}.adapter_modules.{{language}}"

XMOD = replace(
    roberta.ROBERTA,
    name="xmod",
    architecture="XmodModel",
    fields=amend(
        roberta.ROBERTA.fields, vocab_size={"default": 30522}, layer_norm_eps={"paths": "embeddings.norm.eps"}
    ),
    fixed={"embeddings.positions": "learned", "embeddings.norm": bert.NORM},
    derived={
        **roberta.ROBERTA.derived,
        **{
            f"block.{slot}": partial(norm, slot)
            for slot in ("attention.norm_in", "attention.norm_out", "feedforward.norm_in", "feedforward.norm_out")
        },
        "block.further": adapter,
        "block.tied_norms": lambda hf: (slots(hf)["last"], slots(hf)["second"]) if slots(hf)["second"] else (),
        "norm": lambda hf: bert.NORM | {"eps": hf["layer_norm_eps"]} if hf.get("pre_norm") else None,
    },
    exports={
        **roberta.ROBERTA.exports,
        "pre_norm": lambda config: config.norm is not None,
        "adapter_reduction_factor": reduction,
        "adapter_layer_norm": lambda config: (
            not tied(config) and (has(config, "feedforward.norm_out") or has(config, "further.0.norm_in"))
        ),
        "adapter_reuse_layer_norm": lambda config: bool(tied(config)),
        "ln_before_adapter": lambda config: not has(config, "further.0.norm_in"),
        "languages": lambda config: [LANGUAGE],
        "default_language": lambda config: LANGUAGE,
    },
    options={"language": "default_language"},
    names=names,
    modules={
        **bert.EMBEDDINGS,
        "encoder.layer.{i}.attention.self.query|key|value": "blocks.{i}.attention.query|key|value",
        "encoder.layer.{i}.attention.output.dense": "blocks.{i}.attention.output",
        "encoder.layer.{i}.attention.output.LayerNorm|LayerNorm": "blocks.{i}.attention.norm_in|norm_out",
        "encoder.layer.{i}.intermediate.dense": "blocks.{i}.feedforward.up",
        f"{LAYER}.dense": "blocks.{i}.feedforward.down",
        f"{LAYER}.LayerNorm": "blocks.{i}.{last}",
        f"{LAYER}.adapter_layer_norm": "blocks.{i}.{own}",
        f"{ADAPTER}.dense1|dense2": "blocks.{i}.further.0.up|down",
        "encoder.LayerNorm": "norm",
        **bert.POOLER,
    },
    heads=architectures("Xmod", roberta.TASKS),
    carried=(*roberta.ROBERTA.carried, f"{LAYER}.adapter_modules."),
    sites={
        **bert.SITES,
        "blocks.{i}.attention.add": At("encoder.layer.{i}.attention.output"),
        "blocks.{i}.feedforward.add": At("encoder.layer.{i}.output.adapter_layer_norm", input=True),
        "blocks.{i}.{second}": At(f"{LAYER}.LayerNorm", call=1),
        "blocks.{i}.further.0.activation": At(f"{ADAPTER}.adapter_act_fn"),
        "blocks.{i}.further.0.branch": At(f"{LAYER}.dropout", call=1),
        "blocks.{i}.further.0.add": At(LAYER),
    },
)

FAMILIES = (XMOD,)
