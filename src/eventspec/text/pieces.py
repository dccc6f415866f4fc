"""Text out of tokens while they come: what was given stays, cuts no character, and shows nothing of a stop string. An answer
ends at a stop token, or at the token that completes a stop string; both are kept, its text ends before the string. Stop strings
are looked for in the text that is shown: white space before a first word, as many tokenizers put it there, is none of it.

Text is made token by token from the last few tokens, as vLLM and transformers do it, so an answer's text is the same in one go
and in pieces, and costs the same for every token.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from eventspec.core import Committed, Provisional, Retracted, Update

Decode = Callable[[Sequence[int]], str]

_BROKEN = "\ufffd"
_MOST_OPEN = 3
"""A character's first bytes are three at most: broken ones before the last three stay broken."""


@dataclass(frozen=True)
class Piece:
    """`text` joins the answer for good; `provisional` is what may follow it, in place of the provisional text before."""

    text: str
    provisional: str = ""


class Transcript:
    """The text of an answer, from its tokens one by one. White space before and after it is left out; where one of the `stops`
    ends it, the text ends where the first of them begins, with the white space before that."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self.decode, self.stops = decode, tuple(stops)
        self.stopped = False
        self._text = ""  # final
        self._open = ""  # what the last bytes look like until more come
        self._window: list[int] = []  # the last tokens with text, as context, and those after them
        self._context = 0  # how many of them are context
        self._given = ""  # text of the window that is in `_text`

    def add(self, token: int) -> bool:
        """One more token; whether a stop string has ended the text, after which nothing counts."""
        if self.stopped:
            return True
        self._window.append(token)
        text = self.decode(self._window)
        if not text.startswith(self._given):
            # Neighbouring byte pieces are decoded together, all well or none: the text so far stays, the new ones stand alone.
            self._window, self._context, self._given = self._window[self._context :], 0, ""
            text = self.decode(self._window)
        final = max(len(self._given), len(text.rstrip(_BROKEN)), len(text) - _MOST_OPEN)
        fresh, self._open, self._given = text[len(self._given) : final], text[final:], text[:final]
        if fresh and not self._open:
            self._window = self._window[self._context :]
            self._context, self._given = len(self._window), self.decode(self._window)
        if fresh:
            self._join(fresh)
        return self.stopped

    def _join(self, fresh: str) -> None:
        before = len(self._text)
        self._text += fresh if self._text else fresh.lstrip()
        found = [at for stop in self.stops if (at := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if found:
            self.stopped, self._text, self._open = True, self._text[: min(found)], ""

    def settled(self) -> str:
        """What no token that follows can change: without the beginning of a stop string or of a character."""
        if self.stopped:
            return self._text
        begun = (size for stop in self.stops for size in range(1, len(stop)) if self._text.endswith(stop[:size]))
        return self._text[: len(self._text) - max(begun, default=0)].rstrip()

    def whole(self) -> str:
        """The text if nothing follows."""
        return self._text if self.stopped else (self._text + self._open).rstrip()

    def after(self, tokens: Sequence[int]) -> Transcript:
        """A copy that has read these tokens too."""
        other = copy.copy(self)
        other._window = list(self._window)
        for token in tokens:
            other.add(token)
        return other


def text_of(tokens: Sequence[int], decode: Decode, stops: Sequence[str] = ()) -> str:
    """The text of a finished answer."""
    return Transcript(decode, stops).after(tokens).whole()


def texts_of(parts: Iterable[Sequence[int]], decode: Decode, stops: Sequence[str] = ()) -> list[str]:
    """What every part of a finished answer's tokens adds to its text; joined they are `text_of` all of them."""
    transcript, found, given = Transcript(decode, stops), list[str](), 0
    for part in parts:
        for token in part:
            transcript.add(token)
        settled = transcript.settled()
        found.append(settled[given:])
        given = max(given, len(settled))
    if found:
        found[-1] += transcript.whole()[given:]
    return found


def pieces(updates: Generator[Update, None, None], decode: Decode, stops: Sequence[str] = ()) -> Iterator[Piece]:
    """Token updates as text: the pieces' `text` joined is `text_of` all committed tokens. Leaving early closes `updates`."""
    final, ahead = Transcript(decode, stops), list[int]()
    given = shown = ""
    with contextlib.closing(updates):
        for update in updates:
            if isinstance(update, Committed):
                final = final.after(update.tokens)
                del ahead[: len(update.tokens)]
            elif isinstance(update, Provisional):
                ahead += update.tokens
            elif isinstance(update, Retracted):
                del ahead[len(ahead) - update.count :]
            settled = final.settled()
            guess = final.after(ahead).settled()[len(settled) :]
            if (settled, guess) != (given, shown):
                yield Piece(settled[len(given) :], guess)
            given, shown = settled, guess
    if (whole := final.whole()) != given or shown:
        yield Piece(whole[len(given) :])


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
