"""Method `auto`: for every question the method that should answer it soonest, by what was measured of each so far."""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from eventspec.core import BadInput
from eventspec.drafters import TextPrior
from eventspec.engine.method import AnswerTimes, QuestionInfo
from eventspec.files import parsed, write_text
from eventspec.process_lock import ProcessLock

NOISE = 0.1
"""How far one answer's time is from what is expected of it, as a share: how soon a method counts as known. (500 measured
answers, replayed in 40 orders, also with `hybrid` 2 to 15 ms dearer: as good as 0.15 or better, which tries more.)"""
MEMORY = 24
"""Answers of a method that are remembered: machines drift, and become busy."""
OCTAVE = 0.25
"""What an answer twice or half as long counts for."""
FAR = 0.25
"""What any answer counts for."""
FADING = 0.995
"""Of what is known of a method, after every answer of another one."""
OLD = 8
"""Answers that count of those that a file remembers."""
USUAL_TOKENS = 32.0
"""Of the first answer, where nothing is known about it."""
KNOWN_QUESTIONS = 4096
STANDING = 8
"""Answers to one question after which it is learnt about by itself."""
TRIES = 3
"""Answers to a standing question after which the dearest does not count: one may be slow by chance."""
BRIEF = 12
"""Tokens that a head start mostly says whole."""
MARGIN = 0.03
"""By what share another method has to be better than the preferred one: telling apart what is closer costs more than it gains.
(Replayed on 400 measured answers in 40 orders: 0.994 of the best fixed method, a tenth of them below 0.990, and 0.987 and 0.980
without it; where another method is better by 4 %, 0.991 and 0.994. AMD EPYC.)"""
STANDING_QUESTIONS = 256
"""That are learnt about by themselves, the latest."""


@dataclass
class Record:
    """A method's latest answers, each (seconds to the first committed token, seconds from there on, tokens), and how much what
    is known of them has faded. `standing`: those to one question, which are few."""

    answers: list[tuple[float, float, int]] = field(default_factory=list)
    faded: float = 1.0
    count: int = 0
    """All answers, the forgotten ones included."""
    standing: bool = False

    def add(self, first: float, decode: float, tokens: int) -> None:
        """One more answer."""
        self.answers = [*self.answers[1 - MEMORY :], (first, decode, tokens)]
        self.faded = min(1.0, self.faded + 1 / len(self.answers))
        self.count += 1

    def counted(self) -> list[tuple[float, float, int]]:
        """The answers that say what a token costs: of a few the dearest does not, something else may have run beside it."""
        if not self.standing or len(self.answers) < TRIES:
            return self.answers
        return sorted(self.answers, key=lambda answer: answer[1] / max(1, answer[2] - 1))[:-1]

    def near(self, tokens: float, steady: bool) -> list[float]:
        """What each answer counts for where one of so many tokens is expected: those of about that length count most, as a head
        start makes short answers free and long ones not. `steady`: there is no head start, and all count alike."""
        return [1.0 if steady else max(FAR, OCTAVE ** abs(math.log2(max(1.0, tokens) / count))) for *_, count in self.counted()]

    def first(self, tokens: float, steady: bool) -> float:
        """Seconds to the first token of such an answer: the weighted median of what was seen. A longer answer has a larger head
        start, and each of its nodes delays the first token."""
        known = sorted(zip((first for first, *_ in self.counted()), self.near(tokens, steady), strict=True))
        sums = list(accumulate(weight for _, weight in known))
        return known[bisect_left(sums, sums[-1] / 2)][0]

    def further(self, tokens: float, steady: bool) -> tuple[float, float]:
        """Seconds that such an answer takes after its first token, and how many answers that is known from."""
        counted, near = self.counted(), self.near(tokens, steady)
        spent = sum(weight * decode for weight, (_, decode, _) in zip(near, counted, strict=True))
        said = sum(weight * (count - 1) for weight, (_, _, count) in zip(near, counted, strict=True))
        return max(0.0, tokens - 1) * spent / said if said else 0.0, self.faded * sum(near)

    def hoped(self, tokens: float, steady: bool = False) -> float:
        """The least time that an answer of so many tokens may well take: what is expected less what is uncertain about it; 0
        where nothing is known."""
        if not self.answers:
            return 0.0
        further, known = self.further(tokens, steady)
        return (self.first(tokens, steady) + further) * max(0.0, 1 - NOISE / math.sqrt(known))

    @classmethod
    def read(cls, rows: Any) -> Record:
        """Of a file's rows; ValueError, OverflowError or TypeError for what are none."""
        found = [(float(first), float(decode), int(tokens)) for first, decode, tokens in rows[-OLD:]]
        if not found:
            raise ValueError("there is no answer")
        if not all(0 <= value < 1e9 for row in found for value in row) or not all(count > 0 for _, _, count in found):
            raise ValueError("an answer took no time")
        return cls(found, count=len(found))


