"""Small trainings for a monitor to watch."""

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.lab.fresh import fresh, random_tokens
from addnorm.lab.monitor import Monitor
from addnorm.lab.variants import build
from addnorm.nn.encoder import Encoder

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "vocabulary": 40, "outputs": 7}
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 40,
}


def small(name: str = "post-norm", depth: int = 2, dropout: float = 0.0, dtype: Any = torch.float32) -> Encoder:
    config = build(name, depth, **SMALL)
    if dropout:
        blocks = tuple(
            block.replace(
                attention=block.attention.replace(dropout=dropout, weights_dropout=dropout),
                feedforward=block.feedforward.replace(dropout=dropout),
            )
            for block in config.blocks
        )
        config = config.replace(blocks=blocks)
    return fresh(config, 0, dtype).train()


def loss_of(encoder: Encoder, batch: Batch) -> Tensor:
    logits = encoder.read(encoder(batch), batch)
    assert logits is not None
    return F.cross_entropy(logits, batch.ids % 7)


def steps(encoder: Encoder, optimiser: Any, monitor: Monitor | None, count: int, first: int = 0) -> list[Any]:
    records = []
    for i in range(first, first + count):
        loss = loss_of(encoder, random_tokens(3, 5, 40, i))
        loss.backward()
        optimiser.step()
        records.append(monitor.step(loss) if monitor else None)
        optimiser.zero_grad()
    return records


def hooks_of(module: nn.Module, *optimisers: Any) -> int:
    held = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
    held += [len(p._post_accumulate_grad_hooks or ()) for p in module.parameters()]
    held += [len(o._optimizer_step_pre_hooks) + len(o._optimizer_step_post_hooks) for o in optimisers]
    return sum(held)


def hf_bert(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(**(TINY | changes))
    config._attn_implementation = "eager"
    return transformers.BertForMaskedLM(config).train()
