"""The bundled clips, which have names wherever a recording's path is taken."""

from __future__ import annotations

from pathlib import Path

from eventspec.core import BadInput
from eventspec.files import check_name

PREFIX = "example:"
CLIPS = Path(__file__).parent.parent / "data/clips"
EXAMPLES = {"street": "street_scene", "davis": "davis346_traffic_1s"}
"""What follows the prefix, and the folder: a rendered street, and a second of real traffic."""


def place(path: Path | str) -> Path:
    """Where a recording lies: the folder of "example:NAME", any other path as it is. BadInput for an unknown name, and for an
    empty path, which is not the working folder."""
    text = str(path)
    if not text:
        raise BadInput("the recording's path is empty: name a file or folder")
    if not text.startswith(PREFIX):
        return check_name(path)
    name = text.removeprefix(PREFIX)
    if name not in EXAMPLES:
        raise BadInput(f"there is no {text}: choose one of {', '.join(PREFIX + known for known in EXAMPLES)}")
    return CLIPS / EXAMPLES[name]
