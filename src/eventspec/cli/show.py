"""How an answer grows, for a person: provisional tokens turning committed or retracted, as a slowed-down replay or as lines."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventspec.errors import several

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from eventspec.ask import Generation, Result
    from eventspec.core import Update

LATE_GUESS = (
    "A first guess after the first token is one at what follows it: a head drafts from the target's prefill on, and another "
    "drafter was not ready before."
)
Decode = Callable[[Sequence[int]], str]


@dataclass
class Shown:
    """Committed ids, provisional ids, and those that were just withdrawn."""

    committed: list[int] = field(default_factory=list)
    provisional: list[int] = field(default_factory=list)
    retracted: list[int] = field(default_factory=list)

    def take(self, update: Update) -> tuple[list[int], list[int]]:
        """The ids that an update is about, behind those that stand before them."""
        from eventspec.core import Committed, Retracted

        if isinstance(update, Committed):
            before, ids = self.committed, list(update.tokens)
            self.committed = [*before, *ids]
            self.provisional = self.provisional[len(ids) :]
            return before, ids
        if isinstance(update, Retracted):
            at = len(self.provisional) - update.count
            self.provisional, self.retracted = self.provisional[:at], self.provisional[at:]
            return [*self.committed, *self.provisional], self.retracted
        before, ids = [*self.committed, *self.provisional], list(update.tokens)
        self.provisional += ids
        return before, ids

    def text(self, decode: Decode) -> Text:
        """Committed plain, provisional dim and underlined, retracted red and struck."""
        from rich.text import Text

        parts = ((self.committed, "bold"), (self.provisional, "dim underline"), (self.retracted, "red strike"))
        shown, before = Text(), list[int]()
        for ids, style in parts:
            whole = decode([*before, *ids])
            shown.append(whole[len(decode(before)) :], style)
            if style != "red strike":
                before += ids
        return shown


def record(asking: Generation) -> list[tuple[float, Update]]:
    """Run a question and keep every update with its time in seconds."""
    return [(asking.trace.now(), update) for update in asking.updates()]


def joined(updates: Iterable[tuple[float, Update]]) -> list[tuple[float, Update]]:
    """Provisional updates that follow each other as one, at the time of the first: for a page that does not move."""
    from eventspec.core import Provisional

    found: list[tuple[float, Update]] = []
    for at, update in updates:
        if found and isinstance(update, Provisional) and isinstance(last := found[-1][1], Provisional):
            found[-1] = found[-1][0], Provisional(last.tokens + update.tokens)
        else:
            found.append((at, update))
    return found


def grown(updates: Iterable[tuple[float, Update]], decode: Decode) -> list[tuple[float, str, str]]:
    """(seconds, committed text, provisional text) after every update."""
    page, found = Shown(), []
    for at, update in updates:
        page.take(update)
        committed = decode(page.committed)
        found.append((at, committed, decode([*page.committed, *page.provisional])[len(committed) :]))
    return found


def in_short(result: Result) -> str:
    """Who drafted an answer, and how long it took, for a line below it."""
    first, end = (1e3 * result.trace.marks[name] for name in ("first_committed", "end"))
    how = f"method {result.chosen}, {'not verified' if result.trace.skipped else f'tau {result.trace.tau:.2f}'}"
    return f"({several(len(result.token_ids), 'token')}, the first after {first:.1f} ms, all after {end:.1f} ms; {how})"


def show_live(asking: Generation) -> None:
    """Print an answer while it comes, for `generate --provisional`."""
    from rich.console import Console

    from eventspec.text import text_of

    stops = asking.request.sampling.stop_strings
    shown: Decode = (lambda ids: text_of(ids, asking.decode, stops)) if stops else asking.decode
    replay(Console(), ((asking.trace.now(), update) for update in asking.updates()), shown, slower=0.0)


def replay(console: Console, updates: Iterable[tuple[float, Update]], decode: Decode, slower: float) -> None:
    """On a terminal an animation `slower` times slower than it happened; elsewhere one line an update."""
    if console.is_terminal:
        _animate(console, updates, decode, slower)
        return
    page = Shown()
    for at, update in updates:
        before, ids = page.take(update)
        known = decode(before)
        more = decode([*before, *ids])[len(known) :]
        within = "…" if known[-1:].isalnum() and more[:1].isalnum() else ""  # it goes on in the middle of a word
        said = f"{1e3 * at:8.1f} ms  {type(update).__name__.lower():<12}{within}{more.strip()}"
        line = textwrap.fill(said, max(40, console.width), subsequent_indent=" " * 25)
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _animate(console: Console, updates: Iterable[tuple[float, Update]], decode: Decode, slower: float) -> None:
    from rich.live import Live

    page = Shown()
    began = time.monotonic()
    with Live(page.text(decode), console=console, refresh_per_second=30) as live:
        for at, update in updates:
            time.sleep(max(0.0, began + at * slower - time.monotonic()))
            page.take(update)
            live.update(page.text(decode), refresh=True)
        page.retracted = []
        live.update(page.text(decode), refresh=True)
