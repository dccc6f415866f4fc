"""A drafter and a qualifier: a model between drafter and target in size and in what it sees reads the drafts first.

After PyramidSD (arXiv 2510.12966), whose qualifier accepts a drafted token while it diverges little from the drafter. A draft
tree carries tokens, not distributions, so ours keeps a token that it finds at least `threshold` times as likely as its own
first choice, and adds that choice where the drafter has others. The threshold decides how much is proposed, so unlike
PyramidSD's the answer stays the target's.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from eventspec.core import (
    Budget,
    Context,
    Drafter,
    DraftSession,
    Media,
    Proposal,
    Request,
    Sampling,
    Scores,
    Target,
    TargetPrompt,
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.tree import DraftTree, check, fit, within
from eventspec.video.clip import VideoClip


class Cascade(Drafter):
    """`drafter` drafts, `qualifier` reads its drafts in one forward; `eos_id` is the token after which nothing follows. The
    qualifier sees the window's last frame alone, or what it sees anyway where it sees no frames."""

    concurrent = True

    def __init__(self, name: str, drafter: Drafter, qualifier: Target, eos_id: int, threshold: float = 0.3) -> None:
        self.name, self.drafter, self.qualifier = name, drafter, qualifier
        self.eos_id, self.threshold = eos_id, threshold
        self._seen: WeakKeyDictionary[Media, Context] = WeakKeyDictionary()

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """Vision encoding and prefill of both, as far as no question about the same recording came before."""
        draft = self.drafter.open(request, None, trace)
        own = trace.beside()  # its stages are the drafter's, not the target's
        began = trace.now()
        if request.media not in self._seen:
            self._seen[request.media] = self.qualifier.encode(last_frame(request.media), own)
        sampling = Sampling(max_new_tokens=request.sampling.max_new_tokens)
        session = self._seen[request.media].open(request.question, sampling, 1, own)
        trace.span("prefill", "drafter", began)
        return CascadeDraft(self, draft, session, trace)


def last_frame(media: Media) -> Media:
    if media.frames is None or not len(media.frames.frames):
        return media
    last = np.array([len(media.frames.frames) - 1])
    return Media(frames=VideoClip(media.frames.frames[last], media.frames.times_us[last]))


class CascadeDraft(DraftSession):
    """The drafter's session, the qualifier's, and the committed tokens that the qualifier has not read yet."""

    def __init__(self, cascade: Cascade, draft: DraftSession, session: TargetSession, trace: Trace) -> None:
        self.cascade, self.draft, self.session, self.trace = cascade, draft, session, trace
        self.unread: list[int] = []

    def propose(self, budget: Budget) -> Proposal:
        """What the qualifier keeps of the drafter's tree, and its own first choices, by its own probabilities."""
        room = self.session.room - len(self.unread)
        drafted = within(fit(check(self.draft.propose(budget), budget), self.cascade.qualifier.limits), room)
        began = self.trace.now()
        logits = self._read(drafted)
        self.trace.forward("drafter", self.trace.now() - began)
        tree = self._qualified(drafted, logits)
        if budget.show is not None:
            budget.show(tree.best_chain())
        return tree.proposal(budget, budget.min_path_prob, self.cascade.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.draft.observe(verdict, scores)
        self.unread += verdict.tokens.tolist()

    def _read(self, drafted: Proposal) -> Tensor:
        """Logits [N + 1, V] after what is committed and after every drafted node; what was unread is read now."""
        unread, self.unread = np.array(self.unread, np.int64), []
        count = len(unread)
        below = np.where(drafted.parents < 0, count - 1, drafted.parents + count)
        read = Proposal(np.concatenate((unread, drafted.tokens)), np.concatenate((np.arange(-1, count - 1), below)))
        scores = self.session.score(read)
        if count:
            self.session.commit(Verdict.of(tokens=unread.tolist(), path=range(count - 1)))
        return scores.logits[count:]

    def _qualified(self, drafted: Proposal, logits: Tensor) -> DraftTree:
        shares = logits.float().softmax(-1)
        best, first = (column.tolist() for column in shares.max(-1))
        threshold, end = self.cascade.threshold, self.cascade.eos_id
        children: dict[int, dict[int, int]] = {}  # node -> its drafted children by token
        for node, (parent, token) in enumerate(zip(drafted.parents.tolist(), drafted.tokens.tolist(), strict=True)):
            children.setdefault(parent, {})[token] = node
        tree, place = DraftTree(), {-1: -1}
        for parent in range(-1, len(drafted)):  # parents come before children
            if parent not in place or (parent >= 0 and drafted.tokens[parent] == end):
                continue
            row, named = parent + 1, children.get(parent, {})
            kept = [(token, share) for token in named if (share := float(shares[row, token])) >= threshold * best[row]]
            if first[row] not in named:
                kept.append((first[row], best[row]))
            tree.grow(place[parent], sorted(kept, key=lambda pair: -pair[1]), 0.0, end)
            for token, _ in kept:
                if token in named and (child := tree.child(place[parent], token)) is not None:
                    place[named[token]] = child
        return tree
