"""The blind control: what answers to this question usually say. It has read the training answers and sees no recording.

An acceptance that does not exceed this one's has nothing to do with vision.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from operator import index
from pathlib import Path

import numpy as np

from eventspec.core import BadCheckpoint, Budget, Drafter, DraftSession, Proposal, Request, TargetPrompt, Trace
from eventspec.drafters.texts import AnswerDraft
from eventspec.files import parsed, write_text

NgramContext = tuple[int, ...]
WIDTH = 4
"""Children of a node, at most."""


class TextPrior:
    """Counts of the next token after a question and the last tokens of the answer, backing off from `longest` to nothing."""

    def __init__(self, longest: int = 6) -> None:
        self.longest = longest
        self.counts: dict[tuple[str, NgramContext], Counter[int]] = defaultdict(Counter)
        self._ranked: dict[tuple[str, NgramContext], list[tuple[int, float]]] = {}  # of contexts that were looked up

    def learn(self, question: str, answer: Sequence[int]) -> None:
        """Add one training answer, EOS included."""
        self._ranked.clear()
        for key in (question, ""):
            for at, token in enumerate(answer):
                for size in range(self.longest + 1):
                    if size <= at + 1:
                        self.counts[key, self._context(answer[:at], size)][token] += 1

    def _context(self, before: Sequence[int], size: int) -> NgramContext:
        # The start of the answer is a token of its own, -1, so that short prefixes are not confused with their tails elsewhere.
        return tuple([-1, *before][-size:]) if size else ()

    def following(self, question: str, before: Sequence[int], most: int) -> list[tuple[int, float]]:
        """The likeliest next tokens with their probabilities, from the longest context that was seen at least 4 times."""
        tail = self._context(before[-self.longest :], self.longest)
        for key in (question, ""):
            for size in range(len(tail), -1, -1):
                place = key, tail[len(tail) - size :]
                if (ranked := self._ranked.get(place)) is not None:
                    return ranked[:most]
                found = self.counts.get(place)
                if found and (total := found.total()) >= 4:
                    self._ranked[place] = [(token, count / total) for token, count in found.most_common()]
                    return self._ranked[place][:most]
        return []

    def log_probability(self, question: str, answer: Sequence[int], least: float = 1e-3) -> float:
        """Of an answer, each token given those before it; no token counts less than the share `least`."""
        known = (dict(self.following(question, answer[:at], 8)) for at in range(len(answer)))
        return sum(math.log(max(least, shares.get(token, 0.0))) for shares, token in zip(known, answer, strict=True))

    def mean_length(self, question: str) -> float | None:
        """Mean tokens of the answers to a question, or of all where it is not known; None without any."""
        for key in (question, ""):
            tokens, answers = (self.counts.get((key, context)) for context in ((), (-1,)))
            if tokens and answers:
                return tokens.total() / answers.total()
        return None

    def sure_of(self, question: str, before: Sequence[int], most: int = 6, least: float = 0.4) -> list[int]:
        """The tokens that follow with at least the probability `least` together, `most` of them at most."""
        found: list[int] = []
        share = 1.0
        while len(found) < most:
            known = self.following(question, [*before, *found], 1)
            share *= known[0][1] if known else 0.0
            if share < least or known[0][0] < 0:
                break
            found.append(known[0][0])
        return found

    def pruned(self, least: int = 4, difference: float = 0.03) -> TextPrior:
        """Without contexts that were seen fewer than `least` times, or that predict as the next shorter kept one does: the same
        likeliest token, its share within `difference`."""
        kept = TextPrior(self.longest)
        for key, context in sorted(self.counts, key=lambda entry: (entry[0], len(entry[1]))):
            found = self.counts[key, context]
            if found.total() < least:
                continue
            tails = (context[at:] for at in range(1, len(context) + 1))
            shorter = next((kept.counts[key, tail] for tail in tails if (key, tail) in kept.counts), None)
            token, count = found.most_common(1)[0]
            alike = shorter is not None and shorter.most_common(1)[0][0] == token
            if shorter is None or not alike or abs(count / found.total() - shorter[token] / shorter.total()) > difference:
                kept.counts[key, context] = found
        return kept

    def save(self, path: Path, least: int = 4, most: int = 20_000) -> None:
        """JSON of the contexts that matter, see `pruned`: the `most` that were seen most often."""
        kept = sorted(self.pruned(least).counts.items(), key=lambda entry: -entry[1].total())[:most]
        rows = [[key, context, found.most_common(8), found.total()] for (key, context), found in kept]
        write_text(path, json.dumps({"longest": self.longest, "contexts": rows}, separators=(",", ":")))

    @classmethod
    def load(cls, path: Path) -> TextPrior:
        """The prior of a JSON file; BadCheckpoint for one that holds none."""
        try:
            data = parsed(path.read_bytes())
            prior = cls(index(data["longest"]))
            for key, context, found, total in data["contexts"]:
                counts = prior.counts[key, tuple(map(index, context))] = Counter(dict(found))
                whole = all(type(token) is type(count) is int and count >= 0 for token, count in (*counts.items(), (0, total)))
                if not isinstance(key, str) or not whole:
                    raise ValueError("a context is a text, the tokens before, and how often each token came")
                if rest := total - counts.total():
                    counts[-1] = rest  # what was cut away keeps its weight; -1 is no token and is never proposed
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(f"{path} holds no prior ({error}): train it again, or fetch it again") from None
        return prior

    @classmethod
    def of(cls, rows: Iterable[tuple[str, Sequence[int]]]) -> TextPrior:
        """Learn from (question, answer ids)."""
        prior = cls()
        for question, answer in rows:
            prior.learn(question, answer)
        return prior


class PriorDrafter(Drafter):
    """Drafts the likeliest tree of the text prior; `eos_id` is the token after which nothing follows."""

    name = "prior"
    any_thread = True

    def __init__(self, prior: TextPrior, eos_id: int) -> None:
        self.prior, self.eos_id = prior, eos_id

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return AnswerDraft(partial(self._draft, request.question))

    def _draft(self, question: str, answer: list[int], budget: Budget) -> Proposal:
        """The likeliest nodes, best first: a path is never likelier than its beginning. A heap of nodes whose parents are
        taken: minus the path's probability, place of arrival, token, parent, level, the tokens before it."""
        waiting: list[tuple[float, int, int, int, int, NgramContext]] = []
        tokens, parents, values, arrived = list[int](), list[int](), list[float](), itertools.count()

        def look(parent: int, value: float, level: int, before: NgramContext) -> None:
            if level < budget.max_depth:
                for token, share in self.prior.following(question, before, WIDTH):
                    if token >= 0 and value * share >= budget.min_path_prob:
                        heapq.heappush(waiting, (-value * share, next(arrived), token, parent, level, before))

        look(-1, 1.0, 0, tuple(answer[-self.prior.longest :]))
        while waiting and len(tokens) < budget.max_nodes:
            value, _, token, parent, level, before = heapq.heappop(waiting)
            tokens.append(token)
            parents.append(parent)
            values.append(-value)
            if token != self.eos_id:
                look(len(tokens) - 1, -value, level + 1, (*before, token)[-self.prior.longest :])
        nodes = np.array(tokens, np.int64), np.array(parents, np.int64)
        return Proposal(*nodes, origin=self.name, values=np.minimum(1.0, values))
