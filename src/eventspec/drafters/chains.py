"""For targets that read no branches: of every drafted tree only the first child at each level is kept, the drafter's best."""

from __future__ import annotations

from eventspec.core import Budget, Drafter, DraftSession, Proposal, Request, Scores, TargetSession, Trace, Verdict


class Chains:
    """`inner`, whose trees are cut to chains. What is kept was drawn as before, so it is as lossless as it was."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name, self.taps, self.concurrent = inner.name, inner.taps, inner.concurrent

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`."""
        return ChainDraft(self.inner.open(request, target, trace))


class ChainDraft:
    """One drafter's session, cut to chains."""

    def __init__(self, inner: DraftSession) -> None:
        self.inner = inner

    def propose(self, budget: Budget) -> Proposal:
        """As `core.DraftSession.propose`."""
        return first_chain(self.inner.propose(budget))

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """As `core.DraftSession.observe`; a path is one of the proposal that was scored, which is the chain."""
        self.inner.observe(verdict, scores)


def first_chain(proposal: Proposal) -> Proposal:
    """The first child of the root, its first child, and so on."""
    nodes, last = list[int](), -1
    for node, parent in enumerate(proposal.parents.tolist()):
        if parent == last:
            nodes.append(node)
            last = node
    probs = None if proposal.probs is None else proposal.probs[nodes]
    return Proposal.chain(proposal.tokens[nodes], proposal.origin, probs)
