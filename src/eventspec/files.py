"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from eventspec.errors import BadInput


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: beside it first, then renamed. BadInput when the place cannot be written."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # another process may write the same file
    try:
        part.write_text(text)
        part.rename(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"{path} cannot be written ({error.strerror}): choose another place") from None
