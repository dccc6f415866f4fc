"""The recording: an event stream, a video clip and inertial samples on one clock, in microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from numpy.typing import ArrayLike

from eventspec.core import BadInput, Stream, Window
from eventspec.events.formats import EventFile, SensorSize, mvsec_h5, open_events, recognised, ros_bag
from eventspec.events.formats.family import settled_size
from eventspec.events.stored import hull
from eventspec.events.stream import EventStream, Monotonic, Policy
from eventspec.imu import ImuStream
from eventspec.recordings import dsec, examples, mvsec, native, rpg
from eventspec.recordings.arrays import Events, clip_of, stream_of
from eventspec.recordings.offset import SEEMS, EventOffset, estimate_event_offset, offset_notes
from eventspec.recordings.parts import Contents, covering_notes, imu_of, meeting_notes, words
from eventspec.video.clip import VideoClip, VideoFile
from eventspec.video.decode import looks_like_video, open_video
from eventspec.video.images import image_paths, looks_like_image, read_image, read_image_folder
from eventspec.video.stored import read_clip

OFFSET_LIMIT_US = 10**18  # the clocks of int64 microseconds end at nine times that
OWN_ZERO_US = 1_000_000  # a clock that starts within its first second is taken for one that was reset at the start


@dataclass(frozen=True, eq=False)
class Recording:
    """What a camera pair saw, and what the event camera's IMU recorded. Any part may be missing.

    notes: what the readers assumed or lost, one sentence each; source_format: "aedat4", "eventgpt-npy", "npz", "native-h5",
    "native", "dsec", "rpg", "video", "image", "images", or two of them joined by "+"; source: where it comes from, "" when
    nothing says so; event_offset: by how much `with_event_offset` moved the events, None where it did not.
    """

    name: str
    events: EventStream | None
    video: VideoClip | None
    notes: tuple[str, ...] = ()
    source_format: str = "memory"
    source: str = ""
    imu: ImuStream | None = None
    event_offset: EventOffset | None = None

    @classmethod
    def open(
        cls,
        path: Path | str,
        sensor_size: SensorSize | None = None,
        monotonic: Monotonic = "raise",
        fps: float | None = None,
        drop_outside: bool = False,
    ) -> Recording:
        """Open an event file, a video, an image, a folder of images, a sequence of DSEC's or the event-camera data set's, a
        native folder, or a bundled clip as "example:street" or "example:davis"; seen from its content.

        `sensor_size` (width, height) is for event files that do not state it, `fps` for image folders without times. Events
        outside the sensor are refused unless `drop_outside`; then a note counts them.
        Raises BadInput, one line, for anything that cannot be read, and for a size or a rate where none is wanted; its subclass
        SizeUnknown where only the size is missing.
        """
        path, policy = whole_of(path), Policy(monotonic, drop_outside)
        if path.is_dir():
            return _of_folder(path, sensor_size, policy, fps)
        if fps is not None:
            raise _unwanted(path, "a file", "fps")
        family = recognised(path)
        if family is mvsec_h5.FORMAT:
            return _of_contents(mvsec.read_data(path, sensor_size, policy), family.name)
        image = looks_like_image(path)
        if image or (family is None and looks_like_video(path)):
            if sensor_size is not None:
                raise _unwanted(path, "an image" if image else "a video", "sensor_size")
            return _of_video(path, "image", read_image(path)) if image else _of_video(path, "video", open_video(path))
        return _of_events(path, open_events(path, sensor_size, *policy))

    @classmethod
    def open_pair(
        cls,
        *,
        events: Path | str,
        video: Path | str,
        sensor_size: SensorSize | None = None,
        monotonic: Monotonic = "raise",
        fps: float | None = None,
        drop_outside: bool = False,
        event_offset: int | Literal["auto"] | None = None,
    ) -> Recording:
        """Events of one file with the frames of another, on one clock.

        When the two time ranges do not touch and one of the files has a clock of its own (it starts within its first
        second), that one is moved so that both start together, and a note says so. Then `with_event_offset` moves the events,
        where `event_offset` is given. BadInput when both are on running clocks that do not meet.
        """
        first = cls.open(events, sensor_size, monotonic, drop_outside=drop_outside)
        second = cls.open(video, fps=fps)
        if first.events is None:
            raise BadInput(f"{events}: holds no event stream: give a recording with events")
        if second.video is None:
            raise BadInput(f"{video}: holds no frames: give a video or a folder of images")
        both = f"{events} and {video}"
        moved_us, clip, notes = _on_one_clock(first.events, second.video, both, event_offset not in (None, "auto"))
        imu = None if first.imu is None else first.imu.shifted(moved_us)
        stream = first.events.shifted(moved_us) if moved_us else first.events
        formats = f"{first.source_format}+{second.source_format}"
        source = first.source if first.source == second.source else ""
        notes = (*first.notes, *second.notes, *covering_notes(stream, clip), *notes)
        found = cls(first.name, stream, clip, notes, formats, source, imu)
        return found if event_offset is None else found.with_event_offset(event_offset)

    @classmethod
    def from_arrays(
        cls,
        *,
        events: Events | None = None,
        frames: Any = None,
        times_us: ArrayLike | None = None,
        sensor: SensorSize | None = None,
        monotonic: Monotonic = "raise",
        name: str = "arrays",
        drop_outside: bool = False,
    ) -> Recording:
        """A recording of what a program holds: events, frames, or both on one clock.

        events: columns (x, y, t, p) of numbers [E], a structured array or a mapping with fields of these names (or the usual
        longer ones: timestamp, polarity), or an `EventStream`; t int microseconds or in the unit that its field states
        (``t_s``), p bool, {0, 1} or {-1, 1}; with them sensor=(width, height) in pixels. Times too large for microseconds are
        taken for nanoseconds, and a note says so. frames: uint8 [K, H, W, 3] RGB or [K, H, W] grey, with times_us int [K].

        Raises BadInput, one line, for neither of them, for what is missing or does not fit, and when they never meet in time.
        """
        given = {"times_us": (times_us, frames, "frames"), "sensor": (sensor, events, "events")}
        for what, (value, of, whose) in given.items():
            if value is not None and of is None:
                raise BadInput(f"{name}: {what} is for {whose}, and there are none: give both or leave it out")
        if events is None and frames is None:
            raise BadInput(f"{name}: neither events nor frames: give events=(x, y, t, p), or frames and times_us")
        stream, taken = (None, ()) if events is None else stream_of(events, sensor, Policy(monotonic, drop_outside), name)
        clip, noted = (None, ()) if frames is None else clip_of(frames, times_us, name)
        return cls(name, stream, clip, (*taken, *noted, *covering_notes(stream, clip), *meeting_notes(stream, clip, name)))

    @property
    def streams(self) -> dict[str, Stream]:
        """What was recorded, by the name of the sense."""
        streams: dict[str, Stream | None] = {"events": self.events, "frames": self.video, "imu": self.imu}
        return {sense: stream for sense, stream in streams.items() if stream is not None}

    @property
    def span(self) -> Window:
        """The smallest window that holds every event and every frame; BadInput when there is neither. An IMU runs on before and
        after them, and nothing is asked about that."""
        span = hull(part.span for part in (self.events, self.video) if part is not None)
        if span is None:
            raise BadInput(f"{self.name}: the recording has neither events nor frames")
        return span

    def window(self, start_us: int | None, end_us: int | None) -> Window | None:
        """The window a person named by one or both ends, None for the whole; an end left out is the recording's own.

        BadInput, with what the recording spans, for ends that are not in order or leave nothing of it.
        """
        if start_us is None and end_us is None:
            return None
        span = self.span
        start = span.start_us if start_us is None else start_us
        end = span.end_us if end_us is None else end_us
        if start < min(end, span.end_us) and span.start_us < end:
            return Window(start, end)
        both = start_us is not None and end_us is not None
        asked = f"[{start}, {end}) us" if both else f"up to {end} us" if start_us is None else f"from {start} us on"
        wrong = "is outside the recording"
        if both and start >= end:
            wrong = "is empty" if start == end else "ends before it begins"
        raise BadInput(f"{self.name}: the window {asked} {wrong}: the recording spans {words(span)}, choose a part of that")

    def senses_in(self, window: Window) -> frozenset[str]:
        """The senses of which something lies in the window; of a long file no more is read than tells it."""
        found = {"events": self.events is not None and self.events.has(window)}
        found["frames"] = self.video is not None and len(self.video.slice(window)) > 0
        found["imu"] = self.imu is not None and len(self.imu.slice(window)) > 0
        return frozenset(sense for sense, there in found.items() if there)

    def slice(self, window: Window | None) -> Recording:
        """Events, frames and inertial samples of a window on this recording's clock, as views; None is the whole recording.

        BadInput when the window and the recording do not meet; a window that reaches beyond it is noted.
        """
        if window is None:
            return self
        span = self.span
        if window.start_us >= span.end_us or window.end_us <= span.start_us:
            where = f"the window {words(window)} is outside the recording {words(span)}"
            raise BadInput(f"{self.name}: {where}: choose one inside it")
        notes = self.notes
        if window.start_us < span.start_us or window.end_us > span.end_us:
            notes = (*notes, f"the window {words(window)} reaches beyond the recording {words(span)}")
        events = self.events.slice(window) if self.events is not None else None
        video = self.video.slice(window) if self.video is not None else None
        imu = self.imu.slice(window) if self.imu is not None else None
        return replace(self, events=events, video=video, imu=imu, notes=notes)

    def with_event_offset(self, us: int | Literal["auto"]) -> Recording:
        """The same with its events, and with them the samples of the event camera's IMU, `us` microseconds later on the frames'
        clock (earlier where negative); "auto": by what `estimate_event_offset` finds. Cut windows of what this gives back.

        A note says by how much, and another one where the events then still seem far from the frames. BadInput without events
        or frames, where no offset can be estimated, and when events and frames do not meet afterwards.
        """
        if self.events is None or self.video is None:
            lacks = "events" if self.events is None else "frames"
            raise BadInput(f"{self.name}: has no {lacks}: an event offset is for recordings of both")
        given: Any = us  # numpy's whole numbers are some
        if us != "auto" and (isinstance(us, bool) or not isinstance(given, Integral) or abs(int(us)) >= OFFSET_LIMIT_US):
            raise BadInput(f'{self.name}: the event offset is {us!r}: give whole microseconds below 10^18, or "auto"')
        us = us if us == "auto" else int(us)
        found = estimate_event_offset(self.events, self.video, self.name) if us == "auto" else EventOffset(us)
        events = self.events.shifted(found.us) if found.us else self.events
        imu = None if self.imu is None else self.imu.shifted(found.us)
        moved = (
            [f"the events are moved by {found} relative to the frames{', as estimated' * (us == 'auto')}"] if found.us else []
        )
        stale = covering_notes(self.events, self.video)
        kept = [note for note in self.notes if note not in stale and not note.startswith(SEEMS)]
        now = (*covering_notes(events, self.video), *meeting_notes(events, self.video, self.name))
        wrong = () if us == "auto" else offset_notes(events, self.video)
        before = 0 if self.event_offset is None else self.event_offset.us
        notes = tuple(dict.fromkeys((*kept, *now, *moved, *wrong)))
        return replace(self, events=events, imu=imu, notes=notes, event_offset=replace(found, us=before + found.us))


def whole_of(path: Path | str) -> Path:
    """The file or folder that is read for a path: of a bundled clip, or where one file of a recording's folder is named;
    BadInput as `Recording.open`."""
    found = examples.place(path)
    return found.parent if found.name == native.TOML_NAME or rpg.is_part(found) else found


def files_of(path: Path) -> list[tuple[str, int, int]]:
    """Name, size in bytes and time of change, in ns, of every file of a recording: others once it was replaced."""
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = ((file.relative_to(path).as_posix(), file.stat()) for file in inside if file.is_file())
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def sliding_windows(
    recording: Recording, length_us: int, step_us: int | None = None, *, partial: bool = False
) -> Iterator[Recording]:
    """The recording in windows of `length_us` microseconds, one every `step_us` (default: `length_us`, end to end).

    The first begins with the recording; windows are half-open, and a part's `span` is what it holds. Only whole windows are
    given, unless `partial`: then the shorter ones at the end too. Nothing is copied, and of long files only the window is
    read. BadInput for a length or step that is no whole number from 1 on, and for a recording of nothing.
    """
    step_us = length_us if step_us is None else step_us
    for name, value in (("length_us", length_us), ("step_us", step_us)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} is {value!r}: give whole microseconds from 1 on")
    return map(recording.slice, whole_windows(recording.span, length_us, step_us, partial))


def whole_windows(span: Window, length_us: int, step_us: int, partial: bool = False) -> Iterator[Window]:
    """The windows of a span, as `sliding_windows` cuts them."""
    starts = (start for start in range(span.start_us, span.end_us, step_us) if partial or start + length_us <= span.end_us)
    return (Window(start, min(start + length_us, span.end_us)) for start in starts)


def _of_folder(path: Path, sensor_size: SensorSize | None, policy: Policy, fps: float | None) -> Recording:
    """The recording in a folder, by what else is in it: the first kind that fits."""
    plain = image_paths(path)
    if (path / native.TOML_NAME).is_file():
        kind, found = "native", native.read_native(path, policy)
    elif ros_bag.is_folder(path):
        if fps is not None:
            raise _unwanted(path, "a ROS bag", "fps")
        return _of_events(path, ros_bag.read(path, sensor_size, policy))
    elif dsec.is_sequence(path):
        kind, found = "dsec", dsec.read_sequence(path, sensor_size, policy)
    elif rpg.is_sequence(path):
        kind, found = "rpg", rpg.read_sequence(path, sensor_size, policy)
    elif plain and sensor_size is None:
        return _of_video(path, "images", read_image_folder(path, fps))
    elif plain:
        raise _unwanted(path, "a folder of images", "sensor_size")
    else:
        raise BadInput(f"{path}: {_not_one(path)}")
    if fps is not None:
        raise _unwanted(path, f"a {kind} folder with times of its own", "fps")
    if sensor_size is not None and found.events is None:
        raise _unwanted(path, "a recording of frames only", "sensor_size")
    if sensor_size is not None and found.events is not None:
        settled_size((found.events.width, found.events.height), sensor_size, str(path))
    return _of_contents(found, kind)


def _of_contents(found: Contents, source_format: str) -> Recording:
    notes = dict.fromkeys((*found.notes, *covering_notes(found.events, found.video)))  # a native folder may have it already
    return Recording(found.name, found.events, found.video, tuple(notes), source_format, found.source, found.imu)


def _unwanted(path: Path, what: str, name: str) -> BadInput:
    meant = {"sensor_size": "events in a file that does not state its sensor", "fps": "folders of images without times"}
    return BadInput(f"{path}: is {what}, and {name} is for {meant[name]}: leave it out")


def _not_one(folder: Path) -> str:
    """What a folder is that is no recording; a data set is known by its first sequence."""
    sequence = next(dsec.sequences(folder, depth=2), None)
    if sequence is not None:
        return f"is a folder of DSEC sequences: open one of them, such as {sequence.relative_to(folder)}"
    if not any(folder.iterdir()):
        return "the folder is empty: give a recording"
    images = "images (png, jpg, webp, tif)"
    return f"the folder has neither {native.TOML_NAME} nor {images}, and no data set's layout: give a recording"


def _of_events(path: Path, found: EventFile) -> Recording:
    clip, notes = None, found.notes
    if found.frames is not None:
        clip, notes = read_clip(*found.frames, str(path), notes)
    imu, more = imu_of(found.imu, str(path))
    notes = (*notes, *more, *covering_notes(found.events, clip))
    return Recording(path.stem, found.events, clip, notes, found.format, imu=imu)


def _of_video(path: Path, source_format: str, found: VideoFile) -> Recording:
    name = path.resolve().name if path.is_dir() else path.stem
    return Recording(name, None, found.clip, found.notes, source_format)


def _on_one_clock(
    stream: EventStream, clip: VideoClip, source: str, may_be_apart: bool
) -> tuple[int, VideoClip, tuple[str, ...]]:
    """By how many microseconds the events are to be moved, the frames on the clock of both, and notes. Running clocks that do
    not meet are refused, unless they `may_be_apart` for now."""
    events, frames = stream.span, clip.span
    if events is None or frames is None:
        return 0, clip, ()
    apart = min(events.end_us, frames.end_us) <= max(events.start_us, frames.start_us)
    delta = events.start_us - frames.start_us
    if apart and frames.start_us < OWN_ZERO_US:
        moved = f"the frames are moved by {delta} us, so that both start together: their clock starts at its own zero"
        return 0, clip.shifted(delta), (moved,)
    if apart and events.start_us < OWN_ZERO_US:
        moved = f"the events are moved by {-delta} us, so that both start together: their clock starts at its own zero"
        return -delta, clip, (moved,)
    return 0, clip, () if may_be_apart else meeting_notes(stream, clip, source)
