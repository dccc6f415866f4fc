"""Devices on the command line and in a pair.toml: one that is not there is one line, before a model is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from eventspec.cli import run
from eventspec.machine import unusable

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

ASK = ("--recording", "example:street", "--prompt", "is the car on the way", "--max-new-tokens", "4")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The checkpoint folders that were loaded."""
    seen: list[Path] = []
    monkeypatch.setattr("eventspec.pairs.folders.load_folder", lambda folder, how: seen.append(folder))
    return seen


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert run(list(map(str, words))) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    return told.err


def written(folders: Folders, place: Path, *words: object) -> Path:
    made = ("models", "pair", "--target", folders.video_llava, "--drafter", folders.eventgpt, "--out", place, *words)
    assert run(list(map(str, made))) == 0
    return place


@pytest.mark.parametrize(
    ("method", "device"),
    [(m, "cuda:7") for m in ("cross-modal", "auto", "autoregressive")] + [("auto", "meta"), ("auto", "lazy:1")],
)
def test_a_drafters_device_that_is_not_there(
    method: str, device: str, folders: Folders, tmp_path: Path, loaded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pair, filed = written(folders, tmp_path / "one"), written(folders, tmp_path / "two", "--drafter-device", device)
    capsys.readouterr()
    both = ("--target", folders.video_llava, "--drafter", folders.eventgpt)
    asked = [("--pair", pair, "--drafter-device", device), ("--pair", filed)]
    asked += [(*both, "--drafter-device", device)] if method == "cross-modal" else []
    for words in asked:
        said = refused(capsys, "generate", *words, "--method", method, *ASK)
        assert f"device '{device}' cannot be used (" in said and "choose cpu, or what `eventspec doctor` finds" in said
    assert loaded == []


def test_what_is_no_device_is_in_no_pair_file(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--target", folders.video_llava, "--drafter", folders.eventgpt, "--out", tmp_path / "pair")
    for option in ("--device", "--drafter-device"):
        assert "device 'cuda 1' is none" in refused(capsys, "models", "pair", *both, option, "cuda 1")
    assert not (tmp_path / "pair").exists()


def test_one_device_is_told_as_before(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A CPU is one device however it is named."""
    pair = written(folders, tmp_path / "pair", "--drafter-device", "cpu:0")
    for plan in ("one", "two"):
        capsys.readouterr()
        assert run(["generate", "--pair", str(pair), "--method", "cross-modal", "--device-plan", plan, "--json", *ASK]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["device_plan"], found["devices"]) == (plan, {"target": "cpu", "drafter": "cpu:0"})
        assert (found["timing_ms"]["transfer"], found["crossed"]) == (None, {"tensors": 0, "bytes": 0})


def test_a_torch_without_cuda_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    without = "the torch that is installed is built without CUDA"
    for cuda, hip, why in ((None, None, without), ("12.8", None, None), (None, "6", None)):
        (tmp_path / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {hip!r}\n")
        assert unusable("cuda:1") == why
    assert (unusable("cpu"), unusable("gpu")) == (None, "there is no such kind of device")


def test_all_devices_are_for_a_target_of_transformers(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pair's file too: no machine opens one of ours so. A drafter has one device, and a part is trained in one process."""
    both = ("models", "pair", "--target", folders.video_llava, "--drafter", folders.eventgpt, "--out", tmp_path / "pair")
    assert "device auto spreads checkpoints that transformers opens" in refused(capsys, *both, "--device", "auto")
    assert "device 'auto:1' is of no kind" in refused(capsys, *both, "--device", "auto:1")
    assert "only the target is spread over devices" in refused(capsys, *both, "--drafter-device", "auto")
    assert not (tmp_path / "pair").exists()
    pair = written(folders, tmp_path / "pair", "--drafter-device", "cpu")
    file = pair / "pair.toml"
    file.write_text(file.read_text().replace('drafter_device = "cpu"', 'drafter_device = "auto"'))
    capsys.readouterr()
    assert "only the target is spread over devices" in refused(capsys, "generate", "--pair", pair, *ASK)
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked = ("--questions", tmp_path / "qa.jsonl", "--out", tmp_path / "out")
    said = refused(capsys, "train", "heads", "--target", folders.video_llava, "--device", "auto", *asked)
    assert "for a target on all devices (device auto) a part is trained in one process, not in 2" in said


def test_a_drafter_of_no_known_kind_is_told_as_that(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folders.eventgpt, tmp_path / "odd")
    config = json.loads((tmp_path / "odd/config.json").read_text())
    (tmp_path / "odd/config.json").write_text(json.dumps({**config, "model_type": "nonsense"}))
    both = ("--target", folders.video_llava, "--drafter", tmp_path / "odd", "--out", tmp_path / "pair")
    assert "model_type is 'nonsense'" in refused(capsys, "models", "pair", *both)
