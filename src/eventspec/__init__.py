"""Ask a question about a recording and get the video model's exact answer sooner, with an event camera's head start.

The public names are imported on first use, so ``import eventspec`` alone costs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

_ROOMS = {
    "ask": ("Ask", "Batch", "Result", "generate", "generate_many", "stream", "stream_text"),
    "core": (
        *("BadInput", "Budget", "Committed", "Context", "Drafter", "DraftSession", "EventspecError", "Limits", "Media"),
        *("Proposal", "Provisional", "Request", "Retracted", "Sampling", "Scores", "Target", "TargetPrompt"),
        *("TargetSession", "Trace", "Verdict", "Window"),
    ),
    "events": ("EventStream", "count_image", "histogram", "time_surface", "voxel_grid"),
    "pairs": ("Pair", "load_pair"),
    "recordings": ("Recording", "sliding_windows"),
    "text": ("Piece",),
}
# Public name -> the room it lives in. Each also stands below, where type checkers look.
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

if TYPE_CHECKING:
    from eventspec.ask import Ask as Ask
    from eventspec.ask import Batch as Batch
    from eventspec.ask import Result as Result
    from eventspec.ask import generate as generate
    from eventspec.ask import generate_many as generate_many
    from eventspec.ask import stream as stream
    from eventspec.ask import stream_text as stream_text
    from eventspec.core import BadInput as BadInput
    from eventspec.core import Budget as Budget
    from eventspec.core import Committed as Committed
    from eventspec.core import Context as Context
    from eventspec.core import Drafter as Drafter
    from eventspec.core import DraftSession as DraftSession
    from eventspec.core import EventspecError as EventspecError
    from eventspec.core import Limits as Limits
    from eventspec.core import Media as Media
    from eventspec.core import Proposal as Proposal
    from eventspec.core import Provisional as Provisional
    from eventspec.core import Request as Request
    from eventspec.core import Retracted as Retracted
    from eventspec.core import Sampling as Sampling
    from eventspec.core import Scores as Scores
    from eventspec.core import Target as Target
    from eventspec.core import TargetPrompt as TargetPrompt
    from eventspec.core import TargetSession as TargetSession
    from eventspec.core import Trace as Trace
    from eventspec.core import Verdict as Verdict
    from eventspec.core import Window as Window
    from eventspec.events import EventStream as EventStream
    from eventspec.events import count_image as count_image
    from eventspec.events import histogram as histogram
    from eventspec.events import time_surface as time_surface
    from eventspec.events import voxel_grid as voxel_grid
    from eventspec.pairs import Pair as Pair
    from eventspec.pairs import load_pair as load_pair
    from eventspec.recordings import Recording as Recording
    from eventspec.recordings import sliding_windows as sliding_windows
    from eventspec.text import Piece as Piece
else:  # hidden from type checkers, so that they still refuse a misspelt name
    from eventspec import lazy

    __getattr__ = lazy.lazily(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})


def __dir__() -> list[str]:
    return sorted([*_HOMES, *globals()])
