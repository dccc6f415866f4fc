"""Online distillation: a head learns from the target's verdicts while it answers (Online Speculative Decoding, 2310.07177).

What is learned is a low-rank update (LoRA, 2106.09685) of the last matrix of the head's one layer. After an answer a job on the
drafter's lane recomputes what that matrix multiplied at the answer's rows, as far ahead as heads learn to draft (EAGLE-3's
training-time test, 2503.01840), and takes a few steps towards the target's own distributions. The head drafts with the update
while that foretells new answers better than the weights it began with. Only drafts change, and every draft is verified: the
answer stays the target's. The last round of an answer teaches nothing, because drafters never see its verdict.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.core import BadInput, DraftSession, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters.heads.checkpoint import TrainedHead, exact_dtype, save_head
from eventspec.drafters.heads.feature import FeatureDraft, FeatureDrafter
from eventspec.drafters.heads.unrolled import attend_ahead, shifted, without_recent
from eventspec.errors import several
from eventspec.files import writing
from eventspec.machine import arrived
from eventspec.nn.decode import rms_norm
from eventspec.nn.llama import LanguageEnds, Layer

RANK = 8
TOP = 8
"""Tokens of the target's distribution that are kept of each row, the likeliest."""
LONGEST = 256
"""Tokens of one answer that teach, the latest ones: it bounds what a job takes."""
AHEAD = 6
"""Levels of a draft that are learned."""
ROWS = 4096
"""Rows that are remembered; older ones go."""
BATCH, STEPS, RATE = 256, 2, 5e-4
"""Of a job: rows of a step, drawn from those that are remembered, and Adam's steps."""
KEPT = 0.95
"""Of what an update is believed to gain, from one answer to the next."""
WORDS = 0.1
"""What cross-entropy weighs beside features, as in `Recipe`."""
LONGEST_WAIT = 60.0
"""Seconds for which what is to be kept waits for a job."""
Taught = tuple[Tensor, ...]
"""N rows to learn from: what the layer gives with the matrix as it was first [N, D]; what the matrix multiplies [N, I]; rows of
the head's vocabulary int64 [N, TOP], and the target's probabilities of them [N, TOP]; its own feature there [N, F]."""
Start = Callable[[Callable[[], None]], "Future[None]"]
"""Queues work on the drafter's lane."""


def can_learn(drafter: object) -> bool:
    """Whether what drafts is a head of one decoder layer on the target's features."""
    return isinstance(drafter, FeatureDrafter) and isinstance(getattr(drafter.head, "layer", None), Layer)


