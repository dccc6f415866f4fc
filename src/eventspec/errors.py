"""What the user can mend, told in one line; and files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path


class EventspecError(Exception):
    """Something the user can mend: one line that says what is wrong, where, and what to do. The command line exits 2."""


class BadInput(EventspecError):
    """A file, field, option or argument that cannot be used."""


class BadCheckpoint(EventspecError):
    """A model or pair folder that misses a file, or holds tensors that do not fit."""


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: beside it first, then renamed. BadInput when the place cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        part.rename(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"{path} cannot be written ({error.strerror}): choose another place") from None
