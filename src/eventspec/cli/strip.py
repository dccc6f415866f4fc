"""A picture of a recording for people: its events slice by slice, the frame of each moment, and the rate over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventspec.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from eventspec.events import EventStream
    from eventspec.events.pictures import Pictures, Representation
    from eventspec.recordings import Recording
    from eventspec.video import VideoClip

MOST = 60  # windows on one picture
COLUMNS = 5
SMALL, LARGE = 480, 2000  # width in pixels: that a small sensor's panel may well have, and of a row of large ones, roughly
LEAST = 1120  # width of the page that the legend needs
MARGIN, GAP, HEAD, LINE, AXIS = 24, 16, 74, 20, 150
RED, BLUE = "#ff0000", "#0000ff"
WORDS = {
    "red-blue": "colour of the last event at each pixel",
    "count": "number of events at each pixel",
    "time-surface": "age of the last event at each pixel, at the end of its slice",
}


@dataclass(frozen=True)
class Slice:
    """One window: its events' times in us, how many there are, and the frame nearest to its middle."""

    start_us: int
    end_us: int
    events: int
    frame: Any = None
    frame_us: int | None = None


def draw(recording: Recording, origin_us: int, representation: Representation, windows: int, path: Path) -> None:
    """Write the picture as PNG. Times are counted from `origin_us`; BadInput for more than `MOST` windows."""
    from PIL import Image

    from eventspec.events.pictures import pictures
    from eventspec.events.representations import coarser

    events = recording.events
    assert events is not None  # the command has looked
    if windows > MOST:
        raise BadInput(f"{windows} windows do not fit on one picture: at most {MOST} do, or give a folder's name as --out")
    columns = min(windows, COLUMNS)
    grow, step = scale_of(events.width, events.height, columns)
    drawn = pictures(coarser(events, step) if step > 1 else events, representation, windows)
    images = drawn.images.repeat(grow, axis=1).repeat(grow, axis=2)
    slices = slices_of(events, recording.video, windows)
    height, width = images.shape[1:3]
    frame_height = 0
    if any(part.frame is not None for part in slices) and recording.video is not None:
        frame_height = round(width * recording.video.height / recording.video.width)
    row = LINE + height + (frame_height and frame_height + LINE) + GAP
    size = max(LEAST, 2 * MARGIN + columns * width + (columns - 1) * GAP), HEAD + -(-windows // columns) * row + AXIS
    lasts = max((part.end_us for part in slices), default=0) - min((part.start_us for part in slices if part.events), default=0)
    page = _Page(Image.new("RGB", size, "white"), digits_of(max(lasts // windows, 1)), origin_us)
    for index, (part, image) in enumerate(zip(slices, images, strict=True)):
        page.panel(index, part, image, (MARGIN + index % columns * (width + GAP), HEAD + index // columns * row), frame_height)
    page.head(recording, representation, drawn, step)
    page.picture(rate(events, slices, origin_us, (size[0] - 2 * MARGIN, AXIS)), MARGIN, size[1] - AXIS, framed=False)
    page.image.save(path, format="PNG")


def scale_of(width: int, height: int, columns: int) -> tuple[int, int]:
    """How many pixels of the picture show one of the sensor, and how many of the sensor are one of the picture's; one of the
    two is 1. Fewer panels in a row may be wider; none is taller than a row is wide."""
    room = LARGE // columns * 5 // 4
    if width > room or height > LARGE:
        return 1, max(-(-width // room), -(-height // LARGE))
    return max(1, min(min(room, SMALL + SMALL // columns) // width, LARGE // height)), 1


def slices_of(events: EventStream, video: VideoClip | None, windows: int) -> list[Slice]:
    """The slices of equal counts that `pictures` draws, with the frame nearest to the middle of each."""
    import numpy as np

    from eventspec.events.representations import equal_counts

    found = []
    for first, last in equal_counts(len(events), windows):
        times = events.t[first:last]
        if not len(times):
            found.append(Slice(0, 0, 0))
            continue
        start, end = int(times.min()), int(times.max())
        shown: tuple[Any, ...] = ()
        if video is not None and len(video):
            place = int(np.abs(video.times_us - (start + end) // 2).argmin())
            shown = video.frames[place], int(video.times_us[place])
        found.append(Slice(start, end, last - first, *shown))
    return found


class _Page:
    """An image, and words and pictures at places in pixels from its top left corner."""

    def __init__(self, image: Any, digits: int, origin_us: int) -> None:
        from PIL import ImageDraw

        self.image, self._on, self._digits, self._origin_us = image, ImageDraw.Draw(image), digits, origin_us

    def text(self, left: float, middle: float, words: str, size: int = 13, colour: str = "#000000") -> float:
        """Words around a height; where they end."""
        from PIL import ImageFont

        font = ImageFont.load_default(size)
        self._on.text((left, middle), words, colour, font, anchor="lm")
        return left + self._on.textlength(words, font)

    def picture(self, image: Any, left: int, top: int, framed: bool = True) -> None:
        """Pixel for pixel, in a thin frame: white is a colour here."""
        from PIL import Image

        height, width = image.shape[:2]
        if framed:
            self._on.rectangle((left - 1, top - 1, left + width, top + height), outline="#888888")
        self.image.paste(Image.fromarray(image), (left, top))

    def _seconds(self, time_us: int) -> str:
        return f"{(time_us - self._origin_us) / 1e6:.{self._digits}f}"

    def panel(self, index: int, part: Slice, image: Any, corner: tuple[int, int], frame_height: int) -> None:
        """One slice: its number, times and count, its events, and its frame below."""
        import numpy as np
        from PIL import Image

        (left, top), (height, width) = corner, image.shape[:2]
        times = (
            f"{self._seconds(part.start_us)} to {self._seconds(part.end_us)} s, {part.events:,} event{'s' * (part.events != 1)}"
        )
        self.text(left, top + LINE / 2, f"{index + 1}   {times if part.events else 'no events'}")
        self.picture(image, left, top + LINE)
        if part.frame is not None and part.frame_us is not None and frame_height:
            words = f"frame at {self._seconds(part.frame_us)} s"
            self.text(left + 16, top + 1.5 * LINE + height + 1, words, colour="#444444")
            # Small frames are shown in whole pixels, large ones averaged.
            way = Image.Resampling.NEAREST if part.frame.shape[1] <= width else Image.Resampling.BOX
            frame = np.asarray(Image.fromarray(part.frame).resize((width, frame_height), way))
            self.picture(frame, left, top + 2 * LINE + height)

    def head(self, recording: Recording, representation: Representation, drawn: Pictures, step: int) -> None:
        """Name and size of the recording, what is drawn, and the legend of its colours."""
        import numpy as np

        events = recording.events
        assert events is not None
        coarse = f", {step}x{step} pixels drawn as one" if step > 1 else ""
        left = self.text(MARGIN, 20, recording.name, 17)
        self.text(left + 14, 21, f"{events.width}x{events.height}, {len(events):,} event{'s' * (len(events) != 1)}{coarse}")
        left = self.text(MARGIN, 46, WORDS[representation]) + 24
        patches = [("#000000", "both")]
        if drawn.full is None:
            patches = [(BLUE, "OFF, darker"), (RED, "ON, brighter"), ("#ffffff", "no event")]
        else:
            none, full = ends_of(representation, drawn.full)
            for channels, words in (((0, 1), "OFF, darker"), ((1, 2), "ON, brighter")):
                left = self.text(left, 46, f"{words}:  {none}") + 6
                ramp = np.full((12, 70, 3), 255, np.uint8)
                ramp[..., channels] = np.linspace(255, 0, 70).astype(np.uint8)[:, None]
                self.picture(ramp, int(left), 40)
                left = self.text(left + 76, 46, full) + 24
        for colour, words in patches:
            self._on.rectangle((left, 40, left + 12, 52), colour, "#888888")
            left = self.text(left + 18, 46, words) + 20


def rate(events: EventStream, slices: list[Slice], origin_us: int, size: tuple[int, int]) -> Any:
    """The time axis as uint8 [H, W, 3]: events a second, the slices and the frames in them."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    axes, span = figure.add_axes((46 / size[0], 0.32, 1 - 58 / size[0], 0.58)), events.span
    if span is None:
        axes.set_axis_off()
    else:
        bins = np.linspace(span.start_us, max(span.end_us, span.start_us + 2), min(300, max(20, len(events) // 50)) + 1)
        seconds = (bins - origin_us) / 1e6
        below = np.zeros(len(bins) - 1)
        for sign, colour in ((0, BLUE), (1, RED)):
            counts = sum(np.histogram(block.t[block.p == sign], bins)[0] for block in events.blocks())
            above = below + counts / (seconds[1] - seconds[0])
            axes.stairs(above, seconds, baseline=below, fill=True, color=colour, alpha=0.65, linewidth=0)
            below = above
        top = float(below.max()) or 1.0
        for index, part in enumerate(part for part in slices if part.events):
            begins, ends = ((time - origin_us) / 1e6 for time in (part.start_us, part.end_us))
            axes.axvspan(begins, ends, color="#000000" if index % 2 else "#ffffff", alpha=0.08, lw=0)
            axes.text((begins + ends) / 2, top * 1.1, str(index + 1), ha="center", va="center", fontsize=8, weight="bold")
            if part.frame_us is not None:
                axes.plot([(part.frame_us - origin_us) / 1e6], [0], "^", color="#222222", ms=6, clip_on=False, zorder=5)
        axes.set_xlim(seconds[0], seconds[-1])
        axes.set_ylim(0, top * 1.25)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("events/s", fontsize=8)
        marks = "; triangles: the frames shown" if any(part.frame_us is not None for part in slices) else ""
        words = f"seconds from the recording's beginning; blue OFF, red ON, shades and numbers: the slices{marks}"
        axes.set_xlabel(words, fontsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def ends_of(representation: str, full: float) -> tuple[str, str]:
    if representation == "count":
        return "0", f"{full:.0f} or more" if full > 1 else "1"
    return f"{milliseconds(3 * full)} and older", "latest"


def milliseconds(us: float) -> str:
    """A time in three digits, in the unit that suits it."""
    value, unit = (us, "us") if us < 1e3 else (us / 1e3, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{value:.3g} {unit}"


def digits_of(duration_us: int) -> int:
    """Decimals of seconds in which the two ends of a duration differ."""
    return max(1, min(6, 8 - len(str(duration_us))))