class LearningDrafter(FeatureDrafter):
    """A head that learns, beginning with the weights of another drafter's. `updates`: answers that it learned from;
    `passed_over`: those that ended while a job still ran; `refused`: those with numbers that are not finite; `seconds`: of all
    jobs; `gain`: by how much lower the update's loss was at answers that it had not learned from, over all rows. Its memory is
    bounded by `ROWS` and by one answer: at a width of 4,096 some 300 MB of rows, and logits of a step beside."""

    def __init__(self, drafter: FeatureDrafter) -> None:
        self.__dict__.update(drafter.__dict__)
        self.original: FeatureDrafter = getattr(drafter, "original", drafter)
        self.kernel = self.first = self.original.kernel
        self._read, self._open = WeakKeyDictionary(), WeakSet[LearningDraft]()
        self.updates = self.passed_over = self.refused = self.steps = 0
        self.seconds, self.gain, self.job, self.taught, self.trouble = 0.0, 0.0, None, (), None
        self._drawing = torch.Generator().manual_seed(0)
        weight, ids = self.matrix, self.first.weights.ids
        drawn = torch.randn(RANK, weight.shape[1], generator=self._drawing) * weight.shape[1] ** -0.5
        parts = [torch.zeros(len(weight), RANK, device=weight.device), drawn.to(weight.device)]
        # Float32: the update [D, r] @ [r, I], and Adam's two moments of both parts.
        self.state: list[Tensor] = [*parts, *(torch.zeros_like(part) for part in parts * 2)]
        named = self.first.weights.head
        self._head = named.clone() if named.is_inference() else named  # laid out in an answer: no gradient goes through it
        self._rows: Tensor | None = None  # of the head's vocabulary, by target id
        if ids is not None:
            self._rows = ids.new_full((len(self.embed.weight),), -1)
            self._rows[ids] = torch.arange(len(ids), device=ids.device)

    job: Future[None] | None
    trouble: str | None
    taught: Taught

    @property
    def matrix(self) -> Tensor:
        """What is updated, as it was first [D, I]."""
        return self.first.weights.layers[0].down

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        assert target is not None
        trace.learned = self.updates
        before = several(self.updates, "answer")
        trace.note(f"head {self.called} learns from verdicts, and had learned from {before} when this one began")
        if self.job is not None and self.job.done() and (error := self.job.exception()) is not None:
            self.trouble = f"{type(error).__name__}: {error}"
        if self.trouble is not None:
            trace.note(f"head {self.called} learned nothing from the answer before: {self.trouble}")
            self.trouble = None
        session = LearningDraft(self, request, target, trace)
        self._open.add(session)
        return session

    def answered(self, request: Request, start: Start) -> None:
        """The answer to a request has ended, on the target's thread. What it taught is learned in a job that `start` queues;
        while one still runs, nothing is."""
        session = next((one for one in self._open if one.request is request), None)
        if session is None or session.many < 1:
            return
        self._open.discard(session)
        if self.job is not None and not self.job.done():
            self.passed_over += 1
            return
        try:  # the answer is there, and nothing that fails here may take it away: memory, a lane that was closed just now
            session.leave_cache()
            self.job = start(partial(self.learn, session))
        except Exception as error:
            self.refused, self.trouble = self.refused + 1, f"{type(error).__name__}: {error}"

    @torch.inference_mode(False)
    def learn(self, session: LearningDraft) -> None:
        """Remember what an answer taught, take the steps, and draft with what they gave from the next answer on."""
        began = time.perf_counter()
        up, down = self.state[:2]
        with torch.no_grad():
            found = self.rows_of(session)
            gain = len(found[0]) * (self.loss(found, torch.zeros_like(up), down) - self.loss(found, up, down))
        if not all_finite(*found, gain):
            self.refused += 1
            return
        taught = tuple(torch.cat(parts)[-ROWS:] for parts in zip(*filter(None, (self.taught, found)), strict=True))
        self.taught, state = taught, self.state
        for step in range(self.steps + 1, self.steps + STEPS + 1):
            chosen = torch.randperm(len(taught[0]), generator=self._drawing)[:BATCH].to(taught[0].device)
            parts = [part.detach().requires_grad_() for part in state[:2]]
            slopes = torch.autograd.grad(self.loss(tuple(part[chosen] for part in taught), *parts), parts)
            state = adam(state, slopes, step)
        if not all_finite(*state):
            self.refused += 1
            return
        self.state, self.steps, self.gain = state, self.steps + STEPS, KEPT * self.gain + float(gain)
        # An answer in progress keeps the kernel that it began with. Keys and values of prompts that are kept for the next
        # question stay right: the matrix comes behind the attention of the only layer.
        kernel = self.first
        if self.gain > 0:
            kernel = self.first.with_down(self.matrix + (state[0] @ state[1]).to(self.matrix.dtype))  # laid out as it was
            arrived(kernel.weights.layers[0].down)
        self.kernel, self.updates, self.seconds = kernel, self.updates + 1, self.seconds + time.perf_counter() - began

    def loss(self, taught: Taught, up: Tensor, down: Tensor) -> Tensor:
        """Of the head with an update, over N rows, as heads are trained: cross-entropy with the target's distribution, and how
        far its feature is from the target's (smooth L1), unless it names tokens by a norm and a head of its own."""
        (first, inner, ids, probs, true), weights = taught, self.first.weights
        hidden = first + F.linear(F.linear(inner.float(), down), up).to(first.dtype)
        named = hidden if weights.out_norm is None else rms_norm(hidden, weights.out_norm, weights.eps)
        logs = F.linear(named, self._head).float().log_softmax(-1)
        words = -(probs * logs.gather(1, ids)).sum(1).mean()
        return words if weights.out_norm is not None else WORDS * words + F.smooth_l1_loss(hidden.float(), true.float())

    def rows_of(self, session: LearningDraft) -> Taught:
        """What the head's layer makes of an answer's pairs on true features, and on its own predictions up to `AHEAD` levels,
        as in `unrolled.steps`; keys and values of true pairs are those that it drafted with."""
        head: Any = self.head
        layer, whole, current = head.layer, session.global_feature, self.kernel.weights.layers[0].down
        cache: Any = session.cache
        tokens, tapped, ids, probs, true_features = session.judged()
        many, unjudged = len(tokens), session.read - session.many
        last, end = session.position - unjudged, cache.length - unjudged
        embeds, hidden = self.embed(tokens)[None], head.features(tapped)[None]
        cos, sin = (table[last - many : last] for table in self.tables)
        true = cache.keys[0][None, :, :end], cache.values[0][None, :, :end]
        mask, own, found = embeds.new_zeros(1, 1, many, end), list[tuple[Tensor, Tensor]](), list[Taught]()
        if self._rows is not None:
            rows = self._rows[ids]
            ids, probs = rows.clamp_min(0), probs.masked_fill(rows < 0, 0.0)  # a head names no more than it has rows for
        for step in range(min(AHEAD, many)):
            normed, x = head.fuse_inputs(embeds, hidden)
            queries, keys, values = (part.transpose(1, 2) for part in layer.project(normed, cos, sin))
            own += [(keys, values)] if step else []
            attended = attend_ahead(queries, true, without_recent(mask, end - many, step), own)
            x, inner = layer.before_down(x, attended.transpose(1, 2).flatten(-2))
            first = x + F.linear(inner, self.matrix)
            found.append(
                tuple(part[step:] for part in (first[0], inner[0], ids, probs, true_features))
            )  # the others lack one before
            hidden = shifted(x + F.linear(inner, current), 1)
            hidden = hidden if whole is None else head.view.fuse_global(hidden, whole)
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def wait(self) -> None:
        """Until a job that runs has ended, or hangs."""
        if self.job is not None:
            with suppress(TimeoutError):
                self.job.exception(LONGEST_WAIT)

    def save(self, folder: Path, target: LanguageEnds) -> None:
        """Write the head as it drafts now: a folder as `train heads` writes it, which is new or empty, whole or not at all.
        BadInput where it cannot be written."""
        head: Any = deepcopy(self.head)
        with torch.no_grad():
            head.layer.down.weight.copy_(self.kernel.weights.layers[0].down)
        made = TrainedHead(head, self.rates)
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
                part = Path(place, folder.name)
                try:
                    save_head(made, part, target, exact_dtype(made))
                except BadInput as error:  # in the words of who named the folder
                    raise BadInput(str(error).replace(str(part), str(folder))) from None
                part.rename(folder)


