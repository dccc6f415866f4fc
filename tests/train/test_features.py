"""Paired states: they are what adapters read and should write, at the same moments and tokens, whole on disk or not there."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from eventspec.align.adapters import Adapter, AdapterConfig, Output
from eventspec.core import BadInput
from eventspec.events.representations import red_blue_classes
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import bundled
from eventspec.pairs.pair_file import PairFile
from eventspec.recordings.qa import read_questions
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording
from eventspec.train import features
from eventspec.train.adapting import FeatureTraining, RowTraining
from eventspec.train.data import Branch, Clips, Questions
from eventspec.train.frozen import FrozenDrafter, FrozenTarget
from eventspec.train.material import Material, Models, Told
from eventspec.train.states import Entry, Shards, States, shard

NANO = bundled()["nano"]
ANSWERS = ([40, 50, 60, 70, 2], [41, 2, 2], [42, 43, 44, 2])


class SomeClips(Clips):
    """As `train.data.Clips`, of a few clips in memory."""

    def __init__(self, count: int) -> None:
        self.folder, frames, classes = Path("clips"), [], []
        for number in range(count):
            clip = make_clip(split_seed("test", 43, number))
            recording = as_recording(clip, "clip")
            assert recording.events is not None
            frames.append(clip.frames)
            classes.append(red_blue_classes(recording.events.slice(recording.span), 5))
        self.columns = {name: torch.from_numpy(np.stack(rows)) for name, rows in (("frames", frames), ("classes", classes))}

    def column(self, name: str, index: np.ndarray[Any, Any]) -> torch.Tensor:
        return self.columns[name][index]


@pytest.fixture(scope="module")
def material() -> Material:
    """Nano's models, one clip to learn from and two that are kept back, two answers about each."""
    target, drafter = load_video_llava(NANO / "target"), load_eventgpt(NANO / "drafter")
    questions, clips = Questions(Tokenizer.from_file(str(NANO / "tokenizer.json"))), SomeClips(3)
    asked = [questions.question(text) for text in ("What is ahead?", "Is anybody crossing the road?")]
    answers = {
        number: [Branch(text, ANSWERS[(number + at) % 3]) for at, text in enumerate(asked)] for number in range(len(ANSWERS))
    }

    def part(*numbers: int) -> Told:
        return Told(clips, {number: answers[number] for number in numbers}, lambda number: pytest.fail("nobody is asked"))

    before = questions.prefix()
    models = Models(PairFile.read(NANO), target.language, target, drafter)
    return Material(models, before, part(0), part(1, 2), before)


@pytest.fixture(scope="module")
def writing(material: Material) -> Iterator[Any]:
    """Writes the states of the made-up material into a folder, a shard a recording."""

    def known(*given: Any, begin: Any) -> Material:
        begin(material.models)
        return material

    def write(out: Path, stored: str = "float16", limit: int = 0) -> dict[str, Any]:
        return features.extract("nano", None, limit, out, out / "work", stored, lambda *report: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "SHARD", 1)
        patch.setattr(features, "material_of", known)
        yield write


