"""What the commands of ``eventspec events`` write: its kind, its name, and that it is whole or not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eventspec.errors import BadInput
from eventspec.files import write_whole

if TYPE_CHECKING:
    from eventspec.recordings import Recording

Kind = Literal["native", "npz", "dsec", "aedat4", "csv"]
KINDS: dict[str, Kind] = {".npz": "npz", ".h5": "dsec", ".hdf5": "dsec", ".aedat4": "aedat4", ".csv": "csv", ".txt": "csv"}
WRITABLE = "a folder's name without suffix, .npz, .h5 (DSEC layout), .aedat4 or .csv"
# As files are named: no folder of such a name is made by mistake. ``drive.2`` is none.
FILE_SUFFIX = re.compile(r"\.[a-z][a-z0-9]*")


def kind_of(out: Path, chosen: Kind | None = None) -> Kind:
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


def picture_of(out: Path) -> bool:
    """Whether a name is that of one picture, not of a folder; BadInput for the suffix of another kind of file."""
    suffix = out.suffix.lower()
    if suffix != ".png" and FILE_SUFFIX.fullmatch(suffix):
        raise BadInput(f"{out}: {suffix} files are not drawn: choose a folder's name without suffix, or one .png")
    return suffix == ".png"


def must_be_new(out: Path) -> None:
    """BadInput where something is already."""
    if out.exists():
        raise BadInput(f"{out}: exists already: choose another name, or remove it first")


def write(out: Path, kind: Kind, recording: Recording, source: str) -> dict[str, Any]:
    """Write the recording; what is in it now: keys out, kind, events, frames."""
    from eventspec.events.formats import aedat4, dsec_h5, npz, text
    from eventspec.recordings import write_native

    events, video, frames = recording.events, recording.video, len(recording.video or ())
    if kind == "native":
        write_native(out, replace(recording, name=out.name), source)
    elif kind == "aedat4" and (events is not None or video is not None):
        shown = (video.frames, video.times_us) if video is not None else (None, None)
        write_file(out, lambda partial: aedat4.write(partial, events, *shown))
    elif events is None:
        raise BadInput(f"{recording.name}: holds no event stream, and {out.name} keeps only events: convert to a native folder")
    else:
        writer, frames = {"npz": npz.write, "csv": text.write}.get(kind, dsec_h5.write), 0
        write_file(out, lambda partial: writer(partial, events))
    return {"out": str(out), "kind": kind, "events": len(events) if events is not None else 0, "frames": frames}


def write_file(out: Path, write: Callable[[Path], object]) -> None:
    """As `files.write_whole`, in a folder that is made where it is missing."""

    def into_folder(partial: Path) -> None:
        partial.parent.mkdir(parents=True, exist_ok=True)
        write(partial)

    write_whole(out, into_folder)
