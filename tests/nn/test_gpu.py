"""What only a GPU can show; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.cuda.decoder import knows_chains


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_a_chain_behind_cached_rows_is_read_as_under_a_mask(kv_heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Llama(LlamaConfig(100, 512, 256, 3, 4, kv_heads)).to("cuda", dtype).requires_grad_(False).eval()
    runner, rows, found = model.runner(), torch.randn(150, 512, device="cuda").to(dtype), []
    for chains in (runner.backend.chains, False):
        runner.backend.chains, cache = chains, model.new_cache(300)
        model.step(rows[:100], cache), cache.keep(100, [])
        found.append(model.step(rows[100:117], cache)[0].float())
    assert float((found[0] - found[1]).abs().max()) < 0.02 * float(found[1].abs().max())


def test_nowhere_else_does_a_kernel_know_chains() -> None:
    assert not knows_chains(torch.device("cpu"), torch.float32, 4, 4, 16)
    assert not knows_chains(torch.device("cpu"), torch.bfloat16, 4, 4, 16)
