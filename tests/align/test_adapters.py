"""Adapters: the rows they make, who looks at whom, and what a config refuses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from eventspec.align.adapters import KINDS, ROLLED, Adapter, AdapterConfig, by_frame, kinds_to, pooled_layers, width_to
from eventspec.core import BadInput
from eventspec.models.configuration import BadField
from eventspec.models.eventgpt import EventGpt, EventGptConfig
from eventspec.models.video_llava import VideoLlavaConfig
from eventspec.nn import ClipConfig, LlamaConfig

TINY = EventGptConfig(ClipConfig(16, 32, 4, 2, 28, 14), LlamaConfig(30, 12, 24, 2, 2, 2, max_position_embeddings=64), images=3)
WIDTH, ROWS = 24, 3 + 5
TARGET = VideoLlavaConfig(
    ClipConfig(20, 32, 4, 2, 28, 14), LlamaConfig(30, WIDTH, 24, 2, 2, 2, max_position_embeddings=64), frames=4
)


def adapter_of(kind: str, seed: int = 0) -> Adapter:
    """With random weights throughout."""
    adapter = Adapter(AdapterConfig.of(kind, TINY, WIDTH))
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3, generator=generator)
    return adapter.eval()


def layers_of(adapter: Adapter, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, ROWS, 16, generator=generator) for _ in adapter.config.layers]


@pytest.mark.parametrize("kind", kinds_to("rows"))
def test_every_kind_makes_a_row_of_each_feature(kind: str) -> None:
    adapter = adapter_of(kind)
    layers = layers_of(adapter)
    rows = adapter(layers)
    assert rows.shape == (2, ROWS, WIDTH)
    assert torch.allclose(rows[:1], adapter([layer[:1] for layer in layers]), atol=1e-5), "recordings do not meet"
    moved = [layer.clone() for layer in layers]
    moved[-1][0, 4, 0] += 1.0
    changed = (adapter(moved) - rows).abs().amax(-1)[0] > 1e-5
    assert changed[4] == (kind != "constant")
    assert changed[:4].any() == (kind == "attention")
    assert changed[5:].any() == (kind in ("attention", "causal"))


@pytest.mark.parametrize("kind", kinds_to("rows"))
def test_only_the_causal_kind_says_the_row_behind(kind: str) -> None:
    adapter = adapter_of(kind)
    foreseen = adapter.predict_next(adapter.hidden(layers_of(adapter)))
    assert (foreseen is not None) == (kind == "causal")
    assert foreseen is None or foreseen.shape == (2, ROWS, WIDTH)


def test_the_slim_kind_has_the_shape_of_the_early_notes() -> None:
    """4096-256-4096, between two and ten million parameters; the others are larger."""
    sizes = {}
    large = EventGptConfig(TINY.vision, LlamaConfig(30, 4096, 24, 2, 32, 32, max_position_embeddings=64), images=3)
    with torch.device("meta"):
        for kind in ("slim", "bottleneck", "linear"):
            adapter = Adapter(AdapterConfig.of(kind, large, 4096, "features"))
            sizes[kind] = sum(parameter.numel() for parameter in adapter.parameters())
            shapes = [tuple(parameter.shape) for name, parameter in adapter.named_parameters() if name.endswith("weight")]
            assert kind != "slim" or {(256, 4096), (4096, 256)} <= set(shapes)
    assert 2_000_000 < sizes["slim"] < 10_000_000 < sizes["linear"] < sizes["bottleneck"]


def test_a_gate_mixes_layers_by_shares_that_are_one_together() -> None:
    adapter = adapter_of("fused")
    assert adapter.config.layers == (2, 3, 4)
    for block in adapter.blocks:
        for parameter in block.parameters():
            torch.nn.init.zeros_(parameter)
    for enter in adapter.enter:
        assert isinstance(enter, torch.nn.Linear)
        torch.nn.init.zeros_(enter.weight)
        torch.nn.init.ones_(enter.bias)
    assert torch.allclose(adapter.hidden(layers_of(adapter)), torch.ones(2, ROWS, WIDTH))


@torch.no_grad()
def test_layers_are_pooled_as_the_event_model_pools() -> None:
    torch.manual_seed(0)
    model = EventGpt(TINY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2)
    pixels = torch.randn(6, 3, 28, 28)
    (last,) = pooled_layers(model, pixels, (4,))
    assert last.shape == (2, ROWS, 16)
    whole = model.tower(pixels).unflatten(0, (2, 3))
    assert torch.allclose(last, torch.cat((whole.mean(2), whole.mean(1)), 1), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_is_read_as_it_was_written(kind: str) -> None:
    for output in KINDS[kind].outputs:
        config = AdapterConfig.of(kind, TINY, width_to(TARGET, output), output)
        assert AdapterConfig.from_json(config.as_json()) == config
        config.check(TINY, TARGET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "magic"}, "one of linear"),
        ({"output": "words"}, "rows or tower or features"),
        (
            {"output": "features", "kind": "causal"},
            "one of linear, slim, bottleneck, blocks, wide, cross, cached, fused",
        ),
        ({"output": "features"}, "12, the event model's width"),
        ({"layers": []}, "ascending inputs"),
        ({"layers": [4, 3]}, "ascending inputs"),
        ({"layers": [True]}, "ascending inputs"),
        ({"layers": [3]}, r"\[4\] of this event model"),
        ({"reads": 0}, "a whole number"),
        ({"reads": 32}, "16, the event model's width"),
        ({"width": 1 << 20}, "a whole number"),
        ({"width": 23}, "a multiple of 4"),
        ({"width": 48}, "24, the target's hidden_size"),
    ],
)
def test_a_config_that_fits_nothing_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadField, match=message):
        AdapterConfig.from_json({**AdapterConfig.of("linear", TINY, WIDTH).as_json(), **change}).check(TINY, TARGET)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown adapter to rows 'magic': choose from linear, slim, bottleneck"):
        AdapterConfig.of("magic", TINY, WIDTH)
    with pytest.raises(BadInput, match="unknown adapter to features 'attention'"):
        AdapterConfig.of("attention", TINY, WIDTH, "features")


def test_to_features_a_gate_mixes_what_was_computed_and_what_was_read() -> None:
    config = AdapterConfig.of("fused", TINY, WIDTH, "features")
    assert (config.layers, config.reads, config.width) == ((1, 2), 12, WIDTH)
    adapter = Adapter(config).eval()
    hidden, rows = torch.randn(7, 12), torch.randn(7, 12)
    both = adapter([hidden, rows])
    assert both.shape == (7, WIDTH)
    assert torch.allclose(both[3:4], adapter([hidden[3:4], rows[3:4]]), atol=1e-5), "tokens do not meet"
    assert not torch.allclose(both, adapter([hidden, rows.flip(0)]), atol=1e-3)
    AdapterConfig.from_json(config.as_json()).check(TINY, TARGET)


def test_features_are_those_of_several_layers_where_that_is_asked_for() -> None:
    deep = EventGptConfig(TINY.vision, LlamaConfig(30, 12, 24, 32, 2, 2, max_position_embeddings=64), images=3)
    layers = {reads: AdapterConfig.of("linear", deep, WIDTH, "features", reads) for reads in ("last", "penultimate", "levels")}
    assert {reads: config.taps for reads, config in layers.items()} == {"last": (), "penultimate": (31,), "levels": (2, 16)}
    for config in layers.values():
        config.check(deep, TARGET)
    adapter = Adapter(layers["levels"]).eval()
    assert adapter([torch.randn(7, 12) for _ in range(3)]).shape == (7, WIDTH)
    with pytest.raises(BadField, match=r"\[1\] or \[33\] or \[1, 4, 18\] of this event model"):
        AdapterConfig.from_json({**layers["last"].as_json(), "layers": [7]}).check(deep, TARGET)


def test_a_cached_kind_looks_at_rows_of_the_target_where_they_are_there() -> None:
    adapter = adapter_of("cached")
    layers, seen = layers_of(adapter), torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(3))

    def beside(rows: torch.Tensor) -> torch.Tensor:
        return adapter(layers, adapter.look(rows))

    found = beside(seen)
    assert not torch.allclose(adapter(layers), found, atol=1e-3)
    second = adapter([layer[1:] for layer in layers], adapter.look(seen[1:]))
    assert torch.allclose(found[1:], second, atol=1e-5), "recordings do not meet"
    assert torch.allclose(found, beside(seen.flip(1)), atol=1e-4), "rows of the target have no order of their own"
    one = adapter([layer[0] for layer in layers], adapter.look(seen[0]))
    assert torch.allclose(found[0], one, atol=1e-5), "one recording alone"
    learned = adapter_of("cross")
    same = learned(layers, learned.look(seen))
    assert torch.equal(learned(layers), same), "the control: a learned bank sees nothing of the target"


def test_features_follow_each_other_through_the_fusion() -> None:
    """h(t + k) is joined from the adapted feature and h(t + k - 1), with no token between."""
    adapter = Adapter(AdapterConfig.of("autoregressive", TINY, WIDTH, "features")).eval()
    (inputs,) = [torch.randn(3, 12)]
    found = adapter.rolled([inputs], ROLLED)
    assert len(found) == ROLLED and adapter.fusion is not None
    assert torch.equal(found[0], adapter([inputs]))
    for before, after in pairwise(found):
        assert torch.equal(after, adapter.fusion(torch.cat((found[0], before), -1)))
    assert len(adapter_of("linear").rolled([torch.randn(2, ROWS, 16)], ROLLED)) == 1, "others name one token"


def test_a_frame_has_its_share_of_the_pictures_around_it() -> None:
    pictures = torch.arange(5.0)[:, None, None].expand(5, 1 + 4, 2).contiguous()
    frames = by_frame(pictures, 5, 8, 1 + 4)
    assert frames.shape == (8, 5, 2)
    wanted = [max(0.0, min(4.0, (frame + 0.5) * 5 / 8 - 0.5)) for frame in range(8)]
    assert torch.allclose(frames[:, 0, 0], torch.tensor(wanted))
    assert torch.allclose(by_frame(pictures, 5, 5, 5), pictures), "as many frames as pictures: one each"
    assert by_frame(pictures[:1], 1, 3, 1 + 9).shape == (3, 10, 2), "on the grid of the other tower"
