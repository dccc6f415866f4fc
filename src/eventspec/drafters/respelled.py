"""A language model with another tokenizer than the target's, whose features name the target's tokens all the same: it reads the
answer so far in its own ids, and what it computes after the last of them goes through an adapter into the target's own head.
So it drafts in the target's ids, token by token; each new token may change how the end of the text is encoded, and what no
longer agrees is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor

from eventspec.core import Budget, Proposal, Request, Scores, Trace, Verdict
from eventspec.drafters.language_model import LanguageDrafter, ModelReading, Scored
from eventspec.models.prompt import Prompt, PromptEncoder
from eventspec.models.session import Prefix
from eventspec.text import TokenSpace

_STRETCH = 4
"""Its own tokens for one of the target's, on the long run: room in its cache, nothing else."""
_MOST = 16
"""Tokens of a draft: a step of it costs a forward, and no level is wider."""


class RespelledDraft(ModelReading):
    """own: the model's tokens that it has read. outs: what it gave for the last row of the prompt and after each of them,
    [1, D], with the row that was read there."""

    def __init__(self, drafter: RespelledDrafter, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace) -> None:
        spare = _STRETCH * request.sampling.max_new_tokens + 32
        super().__init__(drafter.model, prompt, prefix, request, trace, spare)
        self.ours, self.theirs = drafter.spaces
        self.own = list[int]()
        self.outs: list[tuple[Tensor, Tensor]] = [(self.hidden, prompt.rows[-1:])]

    def propose(self, budget: Budget) -> Proposal:
        """A chain of the likeliest tokens; a first one always."""
        chain, share = list[int](), 1.0
        while len(chain) < min(_MOST, budget.max_depth, budget.max_nodes) and not (chain and budget.until()):
            found = self._after([*self.answer, *chain])
            before = len(chain)
            for token, likely in found[: min(_MOST, budget.max_depth, budget.max_nodes) - len(chain)]:
                share *= likely
                if not share >= budget.min_path_prob:  # NaN too
                    break
                chain.append(token)
                if token == self.model.eos_id:
                    break
            if budget.show is not None and len(chain) > before:
                budget.show(chain)
            if len(chain) - before < len(found) or not found or chain[-1] == self.model.eos_id:
                break
        return Proposal.chain(chain, self.model.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.answer += verdict.tokens.tolist()

    def _after(self, answer: Sequence[int]) -> list[tuple[int, float]]:
        """The likeliest tokens of the target after an answer in its ids, each with its share: one, or as many as are known
        without reading the one before; none beyond the model's context."""
        same, ours = self.theirs is None, self.ours.vocabulary
        wanted = list(answer) if same or self.theirs is None else self.theirs.vocabulary.respell(ours.spell(answer))
        if self.base + len(wanted) > self.context or (same and max(wanted, default=0) >= self.language.config.vocab_size):
            return []
        kept = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(self.own, wanted, strict=False)))
        if kept < len(wanted):
            self.cache.length = self.base + kept
            read = self.embedded(wanted[kept:])
            hidden = self.forward(read)
            self.cache.keep(len(read), [])
            self.own[kept:] = wanted[kept:]
            self.outs[kept + 1 :] = zip(hidden.split(1), read.split(1), strict=True)
        assert self.model.scored is not None  # the drafter has it
        began = self.trace.now()
        logits = self.model.scored.logits(*self.outs[len(wanted)], self.request.media, self.trace)
        best = logits[:, : self.model.limit].float().softmax(-1).max(-1)
        self.trace.forward("drafter", self.trace.now() - began)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


class RespelledDrafter(LanguageDrafter):
    """As `LanguageDrafter` with `scored` tokens of the target, whose ids `ours` are others than the model's own, `theirs`
    (None: they are the same), as a chain."""

    def __init__(self, name: str, encoder: PromptEncoder, ours: TokenSpace, theirs: TokenSpace | None, scored: Scored) -> None:
        super().__init__(name, encoder, ours.eos_id, ours.vocabulary.text_size, scored=scored)
        self.spaces = ours, theirs

    def _draft(self, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace) -> RespelledDraft:
        return RespelledDraft(self, prompt, prefix, request, trace)
