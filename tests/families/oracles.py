"""Families that transformers does not have: a file of each, written here, and its forward pass in plain NumPy.

Nothing of addnorm is used, so that a mistake of ours is not repeated. Names and fields are those of the published
checkpoints (jinaai/jina-embeddings-v2-base-en, chandar-lab/NeoBERT), sizes are small and odd.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

Array = NDArray[np.float64]
HF = dict[str, Any]
Tensors = dict[str, Array]
Steps = dict[str, Array]
Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Oracle:
    """`config`: as its config.json; `base`: the architecture without a head; `prefix`: of the others' names;
    `shapes`: of the encoder's tensors; `heads`: of each head's; `forward`: every step of one text by site."""

    config: HF
    base: str
    prefix: str
    shapes: Callable[[HF], Shapes]
    heads: dict[str, dict[str, tuple[int, ...]]]
    forward: Callable[[HF, Tensors, list[int], list[int]], Steps]


def write(oracle: Oracle, folder: Path, architecture: str, **changes: Any) -> tuple[HF, Tensors]:
    """Save a random checkpoint in float64; gives the config, and the tensors without prefix."""
    hf = {**oracle.config, "architectures": [architecture], **changes}
    head = oracle.heads.get(architecture, {})
    generator = torch.Generator().manual_seed(len(architecture))
    tensors = {}
    for name, shape in [*oracle.shapes(hf), *head.items()]:
        gain = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        tensors[name] = gain + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    prefix = f"{oracle.prefix}." if head else ""
    save_file(
        {name if name in head else prefix + name: t for name, t in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(hf))
    return hf, {name: tensor.numpy() for name, tensor in tensors.items()}


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def layer_norm(x: Array, w: Tensors, name: str, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def linear(x: Array, w: Tensors, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def attend(q: Array, k: Array, v: Array, bias: Array | float = 0.0) -> tuple[Array, Array, Array]:
    """(T, H, K) → scores and weights (H, T, T), mix (T, H·K)."""
    scores = np.einsum("ihk,jhk->hij", q, k) / math.sqrt(q.shape[-1]) + bias
    weights = softmax(scores)
    return scores, weights, np.einsum("hij,jhk->ihk", weights, v).reshape(len(q), -1)


# --- JinaBERT -----------------------------------------------------------------------------------------


def jina_shapes(hf: HF) -> Shapes:
    width, inner = hf["hidden_size"], hf["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (hf["vocab_size"], width)
    yield "embeddings.token_type_embeddings.weight", (hf["type_vocab_size"], width)
    norms, linears = ["embeddings.LayerNorm"], ["pooler.dense"]
    for i in range(hf["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        linears += [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        linears += [f"{layer}.attention.output.dense"]
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.mlp.layernorm"]
        yield f"{layer}.mlp.gated_layers.weight", (2 * inner, width)
        yield f"{layer}.mlp.wo.weight", (width, inner)
        yield f"{layer}.mlp.wo.bias", (width,)
    for name in linears:
        yield f"{name}.weight", (width, width)
    for name in norms:
        yield f"{name}.weight", (width,)
    for name in (*linears, *norms):
        yield f"{name}.bias", (width,)


def slopes(heads: int) -> list[float]:
    """Press 2022 for a power of two; from the next power of two every other one fills up."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8.0 * (n + 1) / heads) for n in range(heads)]
    power = 1 << (heads.bit_length() - 1)
    return slopes(power) + [2.0 ** (-8.0 * (2 * n + 1) / (2 * power)) for n in range(heads - power)]


