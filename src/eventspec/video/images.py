"""A folder of images, or one image, as a video clip."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.errors import BadSetting, several
from eventspec.files import check_file
from eventspec.video.clip import VideoFile
from eventspec.video.stored import Frames, check_frame, read_clip
from eventspec.video.upright import AS_STORED, WORDS, orientation_note, upright, upright_size

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff"})
ORIENTATION = 0x0112  # EXIF's tag
IMAGE_STARTS = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF.{4}WEBP|II\*\x00|MM\x00\*", re.DOTALL)
UNREADABLE = (OSError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, EOFError, struct.error)
"""What Pillow raises for damaged files (found by fuzzing)."""
TIMES_FILE = "timestamps.txt"
DEFAULT_FPS = 20.0  # the rate of DSEC's images


def image_paths(folder: Path) -> list[Path]:
    """The png, jpg, webp and tif files of a folder; numbers in names count as numbers: frame_2 comes before frame_10."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")]
    parts = {path: re.split(r"(\d+)", path.name, flags=re.ASCII) for path in found}
    return sorted(found, key=lambda path: [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts[path]])


def looks_like_image(path: Path) -> bool:
    """Whether the first bytes are those of an image, whatever it is called."""
    with path.open("rb") as file:
        return IMAGE_STARTS.match(file.read(16)) is not None


def read_image(path: Path) -> VideoFile:
    """One image as a clip of one frame, at time 0."""
    return read_images([path], np.zeros(1, np.int64), str(path), ("one image: a clip of one frame, at time 0",))


def read_image_folder(
    folder: Path | str, fps: float | None = None, times_us: list[int] | None = None, times_file: Path | None = None
) -> VideoFile:
    """Images in order of name. Times: `times_us`, else `times_file` or ``timestamps.txt`` (one int64 us a line), else `fps`
    (default 20). Images of a long clip stay in their files and a note says so. They must have one size, and as many times.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder of images: check the path")
    paths = image_paths(folder)
    if not paths:
        raise BadInput(f"{folder}: has no png, jpg, webp or tif images: give a folder of frames")
    times, notes = _times(folder, len(paths), fps, times_us, times_file or folder / TIMES_FILE)
    return read_images(paths, times, str(folder), notes)


def read_images(
    paths: list[Path], times_us: np.ndarray[Any, np.dtype[np.int64]], source: str, notes: tuple[str, ...] = ()
) -> VideoFile:
    """These images, of which there is at least one, at these times int64 [K] us; for the rest as `read_image_folder`."""
    found: list[str] = []
    first = _read(paths[0], found)
    _check_size(paths, first.shape[:2])
    return read_clip(lambda place: _read(paths[place]), first.shape[:2], times_us, source, (*notes, *found))


def _read(path: Path, notes: list[str] | None = None) -> Frames:
    """One image as uint8 [H, W, 3] RGB, upright; 16-bit grey keeps its upper 8 bits. BadInput when it cannot be read.
    What was done to it, or left out, goes into `notes`."""
    with _opened(path) as image:
        turned = _orientation(image) if image.format == "TIFF" else AS_STORED  # by Pillow, when it is decoded
        if notes is not None and image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
            notes.append(f"of images with several pages the first is read: {path.name} has {image.n_frames}")
        image.load()
        orientation = _orientation(image)  # which may stand after the pixels
        if notes is not None:
            notes += orientation_note("images", max(turned, orientation))
        if image.mode == "F":
            raise ValueError("its pixels are floating-point numbers, not 8 or 16 bits")
        if image.mode.startswith("I"):
            grey = np.clip(np.asarray(image).astype(np.int32) >> 8, 0, 255).astype(np.uint8)
            return upright(np.repeat(grey[..., None], 3, axis=2), orientation)
        return upright(np.asarray(image.convert("RGB")), orientation)


def _check_size(paths: list[Path], wanted: tuple[int, ...]) -> None:
    """BadInput names the first image of another size, height and width, than the first one; from their first bytes where these
    are enough."""
    for path in paths[1:]:
        with _opened(path) as image:
            known = image.format != "PNG" or not image.info.keys().isdisjoint(("exif", "Raw profile type exif"))
            size = upright_size(image.height, image.width, _orientation(image) if known else AS_STORED)
        if size != wanted and (size := _read(path).shape[:2]) != wanted:
            both = f"is {size[1]}x{size[0]} but {paths[0].name} is {wanted[1]}x{wanted[0]}"
            raise BadInput(f"{path}: {both}: frames of one clip have one size")


def _orientation(image: Any) -> int:
    found = image.getexif().get(ORIENTATION)
    return found if found in WORDS else AS_STORED


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The PIL image, whose pixels are decoded when they are used; PIL's errors become one BadInput."""
    from PIL import Image

    check_file(path)
    try:
        # By its path a TIFF would be mapped into memory, and Pillow forgets its quarter turns then.
        with path.open("rb") as file, Image.open(file, formats=("PNG", "JPEG", "WEBP", "TIFF")) as image:
            check_frame(image.height, image.width, str(path))
            yield image
    except (*UNREADABLE, Image.DecompressionBombError) as error:
        raise BadInput(f"{path}: not a readable image ({' '.join(str(error).split())[:100]}): write it again") from None


def _times(
    folder: Path, frames: int, fps: float | None, times_us: list[int] | None, listed: Path
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], tuple[str, ...]]:
    """int64 [K] microseconds and a note on where they come from."""
    if times_us is not None:
        times, place = times_us, "times_us"
    elif fps is None and listed.exists():
        times, place = _read_times(listed), str(listed)
    else:
        rate = DEFAULT_FPS if fps is None else fps
        if not 0 < rate <= 1e6:
            raise BadSetting("fps", f"is {rate}: give frames a second, above 0")
        note = f"frame times are assumed: {rate:g} frames a second" + ("" if fps else f" (no {TIMES_FILE})")
        return np.round(np.arange(frames) * (1e6 / rate)).astype(np.int64), (note,)
    if len(times) != frames:
        raise BadInput(
            f"{place}: {several(len(times), 'time')} for {several(frames, 'image')} in {folder}: give one time an image"
        )
    return np.array(times, np.int64), ()


def _read_times(path: Path) -> list[int]:
    times: list[int] = []
    for number, text in lines_of(path):
        if not re.fullmatch(r"\d{1,17}", text, flags=re.ASCII):  # longer ones are nanoseconds
            raise BadInput(f"{path}: line {number} is {text[:40]!r}: write one whole number of microseconds a line")
        times.append(int(text))
    return times


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Number, from 1 on, and text of every line that is neither empty nor a comment."""
    check_file(path)
    try:
        lines = path.read_text("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    stripped = ((number, line.strip()) for number, line in enumerate(lines, start=1))
    return ((number, line) for number, line in stripped if line and not line.startswith("#"))