@pytest.fixture(scope="module")
def whole(writing: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States that a run wrote to the end."""
    folder: Path = tmp_path_factory.mktemp("whole") / "states"
    writing(folder)
    return folder


@pytest.mark.parametrize(("output", "made"), [("rows", RowTraining), ("features", FeatureTraining)])
def test_states_are_what_adapters_read_and_should_write(material: Material, output: Output, made: Any) -> None:
    """Of the one recording, and as a control of the next one's events at the same tokens."""
    config = material.events.config
    adapter = Adapter(AdapterConfig.of("fused", config, material.target.config.language.hidden_size, output))
    frozen = FrozenTarget(material.target, material.before), FrozenDrafter(material.events, material.drafter_before)
    source, answers = material.judged.source, {**material.learned.answers, **material.judged.answers}
    training = made(*frozen, {"fused": adapter}, source, answers, 6)
    found = features.Reading(material, features.subjects_of(material)).states(1)
    last = config.vision.num_hidden_layers
    names = {
        "rows": {last - 2: f"tower_{last - 2}.drafter", last - 1: f"tower_{last - 1}.drafter", last: "tower.drafter"},
        "features": {1: "last.drafter", 2: "read.drafter"},
    }[output]
    with torch.no_grad():
        index, branches = np.array([1]), [answers[1]]
        wanted, counts = training.wanted(source, index, branches)
        inputs = training.inputs(source, index, branches)
        written = wanted[counts].numpy()
        assert np.allclose(found[f"{'rows' if output == 'rows' else 'last'}.target"], written, atol=1e-4)
        for number, name in names.items():
            assert np.allclose(found[name], inputs[number][counts].numpy(), atol=1e-4), name
        if output == "features":
            others = training.inputs(source, np.array([2]), branches)[1][counts].numpy()
            assert np.allclose(found["last.control"], others, atol=1e-4)
            assert not np.allclose(found["last.control"], found["last.drafter"], atol=0.1)
    assert {len(found[name]) for name in found if name.startswith(("penultimate", "last", "read"))} == {7}
    assert len(found["tower.target"]) == len(found["rows.drafter"]) == config.event_tokens


def test_the_control_of_the_last_recording_has_the_first_ones_events(material: Material) -> None:
    reading = features.Reading(material, features.subjects_of(material))
    first = reading.states(0)["rows.drafter"]
    seen = reading.states(2)
    assert not np.allclose(seen["rows.drafter"], first)
    assert np.allclose(reading._seen[0][1][0].numpy(), first)


def test_the_control_of_a_window_is_of_another_recording_or_apart(material: Material, tmp_path: Path) -> None:
    """The next window is nearly the same scene where windows overlap, and of the same recording where there are others."""
    windows = [("a", (0, 300)), ("a", (10, 310)), ("a", (300, 600))]
    assert features.beside([*windows, ("b", None)]) == [3, 3, 3, 0]
    with pytest.raises(BadInput, match=r"a, window \[10, 310\]: the control is the events of another recording"):
        features.beside(windows)
    whole = features.subjects_of(material)
    subjects = [
        replace(one, name=name, window=window) for one, (name, window) in zip(whole, [*windows[:2], ("b", None)], strict=True)
    ]
    reading = features.Reading(material, subjects)
    reading.states(0)
    assert list(reading._seen) == [0, 2]
    rows = [{"recording": "example:street", "question": "?", "window": [at, at + 300_000]} for at in (0, 10_000)]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadInput, match="shares a moment with every other window"):
        features.check("nano", read_questions(tmp_path / "qa.jsonl"), 0)


def test_texts_of_other_ids_are_paired_where_both_have_read_the_same(material: Material) -> None:
    """The event model has read the same before the target's first and third token alone."""
    branch = material.learned.answers[0][0]
    other = replace(branch, own=Branch(branch.question, [40, 55, 56, 60, 2]), read=[0, -1, 3, -1, -1])
    subject = replace(features.subjects_of(material)[0], branches=[other])
    found = features.Reading(material, [subject, features.subjects_of(material)[1]]).states(0)
    same = replace(subject, branches=[Branch(branch.question, [40, 55, 56, 60, 2])])
    theirs = features.Reading(material, [same, features.subjects_of(material)[1]]).states(0)
    ours = features.Reading(material, features.subjects_of(material)).states(0)
    assert np.allclose(found["last.target"], ours["last.target"][[0, 2]], atol=1e-4)
    assert np.allclose(found["last.drafter"], theirs["last.drafter"][[0, 3]], atol=1e-4)
    assert np.array_equal(found["read.drafter"], theirs["read.drafter"][[0, 3]])


