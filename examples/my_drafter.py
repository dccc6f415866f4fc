"""A drafter of your own: it remembers answers, and drafts the one it remembers. The answer stays the target's."""

from __future__ import annotations

import eventspec as es


class Remembering:
    """Chains only; see `eventspec.Drafter` and `eventspec.DraftSession` for what each part means."""

    name, taps, needs_target, concurrent = "remembering", (), False, False

    def __init__(self) -> None:
        self.answers: dict[str, list[int]] = {}

    def open(self, request: es.Request, target: es.TargetPrompt | None, trace: es.Trace) -> Remembering:
        self.known, self.said = self.answers.get(request.question, []), 0
        return self

    def propose(self, budget: es.Budget) -> es.Proposal:
        return es.Proposal.chain(self.known[self.said :][: min(budget.max_nodes, budget.max_depth)], self.name)

    def observe(self, verdict: es.Verdict, scores: es.Scores) -> None:
        self.said += len(verdict.tokens)


drafter = Remembering()
pair = es.load_pair("nano").with_drafter("remembering", drafter)
recording = es.Recording.open("example:street")
first = es.generate(pair, recording, "Describe the scene.", "autoregressive")
drafter.answers["Describe the scene."] = first.token_ids
again = es.generate(pair, recording, "Describe the scene.", "remembering")
assert again.token_ids == first.token_ids
print(f"{again.text}\n{again.trace.tau:.1f} tokens a round instead of 1")
