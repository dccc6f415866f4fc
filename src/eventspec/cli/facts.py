"""What ``eventspec events info`` says of a recording: one object for programs, a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventspec.recordings import Recording

Facts = dict[str, str | int | None]


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
    return [*rows, ("frames", frames)]


def scaled(value: float) -> str:
    """A number in three digits with the letter of its thousands: 33.4 k."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "
