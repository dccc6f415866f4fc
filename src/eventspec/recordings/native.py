"""The native recording folder: recording.toml + events.h5 + imu.h5 + frames/ (png) or a video. Written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eventspec.core import BadInput, FrameRows
from eventspec.events.formats import EventFile, hdf5, native_h5, open_events
from eventspec.events.formats.family import MOST_SAMPLES
from eventspec.events.stream import STRICT, Policy
from eventspec.files import check_name, parsed_toml, toml_string
from eventspec.imu import ImuStream
from eventspec.recordings.parts import Contents, imu_of, inside
from eventspec.video.clip import VideoClip, VideoFile
from eventspec.video.decode import open_video
from eventspec.video.images import read_image_folder

if TYPE_CHECKING:
    from eventspec.recordings.recording import Recording

FORMAT = "eventspec-recording"
VERSION = 1
TOML_NAME = "recording.toml"
EVENTS_NAME = "events.h5"
IMU_NAME = "imu.h5"
FRAMES_NAME = "frames"
IMU_FIELDS = {"t": 1, "accelerometer": 2, "gyroscope": 2}
"""Its datasets, and how many axes they have."""


# ---------------------------------------------------------------------------------------------------------------- writing
def write_native(folder: Path, recording: Recording, source: str | None = None) -> None:
    """Write the recording as a native folder; the same recording and source (by default its own) give the same bytes.

    Frames become png (grey ones with one channel). BadInput when the target exists or the recording is empty.
    """
    folder = check_name(folder)
    if folder.exists() or folder.is_symlink():
        raise BadInput(f"{folder}: exists already: choose another folder, or remove it first")
    if recording.events is None and recording.video is None:
        raise BadInput(f"{recording.name}: has neither events nor frames: there is nothing to write")
    check_times(recording)
    with written_whole(folder) as partial:
        if recording.events is not None:
            native_h5.write(partial / EVENTS_NAME, recording.events)
        if recording.imu is not None:
            _write_imu(partial / IMU_NAME, recording.imu)
        if recording.video is not None:
            _write_frames(partial / FRAMES_NAME, recording.video.frames)
        text = _toml(recording, recording.source if source is None else source)
        (partial / TOML_NAME).write_text(text, "utf-8", newline="\n")


def check_times(recording: Recording) -> None:
    """BadInput for events before 0, where an event offset moved them: no file has such times."""
    span = None if recording.events is None else recording.events.span
    if span is not None and span.start_us < 0:
        begins = f"its events begin at {span.start_us} us, and times in files count from 0"
        raise BadInput(f"{recording.name}: {begins}: cut what is before it, by --start-us 0 or slice")


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside the one that is wanted, which takes its name at the end; nothing is left where that fails."""
    partial = folder.parent / f".{folder.name}.partial-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.replace(folder)  # an empty folder may stand there
    except BadInput as error:  # of a part of it
        raise BadInput(str(error).replace(str(partial), str(folder))) from None
    except OSError as error:
        reason = str(error.strerror or error).replace(str(partial), str(folder))
        raise BadInput(f"{folder}: cannot be written ({reason}): choose a folder with room and rights") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # gone already when it was renamed


def _write_frames(folder: Path, frames: FrameRows) -> None:
    from PIL import Image

    folder.mkdir()
    for index, frame in enumerate(frames):
        grey = bool((frame[..., 0] == frame[..., 1]).all() and (frame[..., 0] == frame[..., 2]).all())
        pixels = np.ascontiguousarray(frame[..., 0] if grey else frame)
        Image.fromarray(pixels).save(folder / f"{index:06d}.png", optimize=True)


def _write_imu(path: Path, imu: ImuStream) -> None:
    """Datasets t int64 [N] us, accelerometer float32 [N, 3] m/s^2 and gyroscope float32 [N, 3] rad/s."""
    with hdf5.written_h5(path) as file:
        for name in IMU_FIELDS:
            file.create_dataset(name, data=getattr(imu, name), track_times=False, compression="gzip", shuffle=True)


def _toml(recording: Recording, source: str) -> str:
    lines = [f"format = {toml_string(FORMAT)}", f"version = {VERSION}", f"name = {toml_string(recording.name)}"]
    if recording.events is not None:
        size = [f"width = {recording.events.width}", f"height = {recording.events.height}"]
        lines += ["", "[events]", f"file = {toml_string(EVENTS_NAME)}", *size]
    if recording.video is not None:
        times = ", ".join(str(time) for time in recording.video.times_us.tolist())
        lines += ["", "[video]", f"frames = {toml_string(FRAMES_NAME)}", f"times_us = [{times}]"]
    if recording.imu is not None:
        lines += ["", "[imu]", f"file = {toml_string(IMU_NAME)}"]
    lines += ["", "[source]", f"text = {toml_string(source)}", f"format = {toml_string(recording.source_format)}"]
    lines.append(f"notes = [{', '.join(toml_string(note) for note in recording.notes)}]")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------------------------- reading