def jina(hf: HF, w: Tensors, ids: list[int], types: list[int]) -> Steps:
    heads, inner, eps = hf["num_attention_heads"], hf["intermediate_size"], hf["layer_norm_eps"]
    activation = {"geglu": gelu, "reglu": lambda x: np.maximum(x, 0)}[hf["feed_forward_type"]]
    place = np.arange(len(ids))
    alibi = -np.array(slopes(heads))[:, None, None] * np.abs(place[:, None] - place[None, :])
    summed = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(summed, w, "embeddings.LayerNorm", eps)
    steps = {"embeddings.sum": summed, "embeddings": x}
    for i in range(hf["num_hidden_layers"]):
        layer, block = f"encoder.layer.{i}", f"blocks.{i}"
        parts = [linear(x, w, f"{layer}.attention.self.{name}") for name in ("query", "key", "value")]
        scores, weights, mix = attend(*(part.reshape(len(ids), heads, -1) for part in parts), alibi)
        branch = linear(mix, w, f"{layer}.attention.output.dense")
        h = layer_norm(x + branch, w, f"{layer}.attention.output.LayerNorm", eps)
        both = linear(h, w, f"{layer}.mlp.gated_layers")
        product = activation(both[:, :inner]) * both[:, inner:]
        down = linear(product, w, f"{layer}.mlp.wo")
        x = layer_norm(h + down, w, f"{layer}.mlp.layernorm", eps)
        steps |= {f"{block}.attention.scores": scores, f"{block}.attention.weights": weights}
        steps |= {f"{block}.attention.mix": mix, f"{block}.attention.branch": branch}
        steps |= {f"{block}.attention.norm_out": h, f"{block}.feedforward.product": product}
        steps |= {f"{block}.feedforward.branch": down, block: x}
    steps["pooler"] = np.tanh(linear(x[0], w, "pooler.dense"))
    if "cls.predictions.bias" in w:
        h = gelu(linear(x, w, "cls.predictions.transform.dense"))
        h = layer_norm(h, w, "cls.predictions.transform.LayerNorm", eps)
        steps["head.logits"] = h @ w["embeddings.word_embeddings.weight"].T + w["cls.predictions.bias"]
    if "classifier.weight" in w:
        single = hf["architectures"] == ["JinaBertForSequenceClassification"]
        steps["head.logits"] = linear(steps["pooler"] if single else x, w, "classifier")
    if "qa_outputs.weight" in w:
        steps["head.logits"] = linear(x, w, "qa_outputs")
    return steps


JINA_CONFIG: HF = {
    "_name_or_path": "jinaai/jina-bert-implementation",
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 51,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 300,
    "model_max_length": 300,
    "model_type": "bert",
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "torch_dtype": "float64",
    "transformers_version": "4.26.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 61,
}
JINA_FILL = {
    "cls.predictions.transform.dense.weight": (36, 36),
    "cls.predictions.transform.dense.bias": (36,),
    "cls.predictions.transform.LayerNorm.weight": (36,),
    "cls.predictions.transform.LayerNorm.bias": (36,),
    "cls.predictions.bias": (61,),
}
JINA = Oracle(
    JINA_CONFIG,
    "JinaBertModel",
    "bert",
    jina_shapes,
    {
        "JinaBertForMaskedLM": JINA_FILL,
        "JinaBertForPreTraining": JINA_FILL,
        "JinaBertForSequenceClassification": {"classifier.weight": (2, 36), "classifier.bias": (2,)},
        "JinaBertForTokenClassification": {"classifier.weight": (2, 36), "classifier.bias": (2,)},
        "JinaBertForQuestionAnswering": {"qa_outputs.weight": (2, 36), "qa_outputs.bias": (2,)},
    },
    jina,
)


# --- NeoBERT ------------------------------------------------------------------------------------------


