"""Paired states of an event model and a target on disk, and an index that says which recording every row is of.

FOLDER/index.json names the pair, its models' fingerprints, the recordings, and of every array how wide it is and what storing
it lost. FOLDER/shard_NNNN/NAME.npy holds the rows of some recordings one after the other, float16 [N, D], or int8 with a scale
for every row in NAME.scale.npy, float32 [N]. Every shard is written beside and renamed, the index last.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.files import parsed, write_text, write_whole
from eventspec.recordings.qa import Ends

FORMAT, VERSION = "eventspec-states", 1
VISUAL, TEXT = ("tower", "rows"), ("penultimate", "last")
LAYERS = (*VISUAL, *TEXT)
"""Where states are taken, and paired: the last layer of the event tower with the layer that the target reads of its own, both
pooled as the event model pools; visual rows; the language models' layer before the last one, and what their heads read, at the
tokens of the target's answers."""
ENDINGS = {"float16": ("npy",), "int8": ("npy", "scale.npy")}
"""How states are stored, and the files of an array then."""
Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
"""float32 [N, D] by name: LAYER.drafter and LAYER.target, rows that belong together; LAYER.control, what the drafter computes
at the same tokens with another clip's events; what else adapters read, tower_N.drafter and read.drafter."""


@dataclass(frozen=True)
class Entry:
    """What the index says of a recording, or of a window of it, [start, end) in microseconds: whether trainings on the same
    questions keep it back, and how many rows it has in visual layers and in those of text."""

    name: str
    window: Ends | None
    held_out: bool
    visual: int
    text: int

    def rows(self, array: str) -> int:
        """How many rows an array has of it."""
        return self.visual if array.split(".")[0].split("_")[0] in VISUAL else self.text


@dataclass
class Lost:
    """What storing an array lost: sums of squares of the errors and of the values."""

    error: float = 0.0
    values: float = 0.0

    @property
    def share(self) -> float:
        """The root of the error's power beside that of the values."""
        return (self.error / self.values) ** 0.5 if self.values else 0.0


class Shards:
    """Shards of a folder as they are written; those of a run that was cut off stay. `stored`: one of ENDINGS."""

    def __init__(self, folder: Path, stored: str) -> None:
        self.folder, self.stored = folder, stored
        self.recordings, self.lost, self.count = list[Entry](), dict[str, Lost](), 0
        self.widths, self.bytes = dict[str, int](), 0
        for part in folder.glob(".shard_*.part"):
            shutil.rmtree(part, ignore_errors=True)
        while (path := shard(folder, self.count) / "shard.json").is_file():
            self._note(parsed(path.read_bytes()))

    def add(self, recordings: Sequence[Entry], arrays: Mapping[str, Array]) -> None:
        """One more shard, whole or not at all; BadInput where there is no room, and for states that float16 cannot hold."""
        files, lost = dict[str, Array](), dict[str, tuple[float, float]]()
        for name, rows in arrays.items():
            kept, scale = self._reduced(name, rows)
            back = restored(kept, scale)
            lost[name] = float(((back - rows).astype(np.float64) ** 2).sum()), float((rows.astype(np.float64) ** 2).sum())
            files |= {f"{name}.npy": kept} | ({} if scale is None else {f"{name}.scale.npy": scale})
        widths = {name: rows.shape[1] for name, rows in arrays.items()}
        about = {"recordings": [asdict(one) for one in recordings], "lost": lost, "widths": widths}
        write_whole(shard(self.folder, self.count), lambda part: _write_shard(part, files, about))
        self._note(about)

    def write_index(self, about: Mapping[str, object]) -> dict[str, Any]:
        """Write the index, and what it says but for the recordings."""
        arrays = {name: {"width": self.widths[name], "error": lost.share} for name, lost in self.lost.items()}
        known = {**about, "stored": self.stored, "arrays": arrays, "shards": self.count, "bytes": self.bytes}
        whole = {"format": FORMAT, "version": VERSION, **known, "recordings": [asdict(one) for one in self.recordings]}
        write_text(self.folder / "index.json", json.dumps(whole) + "\n")
        return known

    def _note(self, about: Mapping[str, Any]) -> None:
        self.bytes += sum(path.stat().st_size for path in shard(self.folder, self.count).glob("*.npy"))
        self.count += 1
        self.recordings += [_entry(one) for one in about["recordings"]]
        self.widths = dict(about["widths"])
        for name, (error, values) in about["lost"].items():
            lost = self.lost.setdefault(name, Lost())
            lost.error, lost.values = lost.error + error, lost.values + values

    def _reduced(self, name: str, rows: Array) -> tuple[Array, Array | None]:
        """As they are stored, and for int8 the scale of every row."""
        if not np.isfinite(rows).all():
            raise BadInput(f"states {name} hold NaN or infinity: load the pair in another dtype")
        if self.stored == "int8":
            scale = np.abs(rows).max(1, initial=0.0).astype(np.float32) / 127
            return np.rint(rows / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8), scale
        if np.abs(rows).max(initial=0.0) > np.finfo(np.float16).max:
            raise BadInput(f"states {name} reach {np.abs(rows).max():.3g}, more than float16 holds: store them as int8")
        return rows.astype(np.float16), None