def read_native(folder: Path, policy: Policy = STRICT) -> Contents:
    """Read a native folder. BadInput for a damaged recording.toml, a path that leaves the folder, or files that do not fit."""
    description = folder / TOML_NAME
    content = _content(description)
    source, about_events, about_video = (_table(content, name, description) for name in ("source", "events", "video"))
    seen = None if about_events is None else _events(folder, about_events, policy)
    video, found = (None, ()) if about_video is None else _video(folder, about_video)
    if seen is None and video is None:
        raise BadInput(f"{description}: has neither [events] nor [video]: a recording needs one of them")
    events, read = (None, ()) if seen is None else (seen.events, seen.notes)
    stated = None if source is None else source.get("notes")
    notes = [str(note) for note in stated] if isinstance(stated, list) else []
    stated_name = content.get("name")
    name = stated_name if isinstance(stated_name, str) and stated_name else folder.resolve().name
    origin = "" if source is None else str(source.get("text", ""))
    about_imu = _table(content, "imu", description)
    imu, more = (None, ()) if about_imu is None else _imu(_inside(folder, about_imu.get("file"), "imu.file"))
    return Contents(name, events, video, (*notes, *read, *found, *more), origin, imu)


def _imu(path: Path) -> tuple[ImuStream | None, tuple[str, ...]]:
    with hdf5.opened_h5(path) as file:
        columns = [hdf5.dataset(file, name, path, axes) for name, axes in IMU_FIELDS.items()]
        if max(map(len, columns)) > MOST_SAMPLES:
            raise BadInput(f"{path}: claims {len(columns[0])} samples, more than {MOST_SAMPLES}: copy or write it again")
        t, accelerometer, gyroscope = (column[...] for column in columns)
    return imu_of((t, accelerometer, gyroscope), str(path))


def _content(description: Path) -> dict[str, Any]:
    try:
        content = parsed_toml(description.read_bytes())
    except (ValueError, OSError) as error:
        raise BadInput(f"{description}: cannot be read ({error}): mend the line it names") from None
    if content.get("format") != FORMAT:
        raise BadInput(f"{description}: format is {content.get('format')!r}, not {FORMAT!r}: this is another kind of folder")
    if content.get("version") != VERSION:
        raise BadInput(f"{description}: version is {content.get('version')!r}, readable is {VERSION}: update eventspec")
    return content


def _table(content: dict[str, Any], name: str, description: Path) -> dict[str, Any] | None:
    table = content.get(name)
    if table is not None and not isinstance(table, dict):
        raise BadInput(f"{description}: {name} is {table!r}, not a table: write it as [{name}]")
    return table


def _events(folder: Path, table: dict[str, Any], policy: Policy) -> EventFile:
    for side in ("width", "height"):
        if not isinstance(table.get(side), int):
            raise BadInput(f"{folder / TOML_NAME}: events.{side} is {table.get(side)!r}: write the sensor size in pixels")
    path = _inside(folder, table.get("file"), "events.file")
    found = open_events(path, (table["width"], table["height"]), *policy)
    if found.events is None:
        raise BadInput(f"{path}: the {found.format} file holds no event stream: name one with events")
    return found


def _video(folder: Path, table: dict[str, Any]) -> VideoFile:
    times = table.get("times_us")
    if times is not None and not (isinstance(times, list) and all(type(time) is int and abs(time) < 2**63 for time in times)):
        raise BadInput(f"{folder / TOML_NAME}: video.times_us is not a list of whole microseconds: write one time a frame")
    if "frames" in table:
        images = _inside(folder, table["frames"], "video.frames")
        for path in images.iterdir() if images.is_dir() else ():
            _inside(folder, str(path.relative_to(folder)), "video.frames")  # nor may a link in it leave the folder
        return read_image_folder(images, times_us=times)
    found = open_video(_inside(folder, table.get("file"), "video.file"))
    if times is None:
        return found
    clip = VideoClip.checked(found.clip.frames, np.array(times, np.int64), source=f"{folder / TOML_NAME}")
    return VideoFile(clip, found.notes)


def _inside(folder: Path, value: object, name: str) -> Path:
    """The path a recording.toml names, which must stay inside its folder: a recording must not reach for other files."""
    description = folder / TOML_NAME
    if not isinstance(value, str) or not value:
        raise BadInput(f"{description}: {name} is {value!r}: write the name of a file in the folder")
    path = inside(folder, value)
    if path is None:
        raise BadInput(f"{description}: {name} is {value!r}, which leaves the folder: name a file inside it")
    if not path.exists():
        raise BadInput(f"{description}: {name} names {value!r}, which is not there: copy the whole folder again")
    return path
