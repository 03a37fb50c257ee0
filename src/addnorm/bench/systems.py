"""The systems that are compared, as data: name, precision, what builds it, what must be installed."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from addnorm.bench import exported, native
from addnorm.bench.padded import Encode, Setting

# The ways in which a system can run, by name, each made when it is tried.
Ways = Mapping[str, Callable[[], Encode]]
PRECISIONS = ("float32", "bfloat16", "int8", "auto")


@dataclass(frozen=True)
class System:
    """One system at one precision.

    `needs`: packages; `programs`: one of them must be on the path; `sort`: texts by length first;
    `sizes`: batches worth trying, where they are not those of the workload; `only`: the workloads it is run on.
    """

    name: str
    precision: str
    build: Callable[[Setting], Ways]
    needs: tuple[str, ...] = ("transformers",)
    programs: tuple[str, ...] = ()
    sort: bool = True
    sizes: tuple[int, ...] = ()
    only: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Why it cannot be run here, or None."""
        for package in self.needs:
            try:
                version(package)
            except PackageNotFoundError:
                return f"{package} is not installed"
        if self.programs and not any(map(shutil.which, self.programs)):
            return f"needs a C++ compiler ({' or '.join(self.programs)})"
        return None


OURS, YARDSTICK = "addnorm", "transformers sdpa"
# What has no padding is measured in tokens a batch.
TOKENS = (1024, 2048, 4096)
EXPORT = ("transformers", "onnx", "onnxscript", "onnxruntime")
# Padding in file order is one thing to see, on texts of mixed lengths.
MIXED = ("mixed",)

SYSTEMS = (
    *(System(OURS, precision, native.addnorm, needs=(), sizes=TOKENS) for precision in PRECISIONS),
    System(YARDSTICK, "float32", native.sdpa),
    System("transformers eager", "float32", native.eager),
    System("transformers sdpa, file order", "float32", native.sdpa, sort=False, only=MIXED),
    System("transformers eager, file order", "float32", native.eager, sort=False, only=MIXED),
    System("sentence-transformers", "float32", native.sentence_transformers, needs=("sentence-transformers",)),
    System("torch.compile", "float32", native.compiled, programs=("g++", "clang++")),
    System("ONNX Runtime", "float32", exported.onnxruntime, needs=EXPORT),
    System("OpenVINO", "float32", exported.openvino, needs=("transformers", "openvino")),
    System("CTranslate2", "float32", exported.ctranslate2, needs=("transformers", "ctranslate2")),
    System("transformers sdpa", "bfloat16", native.sdpa),
    System("torch.compile", "bfloat16", native.compiled, programs=("g++", "clang++")),
    System("OpenVINO", "bfloat16", exported.openvino, needs=("transformers", "openvino")),
    System("ONNX Runtime", "int8", exported.onnxruntime, needs=EXPORT),
    System("OpenVINO", "int8", exported.openvino_int8, needs=("transformers", "openvino", "nncf")),
    System("CTranslate2", "int8", exported.ctranslate2, needs=("transformers", "ctranslate2")),
)
PACKAGES = tuple(dict.fromkeys(package for system in SYSTEMS for package in system.needs))
