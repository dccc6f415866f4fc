"""What the reader has been shown: provisional tokens in step with committed ones. Both lanes come here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from eventspec.core import Committed, ConstraintState, Provisional, Retracted, Sampling, Trace, Update
from eventspec.engine.admissible import sayable
from eventspec.tree import exact_text

Emit = Callable[[Update], None]


def ignore(update: Update) -> None:
    """Drop an update."""


class Display:
    """Emits updates that always fold into the answer. `vocabulary`: ids from here on are no tokens. `lock`: see
    `Executor.lock`."""

    def __init__(
        self, emit: Emit, sampling: Sampling, vocabulary: int, trace: Trace, lock: AbstractContextManager[object]
    ) -> None:
        self.emit, self.sampling, self.vocabulary, self.trace = emit, sampling, vocabulary, trace
        self.shown = list[int]()
        self._committed = 0
        self._lock = lock

    def shows_after(
        self, answer: Sequence[int], state: ConstraintState | None, drafter: str
    ) -> Callable[[Iterable[int]], None]:
        """What shows a drafter's best chain after the answer so far. A late draft, after a shorter one, is not shown, and
        neither is what the answer may not say; what is no chain of tokens is noted."""
        answer, left = list(answer), self.sampling.max_new_tokens - len(answer)

        def show(chain: Iterable[int]) -> None:
            # Copied and checked before the lock: it is the drafter's own object, and the target waits for the lock.
            try:
                tokens = _tokens(chain, left, self.vocabulary)
                tokens = tokens[: sayable(tokens, answer, self.sampling, state)]
            except Exception as error:
                self.trace.note(f"drafter {drafter} showed what cannot be read ({exact_text(error, 120)}); it was left out")
                return
            with self._lock:
                if tokens and len(answer) == self._committed:
                    self._provisional(tokens)

        return show

    def commit(self, tokens: list[int]) -> None:
        """Commit; what was shown and does not fit is withdrawn before."""
        with self._lock:
            self.trace.mark("first_committed")
            same = _common(self.shown, tokens)
            if same < len(tokens):
                self._withdraw_to(same)
            self.shown = self.shown[len(tokens) :]
            self._committed += len(tokens)
            self.emit(Committed(tuple(tokens)))

    def end(self) -> None:
        """Withdraw what was never committed; a draft that is still in the making is not shown."""
        with self._lock:
            self._committed = -1
            self._withdraw_to(0)

    def _provisional(self, chain: list[int]) -> None:
        self.trace.mark("first_provisional")
        self._withdraw_to(_common(self.shown, chain))
        if len(chain) > len(self.shown):
            self.trace.provisional += len(chain) - len(self.shown)
            self.emit(Provisional(tuple(chain[len(self.shown) :])))
            self.shown = chain

    def _withdraw_to(self, count: int) -> None:
        if len(self.shown) > count:
            self.trace.retracted += len(self.shown) - count
            self.emit(Retracted(len(self.shown) - count))
            self.shown = self.shown[:count]


def _tokens(chain: Iterable[Any], most: int, vocabulary: int) -> list[int]:
    """The first tokens of whatever a drafter shows, `most` of them; ValueError for what is none."""
    found: list[int] = []
    for token in islice(iter(chain), most):
        try:
            found.append(operator.index(token))
        except TypeError:
            raise ValueError(f"{str(token)[:40]!r} is no token") from None
        if not 0 <= found[-1] < vocabulary:
            raise ValueError(f"token {found[-1]} is none of {vocabulary}")
    return found


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
