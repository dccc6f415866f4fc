"""``eventspec events``: look into recordings, convert them, draw them, and make events from video."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.bars import counted
from eventspec.cli.help import App
from eventspec.cli.recorded import Reading
from eventspec.errors import BadInput, several
from eventspec.files import check_folder, check_outputs, check_writable, write_whole

if TYPE_CHECKING:
    from eventspec.recordings import Recording

app = App(help="Look into event recordings, convert them, draw them; make events from video.", no_args_is_help=True)

Source = Annotated[
    Path,
    options.path_argument(
        "Event file, ROS bag, video, image folder, DSEC or RPG sequence, native folder; or example:street, example:davis."
    ),
]
Images = Annotated[
    Path, options.path("Folder for one image a slice, or one .png with all of them and their frames.", show_default=False)
]
Colours = Annotated[Literal["red-blue", "count", "time-surface"], typer.Option(help="How events become colours.")]
Facts = dict[str, str | int | None]
Kind = Literal["native", "npz", "dsec", "aedat4", "csv"]
KINDS: dict[str, Kind] = {".npz": "npz", ".h5": "dsec", ".hdf5": "dsec", ".aedat4": "aedat4", ".csv": "csv", ".txt": "csv"}
WRITABLE = "a folder's name without suffix, .npz, .h5 (DSEC layout), .aedat4 or .csv"
# As files are named: no folder of such a name is made by mistake. ``drive.2`` is none.
FILE_SUFFIX = re.compile(r"\.[a-z][a-z0-9]*")


@dataclass(frozen=True)
class Cut:
    """The part of a recording that is meant, in seconds from its beginning or in us on its clock."""

    start: Annotated[float | None, typer.Option(help="Cut: seconds from the recording's beginning.")] = None
    end: Annotated[float | None, typer.Option(help="Cut: up to so many seconds from the recording's beginning.")] = None
    start_us: Annotated[int | None, typer.Option(help="Cut: first microsecond, on the recording's clock.")] = None
    end_us: Annotated[int | None, typer.Option(help="Cut: the microsecond after the last one.")] = None

    def of(self, recording: Recording) -> Recording:
        """That part; BadInput for an end that is given twice, and for what is no part of the recording."""
        ends: list[int | None] = []
        for name, after, time in (("--start", self.start, self.start_us), ("--end", self.end, self.end_us)):
            if after is not None and time is not None:
                raise BadInput(f"{name} and {name}-us both say where to cut: give one of them")
            if after is None:
                ends.append(time)
                continue
            span = recording.span
            if not 0 <= after < 1e12 or (name == "--start" and after * 1e6 >= span.duration_us):
                lasts = f"the recording lasts {span.duration_us / 1e6:.6g} s"
                raise BadInput(f"{name} {after:g} does not lie in {recording.name}: {lasts}, give seconds from its beginning")
            ends.append(span.start_us + round(after * 1e6))
        part = recording.slice(recording.window(*ends))
        options.print_notes(part.notes[len(recording.notes) :])
        return part


@app.command()
def info(file: Source, reading: Reading, as_json: options.AsJson = False) -> None:
    """Say what a recording holds: sensor, events, times, frames, IMU; with --json also sums of the coordinates, as checksums.

    A note says where the events seem to be on another clock than the frames."""
    from eventspec.events.formats import SizeUnknown
    from eventspec.events.stream import LARGEST_SIDE
    from eventspec.recordings.offset import offset_notes

    unsized = False
    try:
        recording = _opened(file, reading)
    except SizeUnknown:  # the facts need none
        recording, unsized = _opened(file, replace(reading, sensor=f"{LARGEST_SIDE}x{LARGEST_SIDE}")), True
        options.print_notes(["the sensor size is not in the file: width and height are the least that hold every event"])
    if recording.event_offset is None and recording.events is not None and recording.video is not None:
        options.print_notes(note for note in offset_notes(recording.events, recording.video) if note not in recording.notes)
    facts = summary(recording, unsized)
    options.print_found(facts, as_json, *(f"{name:9} {words}" for name, words in table(recording, facts, unsized)))


@app.command()
def convert(
    file: Source,
    out: Annotated[Path, options.path_argument("Folder to make, or a file: .npz, .h5 (DSEC layout), .aedat4, .csv.")],
    cut: Cut,
    reading: Reading,
    to: Annotated[Kind | None, typer.Option(help="Kind of output (default: by the suffix).")] = None,
    source: Annotated[str, typer.Option(help="Where the recording comes from: kept in recording.toml.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Write a recording, or a cut of it: a native folder whole, .aedat4 with events and frames, others with events only."""
    kind = _kind_of(out, to)
    _must_be_new(out, file)
    if source and kind != "native":
        raise BadInput(f"--source is kept in recording.toml, which only a folder has: leave it out for .{kind}")
    recording = cut.of(_opened(file, reading))
    written = _write(out, kind, recording, source or recording.source or file.name)
    if (left := len(recording.video or ()) - written["frames"]) > 0:
        options.print_notes([f"{out.name} keeps only events: {several(left, 'frame')} of {recording.name} are not in it"])
    if recording.imu is not None and kind != "native":
        lost = several(len(recording.imu), "IMU sample is", "IMU samples are")
        options.print_notes([f"{lost} not in {out.name}: a native folder keeps them"])
    _print_written(written, as_json)


