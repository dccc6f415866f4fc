"""What a model attends to, against its own forward; and which rows stay."""

from __future__ import annotations

import pytest
import torch

from eventspec.compress.reductions import attention_of_last, two_stages
from eventspec.nn import Llama, LlamaConfig

SIZES = LlamaConfig(40, 16, 24, 3, 4, 2, max_position_embeddings=64)


@torch.no_grad()
def test_attention_of_the_last_row_is_the_layers_own() -> None:
    """Values that name their row make the layer's attention say where it looked."""
    torch.manual_seed(0)
    model = Llama(SIZES).double().eval()
    x = torch.randn(9, 16, dtype=torch.float64)
    _, tapped = model.tapped(x[None], torch.arange(9), 9, None, (1,))
    shares = attention_of_last(model, 1, tapped[0][0])
    layer = model.decoder_layer(1)
    queries, keys, _ = layer.project(layer.normed(tapped[0][0]), model.cos[:9], model.sin[:9])
    marks = torch.eye(9, dtype=torch.float64).expand(4, 9, 9)
    looked = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1), keys.repeat_interleave(2, 1).transpose(0, 1), marks, is_causal=True, scale=4**-0.5 / 1.0
    )
    torch.testing.assert_close(shares, looked[:, -1].mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("shares", "kept", "places"),
    [
        ([0.1, 0.5, 0.1, 0.1, 0.1, 0.1], 0.5, [0, 1, 5]),  # one row has 40 % of the attention, two are spaced over the rest
        ([0.3, 0.3, 0.2, 0.1, 0.1], 0.4, [0, 1]),  # two are needed for 40 %: nothing is left to space
        ([1.0], 0.1, [0]),
        ([0.2] * 5, 0.01, [0]),
        ([0.2] * 5, 1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_the_most_attended_stay_and_evenly_spaced_ones(shares: list[float], kept: float, places: list[int]) -> None:
    assert two_stages(torch.tensor(shares), kept).tolist() == places
