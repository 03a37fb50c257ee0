"""What the engine asks of PyTorch's attention of variable lengths; not run on a GPU so far."""

import pytest
import torch
from torch.nn.attention import varlen

from addnorm.engine.scores import attend_packed
from tests.nn.drawn import batch_of


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_the_arguments_mean_what_the_formula_means(
    monkeypatch: pytest.MonkeyPatch, window: int | None, key_heads: int
) -> None:
    def reference(q, k, v, at_q, at_k, longest_q, longest_k, *, scale, window_size, enable_gqa):  # type: ignore[no-untyped-def]
        """As its documentation says: shapes (N, H, K), positions from 0, -1 for no window."""
        assert at_q.dtype == at_k.dtype == torch.int32
        assert longest_q == longest_k == int(at_q.diff().max())
        assert enable_gqa == (key_heads != 4)
        out = torch.empty_like(q)
        for a, b in zip(at_q[:-1].tolist(), at_q[1:].tolist(), strict=True):
            place = torch.arange(b - a)
            apart = place[None, :] - place[:, None]
            keys, values = (part[a:b].repeat_interleave(4 // part.shape[1], 1) for part in (k, v))
            s = torch.einsum("qhk,nhk->hqn", q[a:b], keys) * scale
            if window_size != (-1, -1):
                s = s.masked_fill((apart < -window_size[0]) | (apart > window_size[1]), float("-inf"))
            out[a:b] = torch.einsum("hqn,nhk->qhk", s.softmax(-1), values)
        return out

    monkeypatch.setattr(varlen, "varlen_attn", reference)
    batch = batch_of(3, 1, 7)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(11, heads, 8, generator=generator) for heads in (4, key_heads, key_heads))
    mixed = attend_packed(q, k, v, 0.3, window, batch)
    for span in batch.spans:
        place = torch.arange(len(q[span]))
        keys, values = (part[span].repeat_interleave(4 // key_heads, 1).transpose(0, 1) for part in (k, v))
        s = q[span].transpose(0, 1) @ keys.transpose(1, 2) * 0.3
        if window is not None:
            s = s.masked_fill((place - place[:, None]).abs() > window, float("-inf"))
        assert torch.allclose(mixed[span], (s.softmax(-1) @ values).transpose(0, 1), atol=1e-6)