@app.command()
def render(
    file: Source,
    out: Images,
    cut: Cut,
    reading: Reading,
    representation: Colours = "red-blue",
    windows: Annotated[int, typer.Option(min=1, help="Slices with equal counts of events.")] = 5,
    as_json: options.AsJson = False,
) -> None:
    """Draw the events: red got brighter, blue got darker. A .png shows the slices side by side, with the frame of each moment
    below, a legend and the rate over time; a folder gets one bare image a slice, pixel for pixel."""
    from PIL import Image

    from eventspec.cli import strip
    from eventspec.events.pictures import pictures
    from eventspec.recordings.native import written_whole

    single = _picture_of(out)
    _must_be_new(out, file)
    whole = _opened(file, reading)
    recording = cut.of(whole)
    if recording.events is None:
        raise BadInput(f"{file}: holds no event stream: give a recording with events")
    if single:
        origin_us = whole.span.start_us
        _write_file(out, lambda partial: strip.draw(recording, origin_us, representation, windows, partial))
    else:
        with written_whole(out) as partial:
            for index, image in enumerate(pictures(recording.events, representation, windows).images):
                Image.fromarray(image).save(partial / f"{index:03d}.png")
    about = {"out": str(out), "representation": representation, "windows": windows, "events": len(recording.events)}
    drawn = several(windows, "window" if single else "image")
    drawn = f"a strip of {drawn}" if single else drawn
    options.print_found(about, as_json, f"{out}: {drawn}, {several(len(recording.events), 'event')}")


