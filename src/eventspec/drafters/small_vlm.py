"""A small vision-language model behind the target's own vision encoder (MASSV, 2505.10526): a projector from the target's
visual rows to a small language model, trained on the target's answers. It reads no other layer of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eventspec.compress.attended import RANKED_BEHIND, attention_of_last, two_stages
from eventspec.core import Budget, DraftSession, Proposal, Request, Scores, TappedPrompt, TargetSession, Trace, Verdict
from eventspec.drafters.language_model import Guess, LanguageDraft
from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.linear import Linear


@dataclass(frozen=True)
class SmallConfig:
    """`language`: sizes of the small model, with the target's vocabulary; `reads`: the target's width."""

    language: LlamaConfig
    reads: int


class SmallVlm(nn.Module):
    """Projector and small language model."""

    taps: tuple[int, ...] = ()

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.config, width = config, config.language.hidden_size
        self.up, self.across = Linear(config.reads, width), Linear(width, width)
        self.language = Llama(config.language)

    def projected(self, visual: Tensor) -> Tensor:
        """The target's visual rows [..., T, D] as rows of the small model [..., T, d]."""
        found: Tensor = self.across(nn.functional.gelu(self.up(visual)))
        return found

    def rows(self, ids: Tensor, visual: Tensor) -> Tensor:
        """A prompt: text ids int64 [..., T], -1 where a row of `visual` float [..., T, D] stands -> rows [..., T, d]."""
        return torch.where((ids < 0)[..., None], self.projected(visual), self.language.embed(ids.clamp_min(0)))

    def scores(self, hidden: Tensor, target: Llama) -> Tensor:
        """Its own normed outputs [..., d] -> logits float [..., V]."""
        logits: Tensor = self.language.head(hidden)
        return logits


@dataclass(frozen=True)
class Pruned:
    """video-SpecVLM's pruning (2508.16201): of the visual rows the small model sees, `kept` is the share that stays, ranked by
    the attention that the target's last prompt row pays them behind `layer` layers (one layer's, not the mean over all)."""

    target: Llama
    kept: float = 0.1
    layer: int = RANKED_BEHIND


class SmallVlmDrafter:
    """The small model as a drafter behind the target's vision encoder: `ids` gives the text of a question's prompt before and
    behind the visual rows, `end` is the end token."""

    concurrent = False

    def __init__(
        self,
        name: str,
        model: SmallVlm,
        ids: Callable[[str], tuple[list[int], list[int]]],
        end: int,
        pruned: Pruned | None = None,
    ) -> None:
        self.name, self.model, self.ids, self.end, self.pruned = name, model, ids, end, pruned
        self.language = model.language
        self.limit: int | None = None
        self.guess: Guess = lambda question, answer: []
        self.taps: tuple[int, ...] = (0 if pruned is None else pruned.layer,)

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`; the target's session must have been prefilled with this drafter's taps."""
        assert target is not None
        return SmallVlmDraft(self, request, target, trace)

    def prompt(self, question: str, seen: TappedPrompt) -> Tensor:
        """The small model's rows [T, d] for a prompt of the target's."""
        begin, end = seen.visual
        visual = seen.rows[begin:end]
        if self.pruned is not None:
            shares = attention_of_last(self.pruned.target, self.pruned.layer, seen.features)[begin:end]
            visual = visual[two_stages(shares, self.pruned.kept)]
        before, after = (torch.tensor(part, dtype=torch.int64, device=visual.device) for part in self.ids(question))
        embed = self.language.embed
        return torch.cat((embed(before), self.model.projected(visual), embed(after)))


class SmallVlmDraft:
    """Waits for the target's prompt to be whole, which it is when the first draft is wanted; then it is a language model."""

    def __init__(self, drafter: SmallVlmDrafter, request: Request, target: TargetSession, trace: Trace) -> None:
        self.drafter, self.request, self.target, self.trace = drafter, request, target, trace
        self.inner: LanguageDraft | None = None
        self.heard: list[tuple[Verdict, Scores]] = []

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """As `core.DraftSession.observe`."""
        if self.inner is None:
            self.heard.append((verdict, scores))
        else:
            self.inner.observe(verdict, scores)

    def propose(self, budget: Budget) -> Proposal:
        """As `core.DraftSession.propose`."""
        if self.inner is None:
            began = self.trace.now()
            prompt = self.drafter.prompt(self.request.prompt, self.target.prompt())
            self.inner = LanguageDraft(self.drafter, prompt, self.request, self.trace)
            for heard in self.heard:
                self.inner.observe(*heard)
            self.trace.span("drafter prefill", "target", began)
        return self.inner.propose(budget)
