"""Our vision tower is transformers' CLIP tower, at every layer, without the final norm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from eventspec.models.weights import clip_sources
from eventspec.nn import ClipConfig, ClipViT


def towers(act: str, randomised: Callable[[nn.Module, int], None]) -> tuple[ClipViT, CLIPVisionModel]:
    config = ClipConfig(32, 64, 3, 4, image_size=28, patch_size=7, hidden_act=act)
    ours = ClipViT(config).requires_grad_(False).eval()
    randomised(ours, 0)
    theirs = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=28,
            patch_size=7,
            hidden_act=act,
        )
    ).eval()
    prefix = next(iter(theirs.state_dict())).split("embeddings.")[0]
    own, state = dict(ours.named_parameters()), {}
    for name, parts in clip_sources(config, "", prefix).items():
        pieces = own[name].split([rows or len(own[name]) for _, rows in parts])
        state.update({part: piece for (part, _), piece in zip(parts, pieces, strict=True)})
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("position_ids" in name for name in missing)
    return ours, theirs


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("layer", [-1, -2])
@torch.inference_mode()
def test_a_layers_output_is_transformers_hidden_state(
    act: str, layer: int, randomised: Callable[[nn.Module, int], None]
) -> None:
    ours, theirs = towers(act, randomised)
    pixels = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    expected = theirs(pixels, output_hidden_states=True).hidden_states[layer]
    torch.testing.assert_close(ours(pixels, layer), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_blocks_behind_the_wanted_layer_are_not_run(randomised: Callable[[nn.Module, int], None]) -> None:
    ours, _ = towers("quick_gelu", randomised)
    for parameter in ours.blocks[-1].parameters():
        parameter.fill_(torch.nan)
    assert ours(torch.ones(1, 3, 28, 28), -2).isfinite().all()


@torch.inference_mode()
def test_images_are_encoded_each_on_its_own(randomised: Callable[[nn.Module, int], None]) -> None:
    ours, _ = towers("quick_gelu", randomised)
    pixels = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(2))
    one_by_one = torch.cat([ours(image[None]) for image in pixels])
    torch.testing.assert_close(ours(pixels), one_by_one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
def test_training_runs_the_blocks_that_answers_run(act: str, randomised: Callable[[nn.Module, int], None]) -> None:
    ours, _ = towers(act, randomised)
    pixels = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = ours.outputs(pixels, (0, 1, 3))
    found = ours.train().requires_grad_().outputs(pixels, (0, 1, 3))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    found[-1].sum().backward()
    assert all(parameter.grad is not None for parameter in ours.blocks.parameters())
