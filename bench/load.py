"""How long loading takes after the imports, and what memory it needs beside the weights: python bench/load.py [MODEL]

Each measurement is a process of its own; medians of seven.
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
before, start = resident(), time.perf_counter()
model = addnorm.model.load(*sys.argv[1:])
seconds = time.perf_counter() - start
for parameter in model.encoder.parameters():  # a mapped file counts once it is read
    parameter.sum()
weights = sum(p.numel() * p.element_size() for p in model.encoder.parameters())
print(json.dumps({"seconds": seconds, "memory": resident() - before, "weights": weights}))
"""


def main() -> None:
    """Print the medians and the ratio of memory to weights."""
    command = [sys.executable, "-c", PROBE, *sys.argv[1:]]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(7)]
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    print(f"load: {median['seconds']:.3f} s")
    print(f"memory: {median['memory'] / 1e6:.1f} MB for {median['weights'] / 1e6:.1f} MB of weights")
    print(f"ratio: {median['memory'] / median['weights']:.2f}")


main()