@app.command()
def simulate(
    video: Annotated[Path, options.path_argument("Video, image folder, or any recording with frames.")],
    out: Annotated[Path, options.path("Folder to make, or a file: as `convert` has them.", show_default=False)],
    cut: Cut,
    reading: Reading,
    threshold: Annotated[float, typer.Option(help="Change of log light that makes an event; higher gives fewer.")] = 0.25,
    spread: Annotated[float, typer.Option(help="Standard deviation of the threshold from pixel to pixel.")] = 0.02,
    noise_hz: Annotated[float, typer.Option(help="Background events per pixel and second.")] = 0.1,
    refractory_us: Annotated[int, typer.Option(help="Least time between two events of a pixel.")] = 500,
    subframes: Annotated[
        int, typer.Option(min=1, max=1000, help="Blend frames linearly in so many steps (coarse videos); 1 = not.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same events.")] = 0,
    fps: Annotated[float | None, typer.Option(help="Frames a second of image folders without timestamps.txt.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Make events from frames, as an event camera in their place might have seen them; frames and events go into OUT."""
    from eventspec.events import simulate as model
    from eventspec.events.formats import SizeUnknown

    kind = _kind_of(out)
    _must_be_new(out, video)
    pixels = model.PixelModel(threshold, spread, noise_hz, refractory_us)
    frameless = f"{video}: holds no frames: give a video, a folder of images or a recording with frames"
    try:
        recording = cut.of(_opened(video, reading, fps))
    except SizeUnknown:  # of a file of events only
        raise BadInput(frameless) from None
    clip = recording.video
    if clip is None or not len(clip):
        raise BadInput(frameless)
    with counted("simulating") as show:
        events, notes = model.simulate(clip.frames, clip.times_us, pixels, seed, subframes, lambda done: show(done, len(clip)))
    if recording.events is not None:
        notes = (*notes, f"the recording's own {several(len(recording.events), 'event is', 'events are')} left out")
    options.print_notes(notes)
    source_format = f"{recording.source_format}+simulated"
    made = replace(recording, events=events, notes=(*recording.notes, *notes), source_format=source_format)
    _print_written(_write(out, kind, made, video.name), as_json)


def _opened(file: Path, reading: Reading, fps: float | None = None) -> Recording:
    """The recording; what its reader assumed or lost is printed."""
    recording = reading.open(file, fps)
    options.print_notes(recording.notes)
    return recording


def _kind_of(out: Path, chosen: Kind | None = None) -> Kind:
    """The kind of output that was chosen, or that the name has; BadInput for the suffix of a file that is not written, and
    where the two contradict each other."""
    suffix = out.suffix.lower()
    named = KINDS.get(suffix)
    if chosen is not None:
        if named not in (None, chosen):
            raise BadInput(f"{out}: {suffix} is {named}, and --to says {chosen}: leave --to out, or choose another name")
        return chosen
    if named is None and FILE_SUFFIX.fullmatch(suffix):
        raise BadInput(f"{out}: {suffix} files are not written: choose {WRITABLE}")
    return named or "native"


def _picture_of(out: Path) -> bool:
    """Whether a name is that of one picture, not of a folder; BadInput for the suffix of another kind of file."""
    suffix = out.suffix.lower()
    if suffix != ".png" and FILE_SUFFIX.fullmatch(suffix):
        raise BadInput(f"{out}: {suffix} files are not drawn: choose a folder's name without suffix, or one .png")
    return suffix == ".png"


def _must_be_new(out: Path, file: Path) -> None:
    """BadInput where something is already, and in the folder of the recording that is read."""
    from eventspec.recordings.recording import whole_of

    if os.path.lexists(out):
        raise BadInput(f"{out}: exists already: choose another name, or remove it first")
    check_outputs({"": out}, [whole_of(file)])
    check_folder(out)


def _write(out: Path, kind: Kind, recording: Recording, source: str) -> dict[str, Any]:
    """Write the recording; what is in it now: keys out, kind, events, frames."""
    from eventspec.events.formats import aedat4, dsec_h5, npz, text
    from eventspec.recordings.native import check_times, write_native

    check_times(recording)
    events, video, frames = recording.events, recording.video, len(recording.video or ())
    if kind == "native":
        write_native(out, replace(recording, name=out.name), source)
    elif kind == "aedat4" and (events is not None or video is not None):
        shown = (video.frames, video.times_us) if video is not None else (None, None)
        _write_file(out, lambda partial: aedat4.write(partial, events, *shown))
    elif events is None:
        raise BadInput(f"{recording.name}: holds no event stream, and {out.name} keeps only events: convert to a native folder")
    else:
        writer, frames = {"npz": npz.write, "csv": text.write}.get(kind, dsec_h5.write), 0
        _write_file(out, lambda partial: writer(partial, events))
    return {"out": str(out), "kind": kind, "events": len(events) if events is not None else 0, "frames": frames}


def _write_file(out: Path, write: Callable[[Path], object]) -> None:
    """As `files.write_whole`, in a folder that is made where it is missing."""
    check_writable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, write)


def _print_written(written: dict[str, Any], as_json: bool) -> None:
    frames = f" and {several(written['frames'], 'frame')}" if written["kind"] in ("native", "aedat4") else ""
    options.print_found(written, as_json, f"{written['out']}: {several(written['events'], 'event')}{frames}")


def summary(recording: Recording, by_coordinates: bool = False) -> Facts:
    """The facts of ``events info --json``, block by block, so that a long file is never whole in memory.

    Sums are independent of the order of events; times are None without events. `by_coordinates`: the sensor's size is not
    known, so width and height are the least that hold every event, None without one.
    """
    events, video = recording.events, recording.video
    sized = events if events is not None else video
    size = (sized.width, sized.height) if sized is not None else (None, None)
    counts = {"events": 0, "sum_x": 0, "sum_y": 0, "on": 0}
    right = bottom = -1
    for block in events.blocks() if events is not None else ():
        counts["events"] += len(block)
        for name, column in (("sum_x", block.x), ("sum_y", block.y), ("on", block.p)):
            counts[name] += int(column.sum(dtype="int64"))
        if len(block):
            right, bottom = max(right, int(block.x.max())), max(bottom, int(block.y.max()))
    if by_coordinates:
        size = (right + 1, bottom + 1) if counts["events"] else (None, None)
    span = events.span if events is not None else None
    return {
        "format": recording.source_format,
        "width": size[0],
        "height": size[1],
        "events": counts.pop("events"),
        "first_us": span.start_us if span is not None else None,
        "last_us": span.end_us - 1 if span is not None else None,
        **counts,
        "frames": len(video) if video is not None else 0,
        "imu": len(recording.imu) if recording.imu is not None else 0,
    }


def table(recording: Recording, facts: Facts, by_coordinates: bool = False) -> list[tuple[str, str]]:
    """The same for people, a name and its words a line; checksums are for programs."""
    width, height, events, on = (int(facts[name] or 0) for name in ("width", "height", "events", "on"))
    size = f"{width}x{height}" if width else "-"
    sensor = f"at least {size}, by the coordinates" if by_coordinates and width else size
    rows = [("format", str(facts["format"])), ("sensor", sensor), ("events", f"{events:,}")]
    video, first, last = recording.video, facts["first_us"], facts["last_us"]
    frames, often = "0", ""
    if video is not None and len(video):
        begin, end = int(video.times_us[0]), int(video.times_us[-1])
        if end > begin:
            often = f", {1e6 * (len(video) - 1) / (end - begin):.3g} a second"
        frames = f"{len(video):,} of {video.width}x{video.height}{often}"
        if first is None:
            first, last = begin, end
    if events:
        rows.append(("ON", f"{on / events:.1%}"))
    if first is not None and last is not None:
        seconds = (int(last) - int(first)) / 1e6
        rows.append(("duration", f"{seconds:.6g} s"))
        if events:
            rows.append(("rate", f"{scaled(events / seconds)}ev/s" if seconds else "-"))
        rows += [("from", f"{first} us"), ("to", f"{last} us")]
    rows.append(("frames", frames))
    if recording.imu is not None:
        span = recording.imu.span
        rate = "" if span is None or span.duration_us < 2 else f", {scaled(1e6 * len(recording.imu) / span.duration_us)}Hz"
        rows.append(("imu", f"{several(len(recording.imu), 'sample')}{rate}"))
    return rows


def scaled(value: float) -> str:
    """A number in three digits with the letter of its thousands: 33.4 k."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "
