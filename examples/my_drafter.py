"""A drafter of your own: it remembers answers, and drafts the one it remembers. The answer stays the target's."""

from __future__ import annotations

from pathlib import Path

import eventspec as es
from eventspec.core import Budget, Proposal, Request, Scores, TargetPrompt, Trace, Verdict


class Remembering:
    """Chains only; see `eventspec.core.Drafter` and `DraftSession` for what each part means."""

    name, taps, needs_target, concurrent = "remembering", (), False, False

    def __init__(self) -> None:
        self.answers: dict[str, list[int]] = {}

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> Remembering:
        self.known, self.said = self.answers.get(request.question, []), 0
        return self

    def propose(self, budget: Budget) -> Proposal:
        return Proposal.chain(self.known[self.said :][: min(budget.max_nodes, budget.max_depth)], self.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.said += len(verdict.tokens)


drafter = Remembering()
pair = es.load_pair("embedded").with_drafter("remembering", drafter)
recording = es.Recording.open(Path(es.__file__).parent / "data/clips/street_scene")
first = es.generate(pair, recording, "Describe the scene.", "autoregressive")
drafter.answers["Describe the scene."] = first.token_ids
again = es.generate(pair, recording, "Describe the scene.", "remembering")
assert again.token_ids == first.token_ids
print(f"{again.text}\n{again.trace.tau:.1f} tokens a round instead of 1")
