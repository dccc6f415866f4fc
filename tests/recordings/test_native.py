"""The native folder: written whole or not at all, read back unchanged, and never a door to other files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from eventspec.core import BadInput
from eventspec.events import EventStream
from eventspec.recordings import Recording, native, write_native
from eventspec.recordings.parts import covering_notes
from eventspec.video import VideoClip

EVENTS = EventStream.checked([0, 3], [0, 2], [5, 9], [0, 1], 4, 3)
GREY = VideoClip.checked(np.full((2, 3, 4, 3), 7, np.uint8), np.array([5, 8]))


def whole(name: str = "r", events: EventStream | None = EVENTS, video: VideoClip | None = GREY) -> Recording:
    return Recording(name, events, video, ("a note",), "aedat4")


def edited(folder: Path, *changes: tuple[str, str]) -> Path:
    """A native folder whose recording.toml was changed by hand."""
    write_native(folder, whole())
    description = folder / "recording.toml"
    text = description.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    description.write_text(text)
    return folder


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=20),
    frames=arrays.arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(2), st.integers(1, 4), st.just(3))),
    events=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**60), st.integers(0, 1)), max_size=9),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, frames: Any, events: list[tuple[int, int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("round") / "clip"
    events.sort(key=lambda event: event[2])
    x, y, t, p = ([event[k] for event in events] for k in range(4))
    stream = EventStream.checked(x, y, t, p, 4, 3)
    clip = VideoClip.checked(frames, np.arange(len(frames)) * 40_000)
    write_native(folder, Recording(text or "clip", stream, clip, (text,)), source=text)
    again = Recording.open(folder)
    assert again.events is not None and again.video is not None
    for name in ("x", "y", "t", "p"):
        assert np.array_equal(getattr(again.events, name), getattr(stream, name))
    assert np.array_equal(again.video.frames, frames) and again.video.times_us.tolist() == clip.times_us.tolist()
    assert (
        again.notes == (text, *covering_notes(stream, clip))
        and again.name == (text or "clip")
        and again.source_format == "native"
    )
    assert tomllib.loads((folder / "recording.toml").read_text("utf-8"))["source"]["text"] == text


def test_events_alone_and_frames_alone_are_recordings(tmp_path: Path) -> None:
    write_native(tmp_path / "events", whole(video=None))
    write_native(tmp_path / "frames", whole(events=None))
    assert Recording.open(tmp_path / "events").video is None
    assert Recording.open(tmp_path / "frames" / "recording.toml").events is None
    with pytest.raises(BadInput, match="there is nothing to write"):
        write_native(tmp_path / "none", whole(events=None, video=None))


def test_the_same_recording_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        write_native(tmp_path / name, whole(), source="here")
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append([(path.relative_to(tmp_path / name), path.read_bytes()) for path in files])
    assert contents[0] == contents[1] and len(contents[0]) == 4


def test_an_existing_target_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    with pytest.raises(BadInput, match="exists already"):
        write_native(tmp_path / "clip", whole())
    assert list((tmp_path / "clip").iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(native, "_write_frames", fails)
    with pytest.raises((BadInput, KeyboardInterrupt)) as failed:
        write_native(tmp_path / "clip", whole())
    assert list(tmp_path.iterdir()) == []
    assert not isinstance(failed.value, BadInput) or "cannot be written (No space left on device)" in str(failed.value)


@pytest.mark.parametrize(
    "name",
    [
        "../other.h5",
        "frames/../../other.h5",
        "/etc/passwd",
        "C:\\\\other.h5",
        "\\\\\\\\host\\\\other.h5",
        "..\\\\other.h5",
        "link.h5",
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "other.h5").write_bytes(b"secret")
    folder = edited(tmp_path / "clip", ('file = "events.h5"', f'file = "{name}"'))
    (folder / "link.h5").symlink_to(tmp_path / "other.h5")
    with pytest.raises(BadInput, match=r"recording.toml: events.file is .* leaves the folder"):
        Recording.open(folder)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version = 1", "version = 2", "version is 2, readable is 1: update eventspec"),
        ('format = "eventspec-recording"', 'format = "x"', "format is 'x', not 'eventspec-recording'"),
        ("[events]", "[events", "cannot be read"),
        ("width = 4", "width = 9", "the file says 4x3 pixels but sensor_size is 9x3"),
        ("width = 4", 'width = "4"', "events.width is '4'"),
        ('file = "events.h5"', 'file = "e.h5"', "events.file names 'e.h5', which is not there"),
        ('file = "events.h5"', "file = 3", "events.file is 3: write the name of a file"),
        ("times_us = [5, 8]", "times_us = [5]", "1 time for 2 images"),
        ("times_us = [5, 8]", "times_us = [5, 8.5]", "video.times_us is not a list of whole microseconds"),
        ("times_us = [5, 8]", "times_us = [8, 5]", "times_us[1] is 5, before 8"),
        ("[events]", "[more]", "recording.toml"),
    ],
)
def test_a_description_that_is_wrong_is_refused_in_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    changes = [(old, new)] if new != "[more]" else [("[events]", "[more]"), ("[video]", "[less]")]
    with pytest.raises(BadInput) as refused:
        Recording.open(edited(tmp_path / "clip", *changes))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_torn_events_file_inside_is_refused(tmp_path: Path) -> None:
    write_native(tmp_path / "clip", whole())
    events = tmp_path / "clip/events.h5"
    events.write_bytes(events.read_bytes()[:700])
    with pytest.raises(BadInput, match=r"events.h5: the HDF5 file is damaged or cut short"):
        Recording.open(tmp_path / "clip")


def test_frames_may_be_a_video_with_times_of_its_own_or_listed(tmp_path: Path) -> None:
    import av

    folder = edited(tmp_path / "clip", ('frames = "frames"', 'file = "frames.mp4"'))
    with av.open(str(folder / "frames.mp4"), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for index in range(2):
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    listed = Recording.open(folder).video
    assert listed is not None and listed.times_us.tolist() == [5, 8]
    description = folder / "recording.toml"
    description.write_text(description.read_text().replace("times_us = [5, 8]\n", ""))
    own = Recording.open(folder).video
    assert own is not None and own.times_us.tolist() == [0, 40_000]


def test_an_image_may_not_be_a_link_out_of_the_folder(tmp_path: Path) -> None:
    write_native(tmp_path / "other", whole())
    folder = edited(tmp_path / "r")
    image = folder / "frames/000001.png"
    image.rename(folder / "elsewhere.png")
    image.symlink_to(folder / "elsewhere.png")
    assert Recording.open(folder).video is not None
    image.unlink()
    image.symlink_to(tmp_path / "other/frames/000001.png")
    with pytest.raises(BadInput, match="leaves the folder"):
        Recording.open(folder)
    assert Recording.open(folder / "frames").video is not None  # what a person links in a plain folder is theirs to choose
