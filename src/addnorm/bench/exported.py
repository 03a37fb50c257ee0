"""Systems that run an exported model: ONNX Runtime, OpenVINO, CTranslate2.

Each can run one batch with all threads or, in the way called streams, as many batches at a time as there are threads.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.bench.padded import Encode, Ids, Setting, Vectors, pad, padded, pooling, sentences, transformer
from addnorm.bench.texts import docstrings
from addnorm.errors import AddnormError

Ways = dict[str, Callable[[], Encode]]
NAMES = ["input_ids", "attention_mask"]
CALIBRATION = 128


def onnxruntime(setting: Setting) -> Ways:
    """ONNX Runtime: the graph its own optimizer fuses for BERT, and the graph as exported; int8 is dynamic."""
    graphs = {"graph as exported": _export(setting), "graph fused": _fused(setting)}
    if setting.precision == "int8":
        graphs = {name: graph and _quantized(graph) for name, graph in graphs.items()}
    return {
        name + way: (lambda graph=graph, streams=streams: _session(setting, graph, streams))  # type: ignore[misc]
        for name, graph in graphs.items()
        if graph is not None
        for way, streams in _streams(setting)
    }


def openvino(setting: Setting) -> Ways:
    """OpenVINO, in float32 or bfloat16."""
    converted = _converted(setting)
    return {
        f"{attention}{way}": (lambda model=model, streams=streams: _openvino(setting, model, streams))  # type: ignore[misc]
        for attention, model in converted.items()
        for way, streams in _streams(setting)
    }


def openvino_int8(setting: Setting) -> Ways:
    """OpenVINO with weights and activations in int8: NNCF's way for Transformers, calibrated on docstrings."""
    import nncf
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setting.folder)
    texts = list(docstrings()[-CALIBRATION:])
    feeds = [
        dict(zip(NAMES, pad([ids], tokenizer.pad_token_id or 0), strict=True))
        for ids in tokenizer(texts, truncation=True, max_length=256)["input_ids"]
    ]
    quantized = {
        attention: nncf.quantize(
            model,
            nncf.Dataset(feeds),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=CALIBRATION,
        )
        for attention, model in _converted(setting).items()
    }
    return {
        f"{attention}{way}": (lambda model=model, streams=streams: _openvino(setting, model, streams))  # type: ignore[misc]
        for attention, model in quantized.items()
        for way, streams in _streams(setting)
    }


def ctranslate2(setting: Setting) -> Ways:
    """CTranslate2, which knows BERT of the encoders; with its states pooled outside."""
    import json

    from ctranslate2.converters import TransformersConverter

    source = transformer(setting.folder)
    kind = json.loads((source / "config.json").read_text(encoding="utf-8"))["model_type"]
    if kind not in ("bert", "distilbert", "roberta", "xlm-roberta"):
        raise AddnormError(f"CTranslate2 knows no encoder of the kind {kind}")
    folder = setting.scratch / "ctranslate2"
    TransformersConverter(str(source)).convert(str(folder))
    return {
        way.strip(", "): (lambda streams=streams: _ctranslate2(setting, folder, streams))  # type: ignore[misc]
        for way, streams in _streams(setting)
    }


def _streams(setting: Setting) -> list[tuple[str, int]]:
    """Names and numbers of batches at a time."""
    return [("", 1)] + ([(", streams", setting.threads)] if setting.threads > 1 else [])


# --- ONNX Runtime ---------------------------------------------------------------------------------------


def _export(setting: Setting, attention: str = "sdpa", dynamo: bool = True) -> Path:
    import torch

    target = setting.scratch / f"{attention}.onnx"
    example = torch.ones(2, 9, dtype=torch.long), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    module = sentences(setting, attention)
    names: dict[str, Any] = {"input_names": NAMES, "output_names": ["vectors"], "dynamo": dynamo}
    if dynamo:
        free = torch.export.Dim.DYNAMIC
        names |= {"dynamic_shapes": {name: {0: free, 1: free} for name in NAMES}, "verbose": False}
    else:
        names |= {"dynamic_axes": {name: {0: "texts", 1: "tokens"} for name in NAMES} | {"vectors": {0: "texts"}}}
    torch.onnx.export(module, example, str(target), **names)
    return target


def _fused(setting: Setting) -> Path | None:
    """The graph with its attention fused, where the optimizer finds BERT's in it; None else.

    It knows the graph that the older exporter makes of plain attention.
    """
    from onnxruntime.transformers import optimizer
    from transformers import AutoConfig

    settings: Any = AutoConfig.from_pretrained(transformer(setting.folder))
    plain = _export(setting, "eager", dynamo=False)
    heads, width = settings.num_attention_heads, settings.hidden_size
    fused = optimizer.optimize_model(str(plain), "bert", num_heads=heads, hidden_size=width, opt_level=0)
    if not fused.get_fused_operator_statistics().get("Attention"):
        return None
    target = setting.scratch / "fused.onnx"
    fused.save_model_to_file(str(target))
    return target


def _quantized(graph: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = graph.with_suffix(".int8.onnx")
    # What the optimizer has fused has no shapes that could be inferred.
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(graph, target, weight_type=QuantType.QInt8, per_channel=True, extra_options=options)
    return target


def _session(setting: Setting, graph: Path, streams: int) -> Encode:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setting.threads // streams
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def forward(ids: Ids, mask: Ids) -> Vectors:
        return session.run(None, dict(zip(NAMES, (ids, mask), strict=True)))[0]

    return padded(setting, forward, streams)


# --- OpenVINO -------------------------------------------------------------------------------------------


def _converted(setting: Setting) -> dict[str, Any]:
    """The model by how its attention is written."""
    import dataclasses

    import openvino
    import torch

    example = torch.ones(2, 9, dtype=torch.long), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    free = openvino.PartialShape([-1, -1])
    plain = dataclasses.replace(setting, precision="float32")  # its own hint decides what is computed
    return {
        attention: openvino.convert_model(
            sentences(plain, attention),
            example_input=dict(zip(NAMES, example, strict=True)),
            input=[(name, free, openvino.Type.i64) for name in NAMES],
        )
        for attention in ("sdpa", "eager")
    }


def _openvino(setting: Setting, model: Any, streams: int) -> Encode:
    import openvino

    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16"}.get(setting.precision, "f32"),
        "INFERENCE_NUM_THREADS": setting.threads,
        "NUM_STREAMS": streams,
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)

    own = threading.local()  # a request computes one batch at a time

    def forward(ids: Ids, mask: Ids) -> Vectors:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        return np.array(own.request.infer(dict(zip(NAMES, (ids, mask), strict=True)))[0])

    return padded(setting, forward, streams)


# --- CTranslate2 ----------------------------------------------------------------------------------------


def _ctranslate2(setting: Setting, folder: Path, streams: int) -> Encode:
    import ctranslate2
    import torch

    encoder = ctranslate2.Encoder(
        str(folder),
        compute_type=setting.precision,
        inter_threads=streams,
        intra_threads=setting.threads // streams,
    )
    pool = pooling(setting.folder)

    def forward(ids: Ids, mask: Ids) -> Vectors:
        texts = [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
        states = torch.from_numpy(np.array(encoder.forward_batch(texts).last_hidden_state))
        return pool(states, torch.from_numpy(mask)).numpy()

    return padded(setting, forward, streams)
