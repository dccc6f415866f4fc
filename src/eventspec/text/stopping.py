"""When an answer ends: at a stop token, or at the token that completes a stop string. Both tokens are kept; its text ends
before the string (``text.pieces``)."""

from __future__ import annotations

from collections.abc import Sequence

from eventspec.text.pieces import Decode, Transcript


class StopDetector:
    """Looks for the end of one answer; the engine's `StopCheck`."""

    def __init__(self, ids: Sequence[int], strings: Sequence[str] = (), decode: Decode = lambda ids: "") -> None:
        self._ids, self._transcript = frozenset(ids), Transcript(decode, strings) if strings else None

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """How many of the answer's next `tokens` belong to it when it ends among them, else None."""
        for place, token in enumerate(tokens):
            if (self._transcript is not None and self._transcript.add(token)) or token in self._ids:
                return place + 1
        return None