def all_finite(*tensors: Tensor) -> bool:
    """Whether all of it are numbers."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def adam(state: list[Tensor], slopes: tuple[Tensor, ...], step: int) -> list[Tensor]:
    """Two parts and two moments of each after this step of Adam (1412.6980); torch's own takes a second to import."""
    ones = [moment.lerp(slope, 0.1) for moment, slope in zip(state[2:4], slopes, strict=True)]
    twos = [moment.lerp(slope * slope, 0.01) for moment, slope in zip(state[4:], slopes, strict=True)]
    sizes = [(two / (1 - 0.99**step)).sqrt() + 1e-8 for two in twos]
    moved = zip(state[:2], ones, sizes, strict=True)
    return [*(part - RATE / (1 - 0.9**step) * one / size for part, one, size in moved), *ones, *twos]


class LearningDraft(FeatureDraft):
    """A session that keeps what the target said of the answer's tokens."""

    def __init__(self, drafter: LearningDrafter, request: Request, target: TargetPrompt, trace: Trace) -> None:
        super().__init__(drafter, request, target, trace)
        self.said: list[tuple[Tensor, Tensor]] = []  # the likeliest ids and their log-probabilities, a row before each token
        self.pairs: list[tuple[list[int], Tensor]] = []  # tokens and tapped outputs that were read

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        super().observe(verdict, scores)
        rows = torch.cat((torch.zeros(1, dtype=torch.int64), torch.from_numpy(verdict.path) + 1)).to(scores.logits.device)
        logs, ids = scores.logits[rows].float().log_softmax(-1).topk(min(TOP, scores.logits.shape[-1]))
        self.said.append((ids, logs))

    def _read(self) -> Tensor:
        self.pairs.append((self.tokens, torch.cat(self.tapped)))
        return super()._read()

    def leave_cache(self) -> None:
        """Go on with a copy of the cache: the next question may have it, and the target's."""
        assert self.cache is not None
        self.cache = self.cache.beginning(self.cache.length, self.cache.length)
        arrived(self.cache.keys[0])  # the job reads it in another stream
        del self._loan, self.target

    @property
    def read(self) -> int:
        """Pairs of the answer that are in the cache."""
        return sum(len(own) for own, _ in self.pairs)

    @property
    def many(self) -> int:
        """Those of them behind which the target has said something: its row behind a pair is the next pair's."""
        return min(self.read, sum(len(ids) for ids, _ in self.said)) - 1

    def judged(self) -> Taught:
        """The latest of `many` pairs, `LONGEST` at most: tokens int64 [R], tapped outputs [R, F] as the head fuses them, the
        target's likeliest next tokens int64 [R, TOP] and their probabilities, and the tapped outputs behind them [R, F]."""
        tapped = torch.cat([part for _, part in self.pairs])
        tokens = torch.tensor([token for own, _ in self.pairs for token in own], device=tapped.device)
        ids, logs = (torch.cat(parts)[1:] for parts in zip(*self.said, strict=True))
        true = tapped[1:]
        if self.global_feature is not None:
            tapped = self.drafter.head.view.fuse_global(tapped, self.global_feature)
        seen = slice(max(0, self.many - LONGEST), self.many)
        return tokens[seen], tapped[seen], ids[seen], logs[seen].exp(), true[seen]
