"""A packer: which rows it makes of a frame, what each of them sees, and what its folder refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eventspec.ask import generate
from eventspec.compress import Packer, PackerConfig
from eventspec.core import BadCheckpoint, BadInput
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig
from eventspec.nn import ClipConfig, LlamaConfig
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.pairs.trained import Packers, load_packer, save_packer
from eventspec.recordings import Recording

LANGUAGE = LlamaConfig(30, 24, 32, 2, 2, 2, max_position_embeddings=64)
TINY = VideoLlavaConfig(ClipConfig(16, 32, 5, 2, 56, 7), LANGUAGE, frames=2, vision_layer=-2)
QUESTION = "How many road users are visible?"


@pytest.fixture(scope="module")
def target() -> VideoLlava:
    torch.manual_seed(1)
    model = VideoLlava(TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2)
    return model.requires_grad_(False).eval()


def packer_of(target: VideoLlava, scale: int, seed: int = 2) -> Packer:
    """With random weights throughout."""
    packer = Packer(PackerConfig.of(target.config, scale), target.config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in packer.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2, generator=generator)
    return packer.requires_grad_(False).eval()


def layers_of(target: VideoLlava, packer: Packer) -> list[torch.Tensor]:
    pixels = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(3))
    return target.tower.outputs(pixels, packer.config.layers)


def test_several_layers_of_a_tower_are_what_one_at_a_time_gives(target: VideoLlava) -> None:
    pixels = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(3))
    for layer, found in zip((0, 2, 4, 5), target.tower.outputs(pixels, (0, 2, 4, 5)), strict=True):
        assert torch.equal(found, target.tower(pixels, layer - 6))


def test_it_reads_evenly_spaced_layers_up_to_the_targets_own(target: VideoLlava) -> None:
    assert PackerConfig.of(TINY, 2) == PackerConfig(2, (1, 2, 3, 4))
    deep = replace(TINY, vision=replace(TINY.vision, num_hidden_layers=24))
    assert PackerConfig.of(deep, 2).layers == (5, 11, 17, 23)


@pytest.mark.parametrize(("scale", "rows"), [(2, 17), (4, 5), (8, 2)])
def test_it_starts_as_the_targets_projector_on_fewer_patches(target: VideoLlava, scale: int, rows: int) -> None:
    packer = packer_of(target, scale)
    packer.begin_as(target)
    layers = layers_of(target, packer)
    found = packer(layers)
    assert found.shape == (2, rows, 24)
    cls, patches = layers[-1][:, :1], layers[-1][:, 1:]
    torch.testing.assert_close(found[:, :1], target.projector(cls))
    # Bilinear without smoothing: the mean of the four patches in the middle of a square.
    middle = packer.squares(patches).unflatten(2, (scale, scale))[:, :, scale // 2 - 1 : scale // 2 + 1]
    middle = middle[:, :, :, scale // 2 - 1 : scale // 2 + 1].mean((2, 3))
    torch.testing.assert_close(found[:, 1:], target.projector(middle), rtol=1e-4, atol=1e-5)


def test_squares_lie_in_raster_order(target: VideoLlava) -> None:
    squares = packer_of(target, 4).squares(torch.arange(64)[None, :, None])[0, :, :, 0]
    assert squares[:, 0].tolist() == [0, 4, 32, 36]
    assert squares[1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31]


@pytest.mark.parametrize("scale", [2, 4])
def test_a_row_sees_its_own_square_alone(target: VideoLlava, scale: int) -> None:
    packer = packer_of(target, scale)
    layers = layers_of(target, packer)
    before = packer(layers)
    corner = 3 * 8 + 6  # row 3, column 6: the corner of a square of 4, so that bilinear queries do not see it
    layers[0] = layers[0].clone()
    layers[0][0, 1 + corner] += 3.0
    changed = (packer(layers) - before).abs().amax(-1) > 1e-6
    square = 1 + (3 // scale) * (8 // scale) + 6 // scale
    assert changed.nonzero().tolist() == [[0, square]]


@pytest.mark.parametrize("scale", [0, 1, 3, 16])
def test_a_scale_that_the_grid_does_not_have_is_refused(scale: int) -> None:
    with pytest.raises(BadInput, match="does not divide the 8 x 8 patches of a frame: choose one of 2, 4, 8"):
        PackerConfig.of(TINY, scale)


def test_a_folder_gives_back_what_was_saved_and_knows_its_target(target: VideoLlava, tmp_path: Path) -> None:
    packer = packer_of(target, 2)
    save_packer(packer, tmp_path, target)
    layers = layers_of(target, packer)
    torch.testing.assert_close(load_packer(tmp_path, target)(layers), packer(layers), rtol=1e-2, atol=1e-2)
    other = VideoLlava(TINY)
    other.load_state_dict(target.state_dict())
    load_packer(tmp_path, other)
    with torch.no_grad():
        other.tower.blocks[0].fc1.weight[0, 0] += 1.0  # type: ignore[union-attr, operator, index]
    with pytest.raises(BadCheckpoint, match=r"was trained for target [0-9a-f]{16}, this one is"):
        load_packer(tmp_path, other)


@pytest.mark.parametrize("wrong", [{"scale": 3}, {"scale": "2"}, {"layers": [4, 1]}, {"layers": [1, 2]}, {"layers": 4}])
def test_a_config_that_is_no_packers_is_refused_in_one_line(target: VideoLlava, tmp_path: Path, wrong: object) -> None:
    save_packer(packer_of(target, 2), tmp_path, target)
    config = json.loads((tmp_path / "config.json").read_text())
    assert isinstance(wrong, dict)
    (tmp_path / "config.json").write_text(json.dumps({**config, **wrong}))
    with pytest.raises(BadCheckpoint, match=r"config\.json: (scale|layers) is .*wanted") as told:
        load_packer(tmp_path, target)
    assert "\n" not in str(told.value)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


def with_packers(pair: Pair, packers: Packers | None) -> Pair:
    return replace(pair, parts=replace(pair.parts, packers=packers))


def test_packed_answers_are_labelled_lossy(pair: Pair, tmp_path: Path) -> None:
    assert pair.parts.packers is not None
    model = pair.parts.packers.target
    packer = Packer(PackerConfig.of(model.config, 4), model.config)
    packer.begin_as(model)
    save_packer(packer, tmp_path / "4", model)
    packed = with_packers(pair, replace(pair.parts.packers, folders={"4": tmp_path / "4"})).with_compression("packer:4")
    assert not packed.method("compressed-target").target.lossless
    recording = Recording.open(DATA / "clips/street_scene")
    result = generate(packed, recording, QUESTION, "compressed-target", max_new_tokens=4)
    assert not result.lossless
    assert result.visual_tokens == 8 * (1 + 4)
    assert any("packer:4: lossy" in note for note in result.trace.notes)
    assert generate(packed, recording, QUESTION, "autoregressive", max_new_tokens=4).visual_tokens == 520


def test_a_packer_that_was_not_trained_is_refused(pair: Pair) -> None:
    assert pair.parts.packers is not None
    without = with_packers(pair, Packers(pair.parts.packers.frames, {}))
    with pytest.raises(BadInput, match=r"no trained packer of scale 2, there is none: train one with `eventspec train packer`"):
        without.with_compression("packer:2")
    with pytest.raises(BadInput, match="there is no trained packer"):
        with_packers(pair, None).with_compression("packer:2")
    with pytest.raises(BadInput, match="cannot be read"):
        pair.with_compression("packer:two")
