"""The benchmark on three models: python bench/run.py [--rounds N] [--texts N] [--workloads …] [--systems …] …

all-MiniLM-L6-v2, a model of BERT-base's sizes and one of ModernBERT-base's shape, both with random weights and
MiniLM's tokenizer. Writes the report, all rounds and the picture to bench/results/, named after the machine.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from addnorm.bench.machine import slug
from addnorm.bench.picture import picture
from addnorm.bench.report import markdown
from addnorm.bench.results import Result, from_json, to_json
from addnorm.bench.run import run
from addnorm.cli._lab import write
from addnorm.cli.bench import plan
from addnorm.hub import DEFAULT_MODEL, locate

RESULTS = Path(__file__).parent / "results"
MINILM = DEFAULT_MODEL.rpartition("/")[2]
# MiniLM's special tokens: what pads, begins and ends a text.
IDS = {"pad_token_id": 0, "bos_token_id": 101, "cls_token_id": 101, "eos_token_id": 102, "sep_token_id": 102}
# By name: the family in transformers, and what departs from its defaults (they are the base sizes).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base-sized": ("bert", {}),
    "modernbert-base-shaped": ("modernbert", {"vocab_size": 30522, **IDS}),
}


def make(name: str, folder: Path) -> Path:
    """A model with random weights and MiniLM's tokenizer and pooling."""
    from transformers import AutoConfig, AutoModel

    family, changes = MODELS[name]
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(family, **changes))
    spread(model)
    target = folder / name
    shutil.copytree(locate(DEFAULT_MODEL), target, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(target)
    return target


def spread(model: nn.Module) -> None:
    """Weights about as large as trained ones: matrices with heavy tails, gains around 1, biases that matter.

    A fresh model's are so small that its attention is even and its sums are nearly its inputs, which flatters
    every low precision.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:  # Student's t of 5 degrees, standard deviation 0.04
                tails = torch.stack([normal(parameter) ** 2 for _ in range(5)]).mean(0).sqrt()
                parameter.copy_(0.04 * (3 / 5) ** 0.5 * normal(parameter) / tails)
            elif name.endswith("bias"):
                parameter.copy_(0.05 * normal(parameter))
            else:
                parameter.copy_(1 + 0.1 * normal(parameter))


def models(names: list[str], folder: Path) -> Iterator[str]:
    """What `run` takes for each model."""
    for name in names:
        yield DEFAULT_MODEL if name == MINILM else str(make(name, folder))


def main() -> None:
    """Run, print the report, write the files."""
    known = [MINILM, *MODELS]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", default=",".join(known), help="with commas, of " + ", ".join(known))
    options.add_argument("--workloads", default="mixed,short,long,single")
    options.add_argument("--systems", default="all")
    options.add_argument("--precisions", default="all")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--texts", type=int)
    options.add_argument("--threads", type=int)
    options.add_argument("--scaling", default="1000,10000,100000", help="numbers of texts for the first model")
    options.add_argument("--earlier", type=Path, help="the JSON of an earlier run, to be shown in the same report")
    options.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    given = options.parse_args()
    names = given.models.split(",")
    if unknown := [name for name in names if name not in known]:
        options.error(f"model '{unknown[0]}' is unknown; choose {', '.join(known)}")
    found: list[Result] = from_json(given.earlier) if given.earlier else []
    with tempfile.TemporaryDirectory(prefix="addnorm-bench-") as folder:
        for i, name in enumerate(models(names, Path(folder))):
            chosen = plan(
                given.workloads, given.systems, given.precisions, given.rounds, given.texts, given.threads,
                "" if i else given.scaling,
            )  # fmt: skip
            found.append(run(name, chosen, since(time.monotonic())))
            keep(found, given.output)  # what is there if a later model fails
    print(markdown(found))


def keep(found: list[Result], output: Path) -> None:
    """Write the report, the rounds and the picture."""
    target = output / slug(found[0].machine)
    image = target.with_name(target.name + ".svg")
    write(image, picture(found))
    write(target.with_name(target.name + ".json"), to_json(found))
    options = f' BENCH="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else ""
    write(target.with_name(target.name + ".md"), markdown(found, image.name, "make bench" + options))


def since(start: float) -> Callable[[str], None]:
    """Says what is being done, and after how many seconds."""
    return lambda text: print(f"{time.monotonic() - start:5.0f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