def neo_inner(hf: HF) -> int:
    inner = int(2 * hf["intermediate_size"] / 3)
    return 8 * ((inner + 7) // 8)


def neo_shapes(hf: HF) -> Shapes:
    width, inner = hf["hidden_size"], neo_inner(hf)
    yield "encoder.weight", (hf["vocab_size"], width)
    for i in range(hf["num_hidden_layers"]):
        layer = f"transformer_encoder.{i}"
        yield f"{layer}.qkv.weight", (3 * width, width)
        yield f"{layer}.wo.weight", (width, width)
        yield f"{layer}.ffn.w12.weight", (2 * inner, width)
        yield f"{layer}.ffn.w3.weight", (width, inner)
        yield f"{layer}.attention_norm.weight", (width,)
        yield f"{layer}.ffn_norm.weight", (width,)
    yield "layer_norm.weight", (width,)


def turn(x: Array) -> Array:
    """Neighbouring features as complex numbers, turned by the position; x (T, H, K)."""
    width = x.shape[-1]
    # The frequencies are float32 numbers as PyTorch computes them.
    exponents = torch.arange(0, width, 2)[: width // 2].float() / width
    frequencies = (1.0 / (10000.0**exponents)).double().numpy()
    angles = np.outer(np.arange(len(x)), frequencies)[:, None]
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack((z.real, z.imag), axis=-1).reshape(x.shape)


def neo(hf: HF, w: Tensors, ids: list[int], types: list[int]) -> Steps:
    heads, inner, eps = hf["num_attention_heads"], neo_inner(hf), hf["norm_eps"]
    x = w["encoder.weight"][ids]
    steps = {"embeddings": x}
    for i in range(hf["num_hidden_layers"]):
        layer, block = f"transformer_encoder.{i}", f"blocks.{i}"
        h = rms_norm(x, w[f"{layer}.attention_norm.weight"], eps)
        q, k, v = np.split(linear(h, w, f"{layer}.qkv").reshape(len(ids), heads, -1), 3, axis=-1)
        q, k = turn(q), turn(k)
        steps |= {f"{block}.attention.norm_in": h, f"{block}.attention.query_rotary": q}
        steps[f"{block}.attention.scores"], steps[f"{block}.attention.weights"], mix = attend(q, k, v)
        steps |= {f"{block}.attention.key_rotary": k, f"{block}.attention.mix": mix}
        x = x + linear(mix, w, f"{layer}.wo")
        steps[f"{block}.attention.add"] = x
        h = rms_norm(x, w[f"{layer}.ffn_norm.weight"], eps)
        both = linear(h, w, f"{layer}.ffn.w12")
        down = linear(silu(both[:, :inner]) * both[:, inner:], w, f"{layer}.ffn.w3")
        x = x + down
        steps |= {f"{block}.feedforward.norm_in": h, f"{block}.feedforward.branch": down, block: x}
    x = steps["norm"] = rms_norm(x, w["layer_norm.weight"], eps)
    if "decoder.weight" in w:
        steps["head.logits"] = linear(x, w, "decoder")
    if "classifier.weight" in w:
        steps["head.logits"] = linear(np.tanh(linear(x[0], w, "dense")), w, "classifier")
    return steps


NEO = Oracle(
    {
        "auto_map": {"AutoModel": "model.NeoBERT"},
        "classifier_init_range": 0.02,
        "decoder_init_range": 0.02,
        "dim_head": 12,
        "embedding_init_range": 0.02,
        "hidden_size": 36,
        "intermediate_size": 50,
        "kwargs": {"classifier_init_range": 0.02, "trust_remote_code": True},
        "max_length": 205,
        "model_type": "neobert",
        "norm_eps": 1e-05,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "pretrained_model_name_or_path": "google-bert/bert-base-uncased",
        "torch_dtype": "float64",
        "transformers_version": "4.48.2",
        "trust_remote_code": True,
        "vocab_size": 61,
    },
    "NeoBERT",
    "model",
    neo_shapes,
    {
        "NeoBERTLMHead": {"decoder.weight": (61, 36), "decoder.bias": (61,)},
        "NeoBERTForSequenceClassification": {
            "dense.weight": (36, 36),
            "dense.bias": (36,),
            "classifier.weight": (2, 36),
            "classifier.bias": (2,),
        },
    },
    neo,
)

ORACLES = {"jina_bert": JINA, "neobert": NEO}