@dataclass
class Chooser:
    """Picks one of `methods` for each question. One of which nothing is known comes first (of plain decoding something is, see
    `_hoped`); then the one with the least time that its answer may well take (a lower confidence bound), so that what is
    uncertain is tried again, and what is known to be slow is not. The baseline is among them, so that in the long run `auto` is
    no slower than that by more than what trying costs.

    Times are learnt apart for recordings that were read before and for others: what a drafter costs beside the target's vision
    encoding is nothing to a second question. There `BRIEF` answers are learnt apart from others: a head start says all of the
    one and delays the other. So is the first answer of a process, whose caches are cold: a program that asks once goes by what
    programs before it took.
    """

    methods: Sequence[str]
    needs: Mapping[str, str] = field(default_factory=dict)
    """By method, the sense without which a recording is not for it."""
    prior: TextPrior | None = None
    """Says how long answers to a question usually are, until they are known."""
    steady: frozenset[str] = frozenset()
    """Those that draft nothing, so that every further token costs the same."""
    rereading: frozenset[str] = frozenset()
    """Those for recordings that were read before only: what they need of the target's prompt is there then."""
    preferred: str = ""
    """The one that is taken where others are no better by more than a margin; of recordings that were read before it is for
    `BRIEF` answers, and one of `rereading` for others."""
    seen: dict[str, dict[str, Record]] = field(default_factory=dict)
    by_question: OrderedDict[str, dict[str, Record]] = field(default_factory=OrderedDict)
    """Of recordings that were read before; no file remembers it."""
    lengths: OrderedDict[str, float] = field(default_factory=OrderedDict)
    usual: float = USUAL_TOKENS
    """Tokens of the latest answers, whatever was asked."""
    path: Path | None = None
    """Where what was learnt is kept."""
    cold: set[str] = field(default_factory=set)
    """Methods that did not run in this process yet, and whose first answer here teaches nothing about the later ones."""
    _written: float = 0.0
    _lock: ProcessLock = field(default_factory=ProcessLock)

    def suited(self, senses: Collection[str]) -> list[str]:
        """As `Choose.suited`."""
        return [name for name in self.methods if self.needs.get(name) in (None, *senses)]

    def choose(self, asked: QuestionInfo) -> str:
        """The method for a question."""
        tokens = min(float(asked.most), self.expected(asked.question))
        open_to = self.suited(asked.senses)
        with self._lock:
            begins = self._begins
            # What no first answer is known of comes in the order of what later ones took.
            states = dict.fromkeys((begins, False))
            usual = [name for name in open_to if asked.read_before or name not in self.rereading]
            again = asked.read_before and tokens > BRIEF
            preferred = next((name for name in self.methods if again and name in self.rereading), self.preferred)
            margin = {name: 1.0 if name == preferred else 1.0 + MARGIN for name in usual}
            found = min(
                usual, key=lambda name: tuple(margin[name] * self._hoped(name, tokens, asked, state) for state in states)
            )
            own = self.by_question.get(asked.question, {}) if asked.read_before else {}
            if sum(record.count for record in own.values()) < STANDING:
                return found
            # What was never chosen for this question is left, as long as it is not what would be chosen for others now.
            tried = {name: own.get(name, Record(standing=True)) for name in open_to if name in own or name == found}
            return min(tried, key=lambda name: tried[name].hoped(tokens, name in self.steady))

    def _hoped(self, name: str, tokens: float, asked: QuestionInfo, begins: bool) -> float:
        """As `Record.hoped`, of a method where a question stands.

        Of a `steady` one that was not tried here, half is known: what follows its first token takes what it took in the other
        case, with recordings that were read before or with others, or what a step is thought to take. The first token comes no
        sooner than the soonest that was seen here. All that is less sure the more answers were seen without it, so that in the
        end it is tried, whatever was thought."""
        here, steady = self.seen.get(_state(asked, tokens, begins), {}), name in self.steady
        there = self.seen.get(_state(replace(asked, read_before=not asked.read_before), tokens, begins), {})
        if name in here or not here or not steady or (name not in there and not asked.step_seconds):
            return here.get(name, Record()).hoped(tokens, steady)
        unsure = NOISE / math.sqrt(FADING ** sum(own.count for own in here.values()))
        least = min(own.first(tokens, other in self.steady) for other, own in here.items())
        further = there[name].further(tokens, steady)[0] if name in there else (tokens - 1) * asked.step_seconds
        return (least + max(0.0, further)) * max(0.0, 1 - unsure)

    def expected(self, question: str) -> float:
        """How many tokens an answer to a question has."""
        with self._lock:
            if question in self.lengths:
                return self.lengths[question]
        known = None if self.prior is None else self.prior.mean_length(question)
        return self.usual if known is None else known

    def learn(self, name: str, asked: QuestionInfo, took: AnswerTimes) -> None:
        """What an answer by a method took; where its length was not what was expected, also for those it was taken for: a
        method that was tried there would else stay unknown."""
        expected = min(float(asked.most), self.expected(asked.question))
        with self._lock:
            if took.complete:
                before = self.lengths.pop(asked.question, float(took.tokens))
                self.lengths[asked.question] = before + (took.tokens - before) / 4
                self.usual += (took.tokens - self.usual) / 4
                while len(self.lengths) > KNOWN_QUESTIONS:
                    self.lengths.popitem(last=False)
            begins, cold = self._begins, name in self.cold
            self.cold.discard(name)
            if cold and not begins:
                return
            for state in dict.fromkeys(_state(asked, tokens, begins) for tokens in (took.tokens, expected)):
                _remember(self.seen.setdefault(state, {}), name, took)
            if asked.read_before and not begins:
                _remember(self.by_question.setdefault(asked.question, {}), name, took, standing=True)
                self.by_question.move_to_end(asked.question)
                while len(self.by_question) > STANDING_QUESTIONS:
                    self.by_question.popitem(last=False)
            if self.path is None or time.monotonic() - self._written <= 1.0:
                return
            self._written = time.monotonic()
            table = {state: {n: own.answers for n, own in rows.items()} for state, rows in self.seen.items()}
        with suppress(BadInput, OSError):  # a folder that cannot be written is not missed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(table) + "\n")

    @property
    def _begins(self) -> bool:
        """Whether no method ran in this process yet."""
        return bool(self.cold) and len(self.cold) == len(self.methods)

    def reset(self) -> Chooser:
        """The same before it learnt anything; it is kept in no file."""
        return Chooser(self.methods, self.needs, self.prior, self.steady, self.rereading, self.preferred)

    def remembering(self, path: Path, warm: bool = True) -> Chooser:
        """Another one with what a file remembers, if it can be read, and that keeps it there. Not `warm`: in this process no
        method ran yet."""
        found = self.reset()
        found.path, found.cold = path, set() if warm else set(self.methods)
        with suppress(OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
            for state, own in parsed(path.read_bytes()).items():
                found.seen[str(state)] = {name: Record.read(rows) for name, rows in own.items() if name in self.methods}
        return found


def _remember(seen: dict[str, Record], name: str, took: AnswerTimes, standing: bool = False) -> None:
    """One more answer by a method; what is known of the others fades."""
    for other, own in seen.items():
        own.faded *= 1.0 if other == name else FADING
    seen.setdefault(name, Record(standing=standing)).add(took.first_seconds, took.decode_seconds, max(1, took.tokens))


def _state(asked: QuestionInfo, tokens: float, begins: bool = False) -> str:
    """What is learnt apart, of answers of so many tokens; `begins`: of the first answer of a process."""
    known = ", brief" if tokens <= BRIEF else ""
    return (f"read before{known}" if asked.read_before else "new") + (", first" if begins else "")
