"""How fast `encode` is beside transformers and sentence-transformers: python bench/encode.py [--texts N] [--rounds N]

One process a system, one round of each in turn; medians, and the ratio to ours round by round. The texts are the
standard library's docstrings; all systems get the same model, threads, cut and float32, each sorted by length.
"""

import argparse
import importlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SYSTEMS = ("addnorm", "transformers", "sentence-transformers")
MODULES = ("argparse", "ast", "asyncio", "collections", "csv", "datetime", "decimal", "difflib", "email", "fractions")
MODULES += ("functools", "heapq", "http", "inspect", "itertools", "json", "logging", "os", "pathlib", "random", "re")
BATCHES = (16, 32, 64)


def docstrings(count: int) -> list[str]:
    """Up to so many docstrings of modules' members and of their members."""
    found: dict[str, None] = {}
    for name in MODULES:
        for _, member in sorted(inspect.getmembers(importlib.import_module(name)), key=lambda pair: pair[0]):
            inside = [part for _, part in inspect.getmembers(member)] if inspect.isclass(member) else []
            for part in (member, *inside):
                if (inspect.isclass(part) or inspect.isroutine(part)) and (text := inspect.getdoc(part)):
                    found.setdefault(text)
    return list(found)[:count]


def build(system: str, texts: list[str]) -> Callable[[], np.ndarray]:
    """The system ready to encode the texts, in the best of a few batch sizes."""
    import torch

    import addnorm
    from addnorm.hub import locate

    folder = str(locate(addnorm.hub.DEFAULT_MODEL))
    if system == "addnorm":
        model = addnorm.load(folder)
        return best([lambda size=size: model.encode(texts, batch_tokens=size) for size in (1024, 2048, 4096)])
    if system == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(folder, device="cpu")
        return best([lambda size=size: theirs.encode(texts, batch_size=size) for size in BATCHES])
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def run(size: int) -> np.ndarray:
        ids = tokenizer(texts, truncation=True, max_length=256)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        vectors = np.zeros((len(ids), plain.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = tokenizer.pad({"input_ids": [ids[i] for i in chosen]}, return_tensors="pt")
            state, mask = plain(**batch).last_hidden_state, batch["attention_mask"][..., None]
            mean = (state * mask).sum(1) / mask.sum(1)
            vectors[chosen] = torch.nn.functional.normalize(mean, dim=-1).numpy()
        return vectors

    return best([lambda size=size: run(size) for size in BATCHES])


def best(ways: list[Callable[[], np.ndarray]]) -> Callable[[], np.ndarray]:
    """The fastest of some ways, each run once to warm up and once by the clock."""
    times = []
    for way in ways:
        way()
        start = time.perf_counter()
        way()
        times.append(time.perf_counter() - start)
    return ways[times.index(min(times))]


def serve(system: str, count: int) -> None:
    """A process of one system: a round for each line of standard input."""
    import warnings

    warnings.simplefilter("ignore")
    run = build(system, docstrings(count))
    vectors = run()
    print(json.dumps({"checks": vectors[:: max(1, len(vectors) // 50)].tolist()}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


def main() -> None:
    """Print the medians and ratios."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--texts", type=int, default=512)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--serve", choices=SYSTEMS)
    given = options.parse_args()
    if given.serve:
        serve(given.serve, given.texts)
        return
    started: dict[str, Any] = {}
    checks = {}
    for system in SYSTEMS:  # one after the other: each finds its best batch size undisturbed by the others
        command = [sys.executable, __file__, "--serve", system, "--texts", str(given.texts)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started[system] = subprocess.Popen(command, text=True, **pipes)
        checks[system] = np.array(json.loads(started[system].stdout.readline())["checks"])
    seconds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for _ in range(given.rounds):
        for system, process in started.items():
            process.stdin.write("\n")
            process.stdin.flush()
            seconds[system].append(json.loads(process.stdout.readline())["seconds"])
    count = len(docstrings(given.texts))
    print(f"{count} docstrings, {given.rounds} rounds, {os.cpu_count()} cores")
    for system in SYSTEMS:
        ratios = [theirs / ours for theirs, ours in zip(seconds[system], seconds["addnorm"], strict=True)]
        difference = np.abs(checks[system] - checks["addnorm"]).max()
        rate = count / statistics.median(seconds[system])
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"{system:22} {rate:7.1f} texts/s   ours is {statistics.median(ratios):.2f}× ({spread})   "
            f"vectors differ by {difference:.1e}"
        )
    for process in started.values():
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