@dataclass(frozen=True)
class States:
    """A folder that `Shards` wrote: `about` is its index."""

    folder: Path
    about: Mapping[str, Any]
    recordings: tuple[Entry, ...]

    @classmethod
    def open(cls, folder: Path) -> States:
        """BadInput in one line for what is none, is not finished or was damaged."""
        path, again = folder / "index.json", "`eventspec train features` writes one"
        if not path.is_file():
            unfinished = (
                ", and was not finished: run it again with --resume" if (folder / "run.json").is_file() else f": {again}"
            )
            raise BadInput(f"{folder} holds no states{unfinished}")
        try:
            about = parsed(path.read_bytes())
            if (about["format"], about["version"]) != (FORMAT, VERSION):
                raise ValueError(f"format {about['format']} {about['version']}, wanted {FORMAT} {VERSION}")
            made = cls(folder, about, tuple(_entry(one) for one in about["recordings"]))
            made._check()
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"{path} is damaged, or the states are not those that it describes ({why}): {again}") from None
        return made

    def rows(self, place: int, array: str) -> Array:
        """The rows of an array that are of one recording, float32 [N, D]."""
        number, before = self._places[place]
        begin = sum(one.rows(array) for one in self.recordings[before:place])
        part, entry = shard(self.folder, number), self.recordings[place]
        kept = [self._loaded(part / f"{array}.{ending}") for ending in ENDINGS[self.about["stored"]]]
        cut = [whole[begin : begin + entry.rows(array)] for whole in kept]
        return restored(cut[0], cut[1] if len(cut) > 1 else None)

    def width(self, array: str) -> int | None:
        """Columns of an array; None where there is none of that name."""
        found = self.about["arrays"].get(array)
        return None if found is None else int(found["width"])

    def _loaded(self, path: Path) -> Array:
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return found

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Of every recording the number of its shard, and the place of that shard's first recording."""
        found, first = list[tuple[int, int]](), 0
        for number in range(self.about["shards"]):
            count = len(parsed((shard(self.folder, number) / "shard.json").read_bytes())["recordings"])
            found += [(number, first)] * count
            first += count
        return found

    def _check(self) -> None:
        """ValueError, OSError or KeyError where arrays are not as the index has them."""
        if len(self._places) != len(self.recordings):
            raise ValueError(f"{len(self._places)} recordings in shards, {len(self.recordings)} in the index")
        there: dict[int, list[Entry]] = {}
        for entry, (number, _) in zip(self.recordings, self._places, strict=True):
            there.setdefault(number, []).append(entry)
        for array, own in self.about["arrays"].items():
            for number, entries in there.items():
                rows = sum(entry.rows(array) for entry in entries)
                for ending in ENDINGS[self.about["stored"]]:
                    path = shard(self.folder, number) / f"{array}.{ending}"
                    wanted = (rows, own["width"]) if ending == "npy" else (rows,)
                    if (shape := self._loaded(path).shape) != wanted:
                        raise ValueError(f"{path} is {list(shape)}, wanted {list(wanted)}")


def shard(folder: Path, number: int) -> Path:
    """Where one of the shards lies."""
    return folder / f"shard_{number:04d}"


def restored(kept: Array, scale: Array | None) -> Array:
    """float32 [N, D] of what is stored, and of int8 the scale of every row."""
    rows: Array = kept.astype(np.float32)
    return rows if scale is None else rows * np.asarray(scale)[:, None]


def _entry(found: Mapping[str, Any]) -> Entry:
    window = found["window"]
    return Entry(**{**found, "window": None if window is None else tuple(window)})


def _write_shard(part: Path, files: Mapping[str, Array], about: Mapping[str, object]) -> None:
    part.mkdir()
    try:
        for name, array in files.items():
            (part / name).write_bytes(_as_npy(array))
        write_text(part / "shard.json", json.dumps(about) + "\n")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _as_npy(array: Array) -> bytes:
    held = io.BytesIO()  # numpy itself writes to a full disk without saying so in words
    np.save(held, array, allow_pickle=False)
    return held.getvalue()
