"""How long loading takes after the imports, and what memory it needs beside the weights: python bench/load.py [MODEL]

Each measurement is a process of its own; medians of seven. `weights alone` leaves out the tokenizer, and code that
is imported on first use: it is what a second encoder adds to a process that has loaded one.
"""

import json
import statistics
import subprocess
import sys

PROBE = """
import json, sys, time, resource, torch, tokenizers, safetensors.torch, huggingface_hub
import addnorm.model, addnorm.checkpoint
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def touch(encoder):  # a mapped file counts once it is read
    return [torch.linalg.vector_norm(parameter) for parameter in encoder.parameters()]
before, start = resident(), time.perf_counter()
model = addnorm.model.load(*sys.argv[1:])
seconds = time.perf_counter() - start
touch(model.encoder)
whole = resident() - before
weights = sum(p.numel() * p.element_size() for p in model.encoder.parameters())
folder, between = model.origin.folder / model.settings.transformer, resident()
again = addnorm.checkpoint.read(folder)[0]
touch(again)
print(json.dumps({"seconds": seconds, "whole": whole, "alone": resident() - between, "weights": weights}))
"""


def main() -> None:
    """Print the medians and the ratio of memory to weights."""
    command = [sys.executable, "-c", PROBE, *sys.argv[1:]]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(7)]
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    print(f"load: {median['seconds']:.3f} s")
    for name in ("whole", "alone"):
        held, weights = median[name], median["weights"]
        print(f"memory, {name}: {held / 1e6:.1f} MB for {weights / 1e6:.1f} MB of weights ({held / weights:.3f})")


main()
