"""A decoder's layers on a GPU: the same passes as on a CPU, until captured graphs take their place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from eventspec.nn.backend import LaidOut
from eventspec.nn.cpu.products import works
from eventspec.nn.decode import attention
from eventspec.nn.layer import Layer, layer_weights


class CudaLayers:
    """As `weights.Backend`."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        # cuDNN's attention is planned for every number of rows, which no two steps of an answer have alike: 40 ms each on an
        # H200, where a step takes 6. The other kernels need no plan.
        torch.backends.cuda.enable_cudnn_sdp(False)
        first, self.plain = layers[0], [layer_weights(layer) for layer in layers]
        weight = self.plain[0].qkv
        self.chains = knows_chains(weight.device, weight.dtype, first.heads, first.kv_heads, first.head_dim)

    def weights(self, rows: int) -> LaidOut:
        """As `Backend.weights`."""
        return LaidOut(self.plain, False)

    def whole(self, rows: int) -> int:
        """As `Backend.whole`: nothing is filled up."""
        return rows


@functools.cache
@torch.inference_mode()
def knows_chains(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether flash attention, called by its name, takes several rows for a chain after the cached ones. It is for half
    precision, not on every GPU, and elsewhere (ROCm) its causal mask begins at the first key instead of ending at the last."""
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    drawn = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(count, rows, head_dim, generator=drawn).to(device, dtype)
        for count, rows in ((heads, 5), (kv_heads, 12), (kv_heads, 12))
    )
    hidden = torch.ones(5, 12, dtype=torch.bool, device=device).triu_(8)
    mask = torch.zeros(5, 12, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    wanted = attention(queries, keys, values, mask, 0)
    return works(lambda: attention(queries, keys, values, None, 0), wanted)
