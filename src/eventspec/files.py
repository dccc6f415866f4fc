"""Files that are written whole or not at all, and the JSON files of checkpoints."""

from __future__ import annotations

import io
import json
import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eventspec.errors import BadCheckpoint, BadInput


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: beside it first, then renamed. BadInput when the place cannot be written."""
    write_whole(path, lambda part: part.write_text(text))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """The same for a file that `write` writes; it is handed the name beside it, which has another suffix."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")  # others may write the same file at the same time
    try:
        write(part)
        part.rename(path)
    except BadInput as error:
        if str(part) not in str(error):
            raise
        raise BadInput(str(error).replace(str(part), str(path))) from None
    except (OSError, RuntimeError) as error:  # torch's writer raises the second
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).replace(str(part), str(path))
        raise BadInput(f"{path} cannot be written ({reason}): choose another place") from None
    finally:
        with suppress(OSError):  # it was renamed, or could not be made
            part.unlink()


def append_line(file: io.FileIO, line: str) -> None:
    """One more line, or nothing, in a file that is open for appending; BadInput, with its name, where there is no room."""
    data, size = f"{line}\n".encode(), os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        with suppress(OSError):
            file.truncate(size)
            if not size:
                Path(file.name).unlink()
        raise BadInput(f"{file.name} cannot be written ({error.strerror}): make room, or choose another place") from None


def check_writable(path: Path) -> None:
    """BadInput where a file of this name cannot be written, in a folder that is there or can be made. Nothing is left behind:
    this is for before long work begins."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is no ordinary file, and would be replaced by one: choose another place")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            writable = not path.exists() or os.access(path, os.W_OK)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({folder}: {error.strerror}): choose another place") from None
    if not writable:
        raise BadInput(f"{path} cannot be written: choose another place, or check its rights")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint folder; BadCheckpoint names the file when it is missing or broken."""
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing: the folder is not a complete checkpoint")
    try:
        data = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # neither JSON, nor UTF-8, nor a number that can be
        raise BadCheckpoint(f"{path} is not valid JSON ({error}): fetch it again") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} must hold one JSON object: fetch it again")
    return data