def test_a_run_that_was_cut_off_goes_on(writing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second shard the disk is full: one line, nothing half-written; run again it gives what an unbroken run gives."""
    whole = writing(tmp_path / "whole")
    wrote, used = list[Path](), Path.write_bytes

    def full(path: Path, data: Any) -> int:
        wrote.append(path)
        if len(wrote) > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return used(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match=r"shard_0001 cannot be written \(No space left on device\)"):
        writing(tmp_path / "cut")
    monkeypatch.setattr(Path, "write_bytes", used)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["run.json", "shard_0000"]
    with pytest.raises(BadInput, match="was not finished: run it again with --resume"):
        States.open(tmp_path / "cut")
    (tmp_path / "cut/.shard_0001.0.part").mkdir()  # of a process that was killed
    kept = (shard(tmp_path / "cut", 0) / "last.target.npy").stat().st_mtime_ns
    again = writing(tmp_path / "cut")
    assert (shard(tmp_path / "cut", 0) / "last.target.npy").stat().st_mtime_ns == kept
    assert {**again, "folder": ""} == {**whole, "folder": ""}
    for path in (tmp_path / "whole").rglob("*.npy"):
        assert path.read_bytes() == (tmp_path / "cut" / path.relative_to(tmp_path / "whole")).read_bytes()
    assert not list((tmp_path / "cut").glob(".*"))
    with pytest.raises(BadInput, match="holds an earlier run with limit 0, not 7"):
        writing(tmp_path / "cut", limit=7)


def test_the_index_says_whose_every_row_is_and_what_storing_lost(writing: Any, tmp_path: Path) -> None:
    known = {stored: writing(tmp_path / stored, stored) for stored in ("float16", "int8")}
    states = {stored: States.open(tmp_path / stored) for stored in known}
    assert [(one.name, one.held_out) for one in states["int8"].recordings] == [
        ("clip 0", False),
        ("clip 1", True),
        ("clip 2", True),
    ]
    assert known["float16"]["rows"] == {"visual": 210, "text": sum(len(ANSWERS[at % 3]) for at in (0, 1, 1, 2, 2, 3))}
    assert known["int8"]["bytes"] < 0.6 * known["float16"]["bytes"]
    for array in ("tower.drafter", "last.target"):
        exact = [states["float16"].rows(place, array) for place in range(3)]
        rough = [states["int8"].rows(place, array) for place in range(3)]
        error = np.linalg.norm(np.concatenate(rough) - np.concatenate(exact)) / np.linalg.norm(np.concatenate(exact))
        assert known["int8"]["arrays"][array]["error"] == pytest.approx(error, rel=0.02)
        assert known["float16"]["arrays"][array]["error"] < 1e-3 < error < 0.03


def test_a_folder_of_states_is_bounded(writing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = writing(tmp_path / "all")["bytes"]
    monkeypatch.setattr(features, "MOST_BYTES", int(0.8 * size))
    found = writing(tmp_path / "some")
    assert (found["n_recordings"], found["left_out"]) == (2, 1)
    assert found["bytes"] <= 0.8 * size


def test_states_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    large = {"last.target": np.array([[1.0, 1e5], [2.0, 3.0]], np.float32)}
    entry = [Entry("clip", None, False, 0, 2)]
    with pytest.raises(BadInput, match=r"states last.target reach 1e\+05, more than float16 holds: store them as int8"):
        Shards(tmp_path, "float16").add(entry, large)
    with pytest.raises(BadInput, match=r"states last\.target hold NaN or infinity"):
        Shards(tmp_path, "int8").add(entry, {"last.target": np.full((2, 2), np.nan, np.float32)})
    assert not list(tmp_path.iterdir())
    Shards(tmp_path, "int8").add(entry, large)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "index.json").unlink(), "was not finished"),
        (lambda folder: (folder / "index.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "index.json").write_text(json.dumps({"format": "other", "version": 1})), "wanted eventspec"),
        (lambda folder: np.save(shard(folder, 1) / "rows.target.npy", np.zeros((3, 3), np.float16)), r"is \[3, 3\], wanted"),
        (lambda folder: (shard(folder, 0) / "last.control.npy").write_bytes(b"no array"), "is damaged"),
        (lambda folder: (shard(folder, 2) / "shard.json").unlink(), "is damaged"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(whole: Path, tmp_path: Path, damage: Any, says: str) -> None:
    shutil.copytree(whole, tmp_path / "states")
    damage(tmp_path / "states")
    with pytest.raises(BadInput, match=says) as error:
        States.open(tmp_path / "states")
    assert "\n" not in str(error.value)


def test_what_has_no_control_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="one recording is too few"):
        features.check("nano", [], 1)
    file = PairFile(tmp_path, "blind", {"target": "target"}, load={})
    file.write()
    with pytest.raises(BadInput, match="pair blind has no event model: `eventspec train drafter` makes one"):
        features.check(str(tmp_path), [], 0)
