"""What an engine has in the place of the embeddings and of the sentence pooling."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.batch import Batch
from addnorm.engine import compiled
from addnorm.engine.compiled.around import MODES, Lookup, pool
from addnorm.nn.embeddings import Embeddings
from addnorm.nn.heads import SentencePooling


class FastEmbeddings(Embeddings):
    """`Embeddings` of nothing but float32 tables and a norm, by one kernel. Shapes: Batch → (N, D)."""

    lookup: Lookup

    def forward(self, batch: Batch) -> Tensor:
        """Errors: as those of `Embeddings`."""
        places = [batch.ids]
        if self.types is not None:
            places.append(batch.types)
        if self.positions is not None:
            places.append(self._positions(batch))
        x = self.lookup(*places)
        if x is None:
            return super().forward(batch)  # which says what is not in the tables
        return x if self.projection is None else self.projection(x)


def tables_of(embeddings: Embeddings) -> list[Tensor] | None:
    """The tables in the order of their places; None where there is more to do than to add them, or no kernel."""
    if any(getattr(embeddings, part) is not None for part in ("dropped", "trigrams", "merge", "tasks")):
        return None
    parts = (embeddings.tokens, embeddings.types, embeddings.positions)
    found: list[Tensor] = []
    for part in (part for part in parts if part is not None):
        if type(part) is not nn.Embedding or not compiled.takes(part.weight) or not part.weight.is_contiguous():
            return None
        found.append(part.weight)
    return found if all(table.dtype == torch.float32 for table in found) else None


class FastPooling(SentencePooling):
    """`SentencePooling` by one kernel, also of a bfloat16 stream. Shapes: (N, D) → (B, D · number of modes)."""

    def forward(self, x: Tensor, batch: Batch, normalize: bool | None = None) -> Tensor:
        """`normalize`: None follows the checkpoint."""
        if not compiled.takes(x) or not x.is_contiguous() or not MODES.keys() >= set(self.modes):
            return super().forward(x.float() if x.dtype == torch.bfloat16 else x, batch, normalize)
        follow = self.normalize if normalize is None else normalize
        if not self.dense:
            return pool(x, batch.offsets, self.modes, follow)
        pooled = self.dense(pool(x, batch.offsets, self.modes, False))
        return F.normalize(pooled, dim=-1) if follow else pooled
