"""Write docs/families.md from the registry, every family measured against its reference: python docs/families.py"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.families import test_oracles
from tests.families.oracles import ORACLES
from tests.families.test_families import texts_of
from tests.twins import build_twin

from addnorm.cli.info import NAMES
from addnorm.config import BlockConfig, EncoderConfig, UnitConfig
from addnorm.families import FAMILIES
from addnorm.tokenizer import Tokens
from addnorm.trace.compare import against

HEAD = """# Families

Written by `python docs/families.py` from the registry. The difference is the largest at any site the reference
shows and at the logits of any head, for texts of 1, 2, 7, 63 and 200 tokens, in float64, every parameter perturbed.
The reference is transformers (eager, unpadded); where it has none (*), a forward pass in NumPy.
Slots are those of `x ← N_out(α·x + β·N_branch(F(N_in(x))))`.

| family | slots | positions | attention | feed-forward | heads | largest difference |
|---|---|---|---|---|---|---|
"""


SHARED = {"buckets": "shared bias", "alibi": "ALiBi"}


def main() -> None:
    rows = "\n".join(row(name) for name in sorted(FAMILIES))
    Path(__file__).with_suffix(".md").write_text(f"{HEAD}{rows}\n", encoding="utf-8")


def row(name: str) -> str:
    worst, tasks, config = 0.0, [], None
    for architecture in (ORACLES[name].base if name in ORACLES else "AutoModel", *FAMILIES[name].heads):
        with TemporaryDirectory() as folder:
            measured = measure(name, architecture, Path(folder))
            config, difference = next(measured)
        worst = max(worst, difference)
        if config.head is not None and config.head.task not in tasks:
            tasks.append(config.head.task)
        print(name, architecture, f"{difference:.1e}", file=sys.stderr)
    assert config is not None
    mark = "*" if name in ORACLES else ""
    cells = (name + mark, slots(config), positions(config), attention(config), feedforward(config))
    return f"| {' | '.join(cells)} | {', '.join(tasks) or '–'} | {worst:.0e} |"


def measure(name: str, architecture: str, folder: Path) -> Iterator[tuple[EncoderConfig, float]]:
    if name in ORACLES:
        written = test_oracles.build(name, folder, architecture)
        found = [test_oracles.differences(written, written.ours, ids) for ids in texts_of(written)]
        yield written.ours.config, max(max(sites.values()) for sites in found)
        return
    twin = build_twin(name, folder, architecture)
    texts = [Tokens(ids, [0] * len(ids), len(ids)) for ids in texts_of(twin)]
    yield twin.ours.config, max(against(twin.ours, twin.hf, text).largest for text in texts)


def each(config: EncoderConfig, say: object) -> str:
    assert callable(say)
    return ", ".join(dict.fromkeys(say(block) for block in config.blocks))


def slots(config: EncoderConfig) -> str:
    def unit(slots: UnitConfig) -> str:
        return " ".join(
            f"{slot.upper()[0]}{slot[1:]} {NAMES.get(norm.kind, norm.kind)}" for slot, norm in slots.norms.items()
        )

    final = f"; final {NAMES.get(config.norm.kind, config.norm.kind)}" if config.norm else ""
    found = dict.fromkeys(unit(u) or "none" for block in config.blocks for u in (block.attention, block.feedforward))
    return "; ".join(found) + final


def positions(config: EncoderConfig) -> str:
    inside = {
        "rotary": any(block.attention.rotary for block in config.blocks),
        SHARED[config.position_bias.kind] if config.position_bias else "": config.position_bias is not None,
        "bias a block": any(block.attention.position_bias for block in config.blocks),
        "disentangled": config.relative is not None,
    }
    return ", ".join(
        [
            *([config.embeddings.positions] if config.embeddings.positions else []),
            *(s for s, on in inside.items() if on),
        ]
    )


def attention(config: EncoderConfig) -> str:
    def say(block: BlockConfig) -> str:
        options = {
            "grouped": block.attention.key_heads != block.attention.heads,
            "windowed": block.attention.window is not None,
            "q/k norm": block.attention.query_norm is not None,
            "soft-cap": block.attention.softcap is not None,
            "unscaled": block.attention.scale == 1,
        }
        return " ".join(name for name, on in options.items() if on) or "full"

    return each(config, say)


def feedforward(config: EncoderConfig) -> str:
    def say(block: BlockConfig) -> str:
        extra = f" + {len(block.further)} more" if block.further else ""
        extra += " in a bottleneck" if block.bottleneck else ""
        extra += " + convolution" if block.convolution else ""
        return f"{'gated ' if block.feedforward.gated else ''}{block.feedforward.activation}{extra}"

    return each(config, say)


if __name__ == "__main__":
    main()
