"""Rows of frames on disk: found again, told apart by model, and computed anew where a file cannot be relied on."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eventspec.ask import generate
from eventspec.core import BadInput
from eventspec.models import features
from eventspec.models.features import FeatureCache, FeatureFolder, content_key
from eventspec.pairs import load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

Frame = np.ndarray[Any, np.dtype[np.uint8]]


class Tower:
    """Four rows of a frame, and how often it was asked."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.asked = scale, 0

    def __call__(self, frames: Frame) -> Tensor:
        self.asked += 1
        return torch.from_numpy(frames[:, :4, 0, 0].astype(np.float32).repeat(3, 0)).T * self.scale


def frame(value: int) -> Frame:
    return np.full((8, 8, 3), value, np.uint8)


def rows(cache: FeatureCache, tower: Tower, value: int) -> Tensor:
    return cache.rows(frame(value), lambda: tower(frame(value)[None]))


def test_what_was_stored_is_found_by_another_process(tmp_path: Path) -> None:
    tower = Tower()
    first = FeatureCache(1 << 20, FeatureFolder(tmp_path, tower))
    wanted = [rows(first, tower, value) for value in (1, 2)]
    before = tower.asked
    second = FeatureCache(1 << 20, FeatureFolder(tmp_path, tower))
    for value, own in zip((1, 2), wanted, strict=True):
        assert torch.equal(rows(second, tower, value), own)
    assert tower.asked == before + 1, "the test picture only"
    assert not second.notes


def test_another_model_has_another_folder(tmp_path: Path) -> None:
    for tower in (Tower(), Tower(1.5)):
        rows(FeatureCache(1 << 20, FeatureFolder(tmp_path, tower)), tower, 1)
        assert tower.asked == 2
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_file_that_was_tampered_with_is_found_and_computed_anew(damage: str, tmp_path: Path) -> None:
    tower = Tower()
    wanted = rows(FeatureCache(1 << 20, FeatureFolder(tmp_path, tower)), tower, 7)
    path = next(tmp_path.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b"", "text": b"x" * 500}[damage])
    for note in ("is damaged: the frame was encoded again", ""):
        cache = FeatureCache(1 << 20, FeatureFolder(tmp_path, tower))
        assert torch.equal(rows(cache, tower, 7), wanted)
        assert " ".join(cache.notes).endswith(note)
        assert bool(cache.notes) == bool(note), "it was mended"


def test_the_file_of_another_frame_is_told_apart(tmp_path: Path) -> None:
    tower = Tower()
    cache = FeatureCache(1 << 20, FeatureFolder(tmp_path, tower))
    wanted = [rows(cache, tower, value) for value in (1, 2)]
    one, two = (next(tmp_path.rglob(f"{content_key(frame(value))}.safetensors")) for value in (1, 2))
    one.write_bytes(two.read_bytes())
    cache = FeatureCache(1 << 20, FeatureFolder(tmp_path, tower))
    assert torch.equal(rows(cache, tower, 1), wanted[0])
    assert len(cache.notes) == 1


def test_several_may_keep_the_same_frame(tmp_path: Path) -> None:
    tower = Tower()
    caches = [FeatureCache(1 << 20, FeatureFolder(tmp_path, tower)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for value in range(20):
            found = list(pool.map(partial(rows, tower=tower, value=value), caches))
            assert all(torch.equal(one, found[0]) for one in found)
    assert not [note for cache in caches for note in cache.notes]


def test_rows_larger_than_the_limit_are_not_kept() -> None:
    cache, tower = FeatureCache(1), Tower()
    first = rows(cache, tower, 3)
    assert torch.equal(rows(cache, tower, 3), first)
    assert tower.asked == 2


def test_a_frame_may_take_the_rows_of_another_and_both_count() -> None:
    cache, tower = FeatureCache(1 << 20), Tower()
    first = rows(cache, tower, 3)
    assert cache.share(frame(4), frame(3))
    assert not cache.share(frame(5), frame(6)), "nobody has seen it"
    assert torch.equal(rows(cache, tower, 4), first)
    assert tower.asked == 1
    assert cache.used == 2 * first.nbytes
    assert not cache.share(frame(4), frame(3)), "it has some already"
    assert cache.used == 2 * first.nbytes


def test_a_disk_without_space_costs_what_would_have_been_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = Tower()
    cache = FeatureCache(1 << 20, FeatureFolder(tmp_path, tower))

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(features, "save_file", full)
    assert torch.equal(rows(cache, tower, 1), tower(frame(1)[None]))
    rows(cache, tower, 2)
    assert cache.notes == [
        f"{cache.folder and cache.folder.folder} takes no more (No space left on device): kept in memory only"
    ]
    assert not list(tmp_path.rglob("*.*"))


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="name another folder"):
        FeatureFolder(tmp_path / "file", Tower())


def test_a_recording_that_was_opened_before_is_not_encoded_again(tmp_path: Path) -> None:
    pair, recording = load_pair("nano", "one"), Recording.open(DATA / "clips/street_scene")
    question = "How many road users are visible?"
    plain = generate(pair, recording, question, "autoregressive", max_new_tokens=12)
    for _ in range(2):
        answer = pair.open(recording, store=tmp_path).ask(question, "prior", max_new_tokens=12)
        assert answer.token_ids == plain.token_ids
    assert len(list(tmp_path.rglob("*.safetensors"))) == 8
    path = next(tmp_path.rglob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    answer = pair.open(recording, store=tmp_path).ask(question, "prior", max_new_tokens=12)
    assert answer.token_ids == plain.token_ids
    assert any("is damaged" in note for note in answer.trace.notes)
    assert content_key(frame(1)) != content_key(frame(2))
