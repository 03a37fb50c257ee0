"""A result with rounds that were made up."""

from addnorm.bench.results import Ceiling, Left, Measured, Result, Scaled, Texts
from addnorm.bench.systems import OURS, YARDSTICK

RESULT = Result(
    machine={
        "processor": "Some CPU (R) 9 @ 3 GHz",
        "cores": 2,
        "instructions": ["avx2"],
        "memory_gb": 8.0,
        "system": "Linux x86_64",
        "python": "3.11.0",
        "versions": {"torch": "2.13.0"},
    },
    model={"name": "tiny", "blocks": 2, "width": 12, "parameters": 3000, "weights_mb": 0.01},
    settings={"threads": 2, "rounds": 3},
    ceiling=Ceiling({"float32": 100e9, "int8": 400e9}, {"float32": "mm", "int8": "int_mm"}, 10e9),
    workloads=(
        Texts("mixed", 10, 100, 3, 20, 256, 20_000_000_000, single=False),
        Texts("single 8", 4, 32, 8, 8, 512, 1_000_000_000, single=True),
    ),
    measured=(
        Measured("mixed", "float32", OURS, "float32", (1.0, 2.0, 0.5), "2048 tokens", 1e-7, 1.0, 1.0),
        Measured("mixed", "float32", YARDSTICK, "float32", (3.0, 4.0, 2.0), "8 texts", 0.0, 1.0, 1.0),
        Measured("mixed", "float32", "Peer | one", "float32", (1.5, 2.2, 1.0), "8 texts", 2e-7, 1.0, 1.0),
        Measured("mixed", "int8", OURS, "int8", (0.5, 0.5, 0.25), "", 0.01, 0.999, 0.995),
        Measured("mixed", "int8", YARDSTICK, "float32", (4.0, 4.0, 1.0), "", 0.0, 1.0, 1.0),
        Measured("single 8", "float32", "Peer | one", "float32", (0.2, 0.4, 0.3)),
    ),
    left=(Left("OpenVINO", "int8", "", "nncf is not installed"), Left("", "", "long", "the model reads 100")),
    scaled=(Scaled(OURS, "float32", 1000, 16000, 2.0, 300_000_000, 350_000_000),),
)
