"""What is asked about, as options that several commands have: recordings, how they are read, and a window of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli.options import path
from eventspec.errors import BadInput

if TYPE_CHECKING:
    from eventspec.core import Window
    from eventspec.recordings import Recording
    from eventspec.recordings.qa import Check


def _known_sensor(text: str | None) -> str | None:
    from eventspec.events.formats import parse_sensor_size

    if text is not None:
        parse_sensor_size(text)  # before what is read with it
    return text


Sensor = Annotated[
    str | None,
    typer.Option(callback=_known_sensor, help="Sensor size of files that do not state it: 640x480, or a name (davis346)."),
]
Order = Annotated[
    Literal["raise", "clamp", "keep"],
    typer.Option(
        "--monotonic", help="Events whose time goes back: refuse the file, lift them to the latest time, or keep them."
    ),
]


def _known_offset(text: str | None) -> str | None:
    """As given, or None; BadInput for what is no offset, before anything is read."""
    if text is not None and text != "auto" and not re.fullmatch(r"[+-]?\d{1,18}", text):
        shown = text or "''"
        raise BadInput(f"--event-offset {shown} cannot be read: give whole microseconds (18 digits at most), or auto")
    return text


Offset = Annotated[
    str | None,
    typer.Option(
        "--event-offset",
        metavar="US|auto",
        callback=_known_offset,
        help="Move the events so many us later on the frames' clock; auto: as an estimate from both says.",
    ),
]
DropOutside = Annotated[bool, typer.Option("--drop-outside", help="Drop events outside the sensor; else the file is refused.")]
LAST_S = 1e12
"""Seconds that no recording lasts."""
WHOLE = "Event file, video, image, folder of images, DSEC, RPG or native folder; or example:street."
WindowText = Annotated[
    str | None,
    typer.Option(
        help="START:END in us on the recording's clock, or in seconds from its beginning: 0.2s:1.2s. Either may lack."
    ),
]


@dataclass(frozen=True)
class Reading:
    """How a recording is read."""

    sensor: Sensor = None
    monotonic: Order = "raise"
    drop_outside: DropOutside = False
    event_offset: Offset = None

    def open(self, place: Path, fps: float | None = None) -> Recording:
        from eventspec.recordings import Recording

        found = Recording.open(place, self.size, self.monotonic, fps, self.drop_outside)
        offset = self.offset
        return found if offset is None else found.with_event_offset(offset)

    @property
    def offset(self) -> int | Literal["auto"] | None:
        """Of --event-offset."""
        text = self.event_offset
        return None if text is None else "auto" if text == "auto" else int(text)

    @property
    def size(self) -> tuple[int, int] | None:
        """Of --sensor, as width and height; BadInput for none that can be."""
        from eventspec.events.formats import parse_sensor_size

        return None if self.sensor is None else parse_sensor_size(self.sensor)


@dataclass(frozen=True)
class Recorded:
    """What is asked about."""

    recording: Annotated[Path | None, path(WHOLE, "--recording")] = None
    video: Annotated[Path | None, path("With --events, instead of --recording: a video or image folder.")] = None
    events: Annotated[Path | None, path("With --video: the events that belong to it, in any event file.")] = None
    window: WindowText = None

    def check(self) -> None:
        """BadInput for what does not go together, or cannot be read."""
        other = "--video" if self.video is not None else "--events"
        if self.recording is not None and (self.video is not None or self.events is not None):
            raise BadInput(
                f"--recording and {other} exclude each other: give --recording, or --video and --events for two files"
            )
        if self.recording is None and (self.video is None or self.events is None):
            alone = self.video or self.events
            both = "--video PATH and --events PATH for frames and events in two files"
            if alone is None:
                raise BadInput(f"give --recording PATH, or {both}")
            raise BadInput(f"{other} {alone} alone: for one file give --recording {alone}, or {both}")
        for place in (self.recording, self.video, self.events):
            if place is not None and not str(place).startswith("example:") and not place.exists():
                raise BadInput(f"{place}: no such file: check the path")
        self._ends(0)

    @property
    def places(self) -> list[Path]:
        """Files and folders that are read."""
        from eventspec.recordings.recording import whole_of

        return [whole_of(one) for one in (self.recording, self.video, self.events) if one is not None]

    def open(self, reading: Reading, check: Check) -> tuple[Recording, Window | None]:
        """The recording, and the window of it that was named, both of which suit `check`."""
        from eventspec.recordings import Recording

        if self.recording is not None:
            found = reading.open(self.recording)
        else:
            assert self.events is not None and self.video is not None  # `check` looked
            how: dict[str, Any] = {"monotonic": reading.monotonic, "drop_outside": reading.drop_outside}
            how |= {"sensor_size": reading.size, "event_offset": reading.offset}
            found = Recording.open_pair(events=self.events, video=self.video, **how)
        window = None if self.window is None else found.window(*self._ends(found.span.start_us))
        check(found, window)
        return found, window

    def _ends(self, begin_us: int) -> tuple[int | None, int | None]:
        """Both ends of --window, in us on the clock of a recording that begins at `begin_us`; None for one that is left out."""

        def end(text: str) -> int | None:
            if text.endswith("s"):
                seconds = float(text.removesuffix("s"))
                return begin_us + round(1e6 * seconds if abs(seconds) < LAST_S else math.nan)
            return int(text) if text else None

        try:
            start, stop = (":" if self.window is None else self.window).split(":", 1)
            return end(start), end(stop)
        except (ValueError, OverflowError):
            how = "give START:END in microseconds, such as 200000:1200000, or in seconds from the beginning, such as 0.2s:1.2s"
            raise BadInput(f"--window {self.window} cannot be read: {how}") from None


def offset_of(recording: Recording) -> dict[str, int | None]:
    """What JSON says of --event-offset, `null` where it was not given."""
    offset = recording.event_offset
    known = (None, None) if offset is None else (offset.us, offset.error_us)
    return dict(zip(("event_offset_us", "event_offset_error_us"), known, strict=True))
