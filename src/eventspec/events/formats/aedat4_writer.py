"""Writes AEDAT 4 with the package dv-processing (Apache-2.0, the extra ``inivation``), which takes events one by one.

About a million events a second: a format for handing a clip to the camera maker's tools, not for archives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput, FrameRows
from eventspec.events.stream import EventStream

NAME = "aedat4"


def write(
    path: Path,
    stream: EventStream | None,
    frames: FrameRows | None = None,
    frame_times_us: np.ndarray[Any, np.dtype[np.int64]] | None = None,
) -> None:
    """Write events and frames (uint8 [K, H, W, 3] RGB with int64 [K]); the caller chooses and renames the path.

    BadInput when dv-processing is missing, or the events are not in order of time.
    """
    try:
        import dv_processing as dv
    except ImportError:
        raise BadInput(f"{path}: AEDAT4 is written by dv-processing: install it (pip install 'eventspec[inivation]')") from None
    if stream is not None and not stream.ordered:
        raise BadInput(f"{path}: AEDAT4 needs events in order of time: read them with --monotonic clamp")
    plan = dv.io.MonoCameraWriter.Config("eventspec")
    if stream is not None:
        plan.addEventStream((stream.width, stream.height))
    if frames is not None:
        plan.addFrameStream((frames.shape[2], frames.shape[1]))
    # It ends the whole process when the name does not end in .aedat4 or the place cannot be written: prove both first.
    suffixed = path.with_name(f"{path.name}.aedat4")
    try:
        suffixed.touch()
        _write(dv, dv.io.MonoCameraWriter(str(suffixed), plan), stream, frames, frame_times_us)
        suffixed.rename(path)
    finally:
        suffixed.unlink(missing_ok=True)


def _write(
    dv: Any,
    writer: Any,
    stream: EventStream | None,
    frames: FrameRows | None,
    frame_times_us: np.ndarray[Any, np.dtype[np.int64]] | None,
) -> None:
    """Events and frames; the writer's end, when this returns, writes the table of packets."""
    for block in stream.blocks() if stream is not None else ():
        store = dv.EventStore()
        for t, x, y, p in zip(block.t.tolist(), block.x.tolist(), block.y.tolist(), block.p.tolist(), strict=True):
            store.push_back(t, x, y, bool(p))
        writer.writeEvents(store)
    if frames is not None and frame_times_us is not None:
        for time, frame in zip(frame_times_us.tolist(), frames, strict=True):
            writer.writeFrame(dv.Frame(time, np.ascontiguousarray(frame[..., ::-1])))  # it keeps BGR, as OpenCV does
