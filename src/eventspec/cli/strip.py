"""A picture of a recording for people: its events slice by slice, the frame of each moment, and the rate over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
DPI = 100
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from eventspec.core import BadInput
    from eventspec.events.pictures import coarser, pictures

    events = recording.events
    assert events is not None  # the command has looked
    if windows > MOST:
        raise BadInput(f"{windows} windows do not fit on one picture: at most {MOST} do, or give a folder's name as --out")
    columns = min(windows, COLUMNS)
    grow, step = scale_of(events.width, columns)
    drawn = pictures(coarser(events, step) if step > 1 else events, representation, windows)
    images = drawn.images.repeat(grow, axis=1).repeat(grow, axis=2)
    slices = slices_of(events, recording.video, windows)
    height, width = images.shape[1:3]
    frame_height = 0
    if any(part.frame is not None for part in slices) and recording.video is not None:
        frame_height = round(width * recording.video.height / recording.video.width)
    row = LINE + height + (frame_height and frame_height + LINE) + GAP
    rows = -(-windows // columns)
    size = max(LEAST, 2 * MARGIN + columns * width + (columns - 1) * GAP), HEAD + rows * row + AXIS
    figure = Figure(figsize=(size[0] / DPI, size[1] / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)  # measures the words
    lasts = max((part.end_us for part in slices), default=0) - min((part.start_us for part in slices if part.events), default=0)
    page = _Page(figure, size, digits_of(max(lasts // windows, 1)))
    for index, (part, image) in enumerate(zip(slices, images, strict=True)):
        left, top = MARGIN + index % columns * (width + GAP), HEAD + index // columns * row
        page.panel(index, part, image, (left, top), frame_height, origin_us)
    page.head(recording, representation, drawn, step)
    page.rate(events, slices, origin_us)
    figure.savefig(path, format="png")


def scale_of(width: int, columns: int) -> tuple[int, int]:
    """How many pixels of the picture show one of the sensor, and how many of the sensor are one of the picture's; one of the
    two is 1. Fewer panels in a row may be wider."""
    room = LARGE // columns * 5 // 4
    return (max(1, min(room, SMALL + SMALL // columns) // width), 1) if width <= room else (1, -(-width // room))


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
        place = None if video is None or not len(video) else int(np.abs(video.times_us - (start + end) // 2).argmin())
        if video is None or place is None:
            found.append(Slice(start, end, last - first))
        else:
            found.append(Slice(start, end, last - first, video.frames[place], int(video.times_us[place])))
    return found


class _Page:
    """A figure whose places are pixels from its top left corner."""

    def __init__(self, figure: Any, size: tuple[int, int], digits: int) -> None:
        self._figure, self._size, self._digits = figure, size, digits

    def _text(self, left: float, top: float, words: str, **style: Any) -> float:
        """Words around a height; where they end."""
        width, height = self._size
        made = self._figure.text(left / width, 1 - top / height, words, va="center", **{"fontsize": 9, **style})
        return float(made.get_window_extent().x1)

    def _axes(self, left: float, top: float, width: float, height: float) -> Any:
        whole_width, whole_height = self._size
        return self._figure.add_axes(
            (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
        )

    def _picture(self, image: Any, left: int, top: int) -> None:
        """Pixel for pixel, in a thin frame: white is a colour here."""
        import numpy as np

        height, width = image.shape[:2]
        framed = np.full((height + 2, width + 2, 3), 136, np.uint8)
        framed[1:-1, 1:-1] = image
        self._figure.figimage(framed, left - 1, self._size[1] - top - height - 1, origin="upper")

    def panel(self, index: int, part: Slice, image: Any, corner: tuple[int, int], frame_height: int, origin_us: int) -> None:
        """One slice: its number, times and count, its events, and its frame below."""
        left, top = corner
        height, width = image.shape[:2]
        self._text(left, top + LINE / 2, str(index + 1), weight="bold")
        begins, ends = ((time - origin_us) / 1e6 for time in (part.start_us, part.end_us))
        caption = (
            f"{begins:.{self._digits}f} to {ends:.{self._digits}f} s, {part.events:,} events" if part.events else "no events"
        )
        self._text(left + 16, top + LINE / 2, caption)
        self._picture(image, left, top + LINE)
        if part.frame is None or not frame_height or part.frame_us is None:
            return
        at = (part.frame_us - origin_us) / 1e6
        self._text(left + 16, top + 1.5 * LINE + height + 1, f"frame at {at:.{self._digits}f} s", color="#444444")
        self._picture(fitted(part.frame, width, frame_height), left, top + 2 * LINE + height)

    def head(self, recording: Recording, representation: Representation, drawn: Pictures, step: int) -> None:
        """Name and size of the recording, what is drawn, and the legend of its colours."""
        events = recording.events
        assert events is not None
        coarse = f", {step}x{step} pixels drawn as one" if step > 1 else ""
        left = self._text(MARGIN, 20, recording.name, fontsize=12, weight="bold")
        self._text(left + 14, 21, f"{events.width}x{events.height}, {len(events):,} events{coarse}")
        left = self._text(MARGIN, 46, WORDS[representation]) + 24
        if drawn.full is None:
            for colour, words in ((BLUE, "OFF, darker"), (RED, "ON, brighter"), ("#ffffff", "no event")):
                left = self._patch(left, colour, words)
            return
        for colour, words in ((BLUE, "OFF, darker"), (RED, "ON, brighter")):
            left = self._ramp(left, colour, words, *ends_of(representation, drawn.full))
        self._patch(left, "#000000", "both")

    def _patch(self, left: float, colour: str, words: str) -> float:
        """A square of a colour and what it means; where the next one may begin."""
        axes = self._axes(left, 40, 12, 12)
        axes.set_facecolor(colour)
        axes.set_xticks([])
        axes.set_yticks([])
        return self._text(left + 18, 46, words) + 20

    def _ramp(self, left: float, colour: str, words: str, none: str, full: str) -> float:
        """Shades from white to a colour, and what both ends mean; where the next one may begin."""
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap

        left = self._text(left, 46, f"{words}:  {none}") + 6
        axes = self._axes(left, 40, 70, 12)
        axes.imshow(np.linspace(0, 1, 64)[None], aspect="auto", cmap=LinearSegmentedColormap.from_list("", ["white", colour]))
        axes.set_xticks([])
        axes.set_yticks([])
        return self._text(left + 76, 46, full) + 24

    def rate(self, events: EventStream, slices: list[Slice], origin_us: int) -> None:
        """The time axis: events a second, the slices and the frames in them."""
        import numpy as np

        width, height = self._size
        axes = self._axes(MARGIN + 46, height - AXIS + 14, width - 2 * MARGIN - 52, AXIS - 62)
        span = events.span
        if span is None:
            axes.set_axis_off()
            return
        bins = np.linspace(span.start_us, max(span.end_us, span.start_us + 2), min(300, max(20, len(events) // 50)) + 1)
        seconds = (bins - origin_us) / 1e6
        each = seconds[1] - seconds[0]
        below = np.zeros(len(bins) - 1)
        for sign, colour in ((0, BLUE), (1, RED)):
            counts = sum(np.histogram(block.t[block.p == sign], bins)[0] for block in events.blocks()) / each
            axes.stairs(below + counts, seconds, baseline=below, fill=True, color=colour, alpha=0.65, linewidth=0)
            below = below + counts
        top = float(below.max()) or 1.0
        for index, part in enumerate(part for part in slices if part.events):
            begins, ends = ((time - origin_us) / 1e6 for time in (part.start_us, part.end_us))
            axes.axvspan(begins, ends, color="#000000" if index % 2 else "#ffffff", alpha=0.08, lw=0)
            axes.text((begins + ends) / 2, top * 1.1, str(index + 1), ha="center", va="center", fontsize=8, weight="bold")
            if part.frame_us is not None:
                axes.plot([(part.frame_us - origin_us) / 1e6], [0], "^", color="#222222", ms=6, clip_on=False, zorder=5)
        axes.set_xlim(seconds[0], seconds[-1])
        axes.set_ylim(0, top * 1.25)
        self._ticks(axes, any(part.frame_us is not None for part in slices))

    def _ticks(self, axes: Any, framed: bool) -> None:
        from matplotlib.ticker import EngFormatter, MaxNLocator

        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("events/s", fontsize=8)
        marks = "; triangles: the frames shown" if framed else ""
        axes.set_xlabel(
            f"seconds from the recording's beginning; blue OFF, red ON, shades and numbers: the slices{marks}", fontsize=8
        )


def ends_of(representation: str, full: float) -> tuple[str, str]:
    """What white and full colour stand for."""
    if representation == "count":
        return "0", f"{full:.0f} or more" if full > 1 else "1"
    return f"{milliseconds(3 * full)} and older", "latest"


def milliseconds(us: float) -> str:
    """A time in three digits, in the unit that suits it."""
    value, unit = (us, "us") if us < 1e3 else (us / 1e3, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{value:.3g} {unit}"


def digits_of(duration_us: int) -> int:
    """Decimals of seconds that tell the two ends of a duration apart."""
    return max(1, min(6, 8 - len(str(duration_us))))


def fitted(frame: Any, width: int, height: int) -> Any:
    """A frame uint8 [H, W, 3] at another size: small ones in whole pixels, large ones averaged."""
    import numpy as np
    from PIL import Image

    small = frame.shape[1] <= width
    return np.asarray(
        Image.fromarray(frame).resize((width, height), Image.Resampling.NEAREST if small else Image.Resampling.BOX)
    )
