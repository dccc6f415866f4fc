"""Method `auto`: for every question the method that should answer it soonest, by what was measured of each so far."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventspec.core import BadInput
from eventspec.drafters import TextPrior
from eventspec.engine.method import Answered, Asked
from eventspec.files import write_text

NOISE = 0.15
"""How far one answer's time is from its mean, as a share of it: how soon a method counts as known."""
MEMORY = 20.0
"""Answers that a mean remembers: machines drift, and become busy."""
FADING = 0.995
"""Of what is known of a method, behind every answer of another one."""
USUAL_TOKENS = 32.0
"""Of an answer about which nothing is known."""
KNOWN_QUESTIONS = 4096


@dataclass
class Seen:
    """Means over a method's latest answers: seconds to the first committed token, and of every further one; `answers` counts
    them, at most `MEMORY`, and fades."""

    answers: float = 0.0
    first: float = 0.0
    further_answers: float = 0.0
    further: float = 0.0

    def add(self, first: float, decode: float, tokens: int) -> None:
        """One more answer. One of a single token says nothing of further ones."""
        self.answers = min(self.answers, MEMORY - 1) + 1
        self.first += (first - self.first) / self.answers
        if tokens > 1:
            self.further_answers = min(self.further_answers, MEMORY - 1) + 1
            self.further += (decode / (tokens - 1) - self.further) / self.further_answers

    def fade(self) -> None:
        self.answers *= FADING
        self.further_answers *= FADING

    def hoped(self, tokens: float) -> float:
        """The least time that an answer of so many tokens may well take: the mean less what is uncertain about it; 0 where
        nothing is known."""
        if not self.answers or (tokens > 1 and not self.further_answers):
            return 0.0
        known = min(self.answers, self.further_answers) if tokens > 1 else self.answers
        return (self.first + self.further * max(0.0, tokens - 1)) * (1 - NOISE / math.sqrt(known))

    @classmethod
    def read(cls, row: Any) -> Seen:
        """Of a file's row; ValueError, KeyError or TypeError for what is none."""
        found = cls(**{name: float(row[name]) for name in cls.__dataclass_fields__})
        if not all(math.isfinite(value) and value >= 0 for value in vars(found).values()):
            raise ValueError("a mean is no time")
        return found


@dataclass
class Chooser:
    """Picks one of `methods` for each question. A method that was not tried comes first; then the one with the least time that
    its answer may well take (a lower confidence bound), so that what is uncertain is tried again, and what is known to be slow
    is not. The baseline is among them, so that in the long run `auto` is no slower than that by more than what trying costs.

    Times are learnt apart for recordings that were read before and for others: what a drafter costs beside the target's vision
    encoding is nothing to a second question.
    """

    methods: Sequence[str]
    needs_events: frozenset[str] = frozenset()
    """Those that are not for a recording without events."""
    prior: TextPrior | None = None
    """Says how long answers to a question usually are, until they are known."""
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)
    lengths: OrderedDict[str, float] = field(default_factory=OrderedDict)
    path: Path | None = None
    """Where what was learnt is kept."""
    _written: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self, asked: Asked) -> str:
        """The method for a question."""
        tokens = min(float(asked.most), self.expected(asked.question))
        open_to = [name for name in self.methods if asked.events or name not in self.needs_events]
        with self._lock:
            seen = self.seen.get(_state(asked), {})
            return min(open_to, key=lambda name: seen.get(name, Seen()).hoped(tokens))

    def expected(self, question: str) -> float:
        """How many tokens an answer to a question has."""
        with self._lock:
            if question in self.lengths:
                return self.lengths[question]
        known = None if self.prior is None else self.prior.mean_length(question)
        return USUAL_TOKENS if known is None else known

    def learn(self, name: str, asked: Asked, answered: Answered) -> None:
        """What an answer by a method took."""
        with self._lock:
            seen = self.seen.setdefault(_state(asked), {})
            for other, own in seen.items():
                if other != name:
                    own.fade()
            seen.setdefault(name, Seen()).add(answered.first_seconds, answered.decode_seconds, answered.tokens)
            before = self.lengths.pop(asked.question, float(answered.tokens))
            self.lengths[asked.question] = before + (answered.tokens - before) / 4
            while len(self.lengths) > KNOWN_QUESTIONS:
                self.lengths.popitem(last=False)
            if self.path is not None and time.monotonic() - self._written > 1.0:
                self._write(self.path)

    def anew(self) -> Chooser:
        """The same before it learnt anything, which nobody keeps."""
        return Chooser(self.methods, self.needs_events, self.prior)

    def remembering(self, path: Path) -> Chooser:
        """Another one with what a file remembers, if it can be read, which keeps it there. What is old is worth less."""
        found = Chooser(self.methods, self.needs_events, self.prior, path=path)
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            for state, rows in json.loads(path.read_text()).items():
                found.seen[str(state)] = {name: Seen.read(row) for name, row in rows.items() if name in self.methods}
        for rows in found.seen.values():
            for own in rows.values():
                own.answers, own.further_answers = min(own.answers, 4.0), min(own.further_answers, 4.0)
        return found

    def _write(self, path: Path) -> None:
        """Keep it; a folder that cannot be written is not missed."""
        self._written = time.monotonic()
        table: Mapping[str, Any] = {state: {n: vars(own) for n, own in rows.items()} for state, rows in self.seen.items()}
        with suppress(BadInput, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(table, indent=1) + "\n")


def _state(asked: Asked) -> str:
    return "read before" if asked.read_before else "new"
