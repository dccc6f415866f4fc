"""``eventspec events``: look into recordings, convert them, draw them, and make events from video."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli.help import App
from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from eventspec.recordings import Recording

Kind = Literal["native", "npz", "dsec", "aedat4", "csv"]
KINDS: dict[str, Kind] = {".npz": "npz", ".h5": "dsec", ".hdf5": "dsec", ".aedat4": "aedat4", ".csv": "csv", ".txt": "csv"}
WRITABLE = "a folder's name without suffix, .npz, .h5 (DSEC layout), .aedat4 or .csv"
# As files are named: no folder of such a name is made by mistake. ``drive.2`` is none.
FILE_SUFFIX = re.compile(r"\.[a-z][a-z0-9]*")

app = App(help="Look into event recordings, convert them, draw them; make events from video.", no_args_is_help=True)

Source = Annotated[
    Path,
    typer.Argument(
        parser=given_path, help="Event file, video, image folder, DSEC sequence or native recording folder.", show_default=False
    ),
]
Sensor = Annotated[str | None, typer.Option(help="Sensor size of files that do not state it: 640x480, or a name (davis346).")]
Order = Annotated[
    Literal["raise", "clamp", "keep"],
    typer.Option(
        "--monotonic", help="Events whose time goes back: refuse the file, lift them to the latest time, or keep them."
    ),
]
Start = Annotated[int | None, typer.Option("--start-us", help="Cut: first microsecond, on the recording's clock.")]
End = Annotated[int | None, typer.Option("--end-us", help="Cut: the microsecond after the last one.")]


@app.command()
def info(
    file: Source,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    sensor: Sensor = None,
    monotonic: Order = "raise",
) -> None:
    """Say what a recording holds: sensor, events, times, checksums, frames."""
    recording = _opened(file, sensor, monotonic)
    facts = summary(recording)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        typer.echo(f"{name:9} {'-' if value is None else value}")


@app.command()
def convert(
    file: Source,
    out: Annotated[
        Path,
        typer.Argument(
            parser=given_path, help="Folder to make, or a file: .npz, .h5 (DSEC layout), .aedat4, .csv.", show_default=False
        ),
    ],
    to: Annotated[Kind | None, typer.Option(help="Kind of output (default: by the suffix).")] = None,
    start_us: Start = None,
    end_us: End = None,
    sensor: Sensor = None,
    monotonic: Order = "raise",
    source: Annotated[str, typer.Option(help="Where the recording comes from: kept in recording.toml.")] = "",
) -> None:
    """Write a recording, or a cut of it: a native folder or .aedat4 with events and frames, others with events only."""
    kind = to or _kind(out)
    _must_be_new(out)
    recording = _opened(file, sensor, monotonic)
    _write(out, kind, recording.slice(recording.window(start_us, end_us)), source or file.name)


@app.command()
def render(
    file: Source,
    out: Annotated[
        Path,
        typer.Option(
            parser=given_path, help="Folder for one image a slice, or one .png with all side by side.", show_default=False
        ),
    ],
    representation: Annotated[
        Literal["red-blue", "count", "time-surface"], typer.Option(help="How events become colours.")
    ] = "red-blue",
    windows: Annotated[int, typer.Option(min=1, help="Slices with equal counts of events.")] = 5,
    start_us: Start = None,
    end_us: End = None,
    sensor: Sensor = None,
    monotonic: Order = "raise",
) -> None:
    """Draw the events: red got brighter, blue got darker."""
    from eventspec.core import BadInput
    from eventspec.events.pictures import montage, pictures

    if (suffix := out.suffix.lower()) != ".png" and FILE_SUFFIX.fullmatch(suffix):
        raise BadInput(f"{out}: {suffix} files are not drawn: choose a folder's name without suffix, or one .png")
    _must_be_new(out)
    recording = _opened(file, sensor, monotonic)
    recording = recording.slice(recording.window(start_us, end_us))
    if recording.events is None:
        raise BadInput(f"{file}: holds no event stream: give a recording with events")
    images = pictures(recording.events, representation, windows)
    if out.suffix.lower() == ".png":
        _write_images(out, [montage(images)])
    else:
        _write_images(out, list(images))
    typer.echo(f"{out}: {windows} {'image' if windows == 1 else 'images'} of {len(recording.events)} events")


@app.command()
def simulate(
    video: Annotated[
        Path, typer.Argument(parser=given_path, help="Video, image folder, or any recording with frames.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(parser=given_path, help="Folder to make, or a file: as `convert` has them.", show_default=False)
    ],
    threshold: Annotated[float, typer.Option(help="Change of log light that makes an event; higher gives fewer.")] = 0.25,
    spread: Annotated[float, typer.Option(help="Standard deviation of the threshold from pixel to pixel.")] = 0.02,
    noise_hz: Annotated[float, typer.Option(help="Background events per pixel and second.")] = 0.1,
    refractory_us: Annotated[int, typer.Option(help="Least time between two events of a pixel.")] = 500,
    subframes: Annotated[int, typer.Option(help="Blend frames linearly in so many steps (coarse videos); 1 = not.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 0,
    fps: Annotated[float | None, typer.Option(help="Frames a second of image folders without timestamps.txt.")] = None,
    start_us: Start = None,
    end_us: End = None,
) -> None:
    """Make events from frames, as an event camera in their place might have seen them; frames and events go into OUT."""
    from rich.console import Console
    from rich.progress import Progress

    from eventspec.core import BadInput
    from eventspec.events import simulate as model

    kind = _kind(out)
    _must_be_new(out)
    pixels = model.PixelModel(threshold, spread, noise_hz, refractory_us)
    recording = _opened(video, None, "raise", fps)
    recording = recording.slice(recording.window(start_us, end_us))
    clip = recording.video
    if clip is None or not len(clip):
        raise BadInput(f"{video}: holds no frames: give a video, a folder of images or a recording with frames")
    with Progress(console=(page := Console(stderr=True)), transient=True, disable=not page.is_terminal) as bar:
        task = bar.add_task("simulating", total=len(clip))
        events, notes = model.simulate(
            clip.frames, clip.times_us, pixels, seed, subframes, lambda done: bar.update(task, completed=done)
        )
    if recording.events is not None:
        notes = (*notes, f"the recording's own {len(recording.events)} events are left out")
    _tell(notes)
    made = replace(
        recording,
        events=events,
        notes=(*recording.notes, *notes),
        source_format=f"{recording.source_format}+simulated",
    )
    _write(out, kind, made, video.name)


def summary(recording: Recording) -> dict[str, str | int | None]:
    """The facts of ``events info``, block by block, so that a long file is never whole in memory.

    Sums are independent of the order of events; times are None without events.
    """
    events, video = recording.events, recording.video
    sized = events if events is not None else video
    facts = {"events": 0, "sum_x": 0, "sum_y": 0, "on": 0}
    for block in events.blocks() if events is not None else ():
        facts["events"] += len(block)
        for name, column in (("sum_x", block.x), ("sum_y", block.y), ("on", block.p)):
            facts[name] += int(column.sum(dtype="int64"))
    span = events.span if events is not None else None
    return {
        "format": recording.source_format,
        "width": sized.width if sized is not None else None,
        "height": sized.height if sized is not None else None,
        "events": facts["events"],
        "first_us": span.start_us if span is not None else None,
        "last_us": span.end_us - 1 if span is not None else None,
        "sum_x": facts["sum_x"],
        "sum_y": facts["sum_y"],
        "on": facts["on"],
        "frames": len(video) if video is not None else 0,
    }


# ------------------------------------------------------------------------------------------------------------------ parts
def _kind(out: Path) -> Kind:
    """The kind of output that a name asks for; BadInput for the suffix of a file that is not written."""
    from eventspec.core import BadInput

    suffix = out.suffix.lower()
    if suffix not in KINDS and FILE_SUFFIX.fullmatch(suffix):
        raise BadInput(f"{out}: {suffix} files are not written: choose {WRITABLE}")
    return KINDS.get(suffix, "native")


def _must_be_new(out: Path) -> None:
    from eventspec.core import BadInput

    if out.exists():
        raise BadInput(f"{out}: exists already: choose another name, or remove it first")


def _opened(
    file: Path, sensor: str | None, monotonic: Literal["raise", "clamp", "keep"], fps: float | None = None
) -> Recording:
    """The recording; what its reader assumed or lost goes to stderr, so that stdout stays one JSON object."""
    from eventspec.events.formats import parse_sensor_size
    from eventspec.recordings import Recording

    recording = Recording.open(file, parse_sensor_size(sensor) if sensor is not None else None, monotonic, fps)
    _tell(recording.notes)
    return recording


def _tell(notes: tuple[str, ...]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _write(out: Path, kind: Kind, recording: Recording, source: str) -> None:
    """Write the recording and say what is in it now."""
    from eventspec.recordings import write_native

    if kind == "native":
        write_native(out, replace(recording, name=out.name), source)
    else:
        _write_file(out, kind, recording)
    counts = f"{len(recording.events if recording.events is not None else ())} events and {len(recording.video or ())} frames"
    typer.echo(f"{out}: {counts if kind in ('native', 'aedat4') else counts.split(' and ')[0]}")


def _write_file(out: Path, kind: Kind, recording: Recording) -> None:
    from eventspec.core import BadInput
    from eventspec.events.formats import aedat4_writer, dsec_h5, npz, text

    events, video = recording.events, recording.video
    if kind == "aedat4" and (events is not None or video is not None):
        frames = (video.frames, video.times_us) if video is not None else (None, None)
        _whole(out, lambda partial: aedat4_writer.write(partial, events, *frames))
        return
    if events is None:
        raise BadInput(f"{recording.name}: holds no event stream, and {out.name} keeps only events: convert to a native folder")
    write = {"npz": npz.write, "csv": text.write}.get(kind, dsec_h5.write)
    _whole(out, lambda partial: write(partial, events))


def _write_images(out: Path, images: list[Any]) -> None:
    """One image to the file `out`, or every image into the new folder `out`."""
    from PIL import Image

    def into_folder(partial: Path) -> None:
        partial.mkdir()
        for index, image in enumerate(images):
            Image.fromarray(image).save(partial / f"{index:03d}.png")

    if out.suffix.lower() == ".png":
        _whole(out, lambda partial: Image.fromarray(images[0]).save(partial, format="PNG"))
    else:
        _whole(out, into_folder)


def _whole(out: Path, write: Callable[[Path], object]) -> None:
    """Call ``write(temporary name)`` beside `out` and rename: nothing half-written is left behind."""
    import contextlib
    import os
    import shutil

    from eventspec.core import BadInput

    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.rename(out)
    except (OSError, BadInput) as error:
        reason = str(getattr(error, "strerror", None) or error).replace(str(partial), str(out))  # the only name that was given
        if isinstance(error, OSError):
            reason = f"{out}: cannot be written ({reason}): choose a place with room and rights"
        raise BadInput(reason) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # one of the two does nothing, both when it was renamed
        with contextlib.suppress(OSError):
            partial.unlink()
