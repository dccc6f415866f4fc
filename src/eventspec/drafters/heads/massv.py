"""A small vision-language model on the target's own vision encoder (MASSV, 2505.10526): a projector from the target's
visual rows to a small language model, trained on the target's answers. It reads no other layer of the target. Spec-LLaVA
(2509.11961) is of the kind too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from eventspec.compress.reductions import RANKED_BEHIND, attention_of_last, two_stages
from eventspec.core import (
    BadInput,
    Budget,
    Drafter,
    DraftSession,
    Media,
    Proposal,
    Request,
    Scores,
    TappedPrompt,
    TargetPrompt,
    Trace,
    Verdict,
)
from eventspec.drafters.heads.head import Drafting, Family, Head, HeadConfig, Recipe, TargetSizes
from eventspec.drafters.heads.views import Rollout, TargetBatch
from eventspec.drafters.language_model import DraftModel, LanguageDraft
from eventspec.models.prompt import Prompt, TextIds, splice
from eventspec.models.session import Prefix
from eventspec.nn import Llama
from eventspec.nn.linear import Linear
from eventspec.nn.llama import LanguageEnds

SIZES = (96, 256, 2)
"""Width, inner width and layers of the small model in training."""


@dataclass(frozen=True)
class SmallConfig(HeadConfig):
    """Sizes of the small model; `reads`: the target's width."""

    reads: int


def new_head(sizes: TargetSizes) -> SmallVlm:
    width, inner, layers = SIZES
    return _head(sizes, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers)


def spec_llava_head(sizes: TargetSizes) -> SmallVlm:
    """Spec-LLaVA's small draft model: LLaMA-68M in its proportions to LLaVA-1.5-7B (3/16 of the width in heads of 64, an inner
    width of 4 times that, two layers), behind a projector. The tree that its confidence expands and prunes is policy
    `dynamic`. From the paper's abstract, which is all that we have read of it: that it projects the target's own visual rows,
    and learns from the target's answers, is ours."""
    heads = max(1, round(sizes.language.hidden_size * 3 / 16 / 64))
    many = {"num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": 2}
    return _head(sizes, hidden_size=64 * heads, intermediate_size=256 * heads, **many)


def _head(sizes: TargetSizes, **small: int) -> SmallVlm:
    """With a language model like the target's, but for its sizes."""
    language = replace(sizes.language, tie_word_embeddings=True, **small)
    return SmallVlm(SmallConfig(language, sizes.language.hidden_size))


class SmallVlm(Head):
    """Projector and small language model."""

    family = "massv"
    tree_policies = ("dynamic", "pruned")
    taps: tuple[int, ...] = ()

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.config: SmallConfig = config
        width = config.language.hidden_size
        self.up, self.across = Linear(config.reads, width), Linear(width, width)
        self.language = Llama(config.language)

    def projected(self, visual: Tensor) -> Tensor:
        """The target's visual rows [..., T, D] as rows of the small model [..., T, d]."""
        found: Tensor = self.across(nn.functional.gelu(self.up(visual)))
        return found

    def rows(self, ids: Tensor, visual: Tensor) -> Tensor:
        """A prompt: text ids int64 [..., T], -1 where a row of `visual` float [..., T, D] stands -> rows [..., T, d]."""
        return torch.where((ids < 0)[..., None], self.projected(visual), self.language.embed(ids.clamp_min(0)))

    def scores(self, hidden: Tensor, target: LanguageEnds) -> Tensor:
        logits: Tensor = self.language.head(hidden)
        return logits

    def drafter(self, name: str, drafting: Drafting) -> SmallVlmDrafter:
        """As `Head.drafter`; it grows a tree of its own, and `pruned` is video-SpecVLM's."""
        if drafting.text_ids is None:
            raise BadInput("a MASSV head reads the text of the prompt again: it is for targets of our own")
        pruned = None
        if drafting.tree == "pruned":
            if not isinstance(drafting.target, Llama):
                raise BadInput("tree policy 'pruned' ranks by attention inside the target: it is for targets of our own")
            pruned = Pruned(drafting.target)
        return SmallVlmDrafter(name, self, drafting.text_ids, drafting.eos_id, pruned)


def rollout(head: SmallVlm, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
    """As `Family.rollout`; its own text is the target's as long as it is right, so every step ahead gives the same."""
    rows = head.rows(batch.ids, batch.rows.to(head.up.weight.dtype))
    hidden = head.language(rows, batch.positions, batch.prefix, batch.mask)
    return Rollout(repeat(head.language.normed(hidden[:, batch.prefix :].roll(-1, 1)), count), batch.loss_mask)


FAMILY = Family[SmallVlm](
    name="massv",
    title="MASSV",
    head=SmallVlm,
    recipes={
        name: Recipe(make, words=1.0, feature=0.0, own_targets_only=True)
        for name, make in {"massv": new_head, "spec-llava": spec_llava_head}.items()
    },
    rollout=rollout,
    read=lambda folder: partial(SmallVlm, SmallConfig(folder.sizes(), folder.target.hidden_size)),
    kind="massv",
    target_width=lambda folder: folder.shape("up.weight", 2)[1],
)


@dataclass(frozen=True)
class Pruned:
    """video-SpecVLM's pruning (2508.16201): of the visual rows the small model sees, `kept` is the share that stays, ranked by
    the attention that the target's last prompt row pays them after `layer` layers (one layer's, not the mean over all)."""

    target: Llama
    kept: float = 0.1
    layer: int = RANKED_BEHIND


class SmallVlmDrafter(Drafter):
    """The small model as a drafter: `text_ids` gives the text of a question's prompt before and after the visual rows, `eos_id`
    is the end token; `read`: the part of a prompt that questions about a recording share."""

    needs_target = True

    def __init__(self, name: str, head: SmallVlm, text_ids: TextIds, eos_id: int, pruned: Pruned | None = None) -> None:
        self.name, self.head, self.text_ids, self.pruned = name, head, text_ids, pruned
        self.model = DraftModel(name, head.language, eos_id)
        self.taps: tuple[int, ...] = () if pruned is None else (pruned.layer,)
        self.read: WeakKeyDictionary[Media, Prefix] = WeakKeyDictionary()

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`; the target's session must have been opened with this drafter's taps."""
        assert target is not None
        return SmallVlmDraft(self, request, target, trace)

    def prompt(self, question: str, seen: TappedPrompt) -> Prompt:
        """The small model's prompt, rows [T, d], for a prompt of the target's."""
        begin, end = seen.visual
        visual = seen.rows[begin:end]
        if self.pruned is not None:
            assert seen.features is not None
            shares = attention_of_last(self.pruned.target, self.pruned.layer, seen.features)[begin:end]
            visual = visual[two_stages(shares, self.pruned.kept)]
        return splice(self.model.language, self.text_ids(question), self.head.projected(visual))


class SmallVlmDraft(DraftSession):
    """Waits for the target's prompt to be whole, which it is when the first draft is wanted; then it is a language model."""

    def __init__(self, drafter: SmallVlmDrafter, request: Request, target: TargetPrompt, trace: Trace) -> None:
        self.drafter, self.request, self.target, self.trace = drafter, request, target, trace
        self.inner: LanguageDraft | None = None
        self.pending_verdicts: list[tuple[Verdict, Scores]] = []

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.pending_verdicts.append((verdict, scores))

    def propose(self, budget: Budget) -> Proposal:
        if self.inner is None:
            began = self.trace.now()
            prompt = self.drafter.prompt(self.request.question, self.target.prompt())
            prefix = self.drafter.read.setdefault(self.request.media, Prefix(self.drafter.model.language))
            self.inner = LanguageDraft(self.drafter.model, prompt, prefix, self.request, self.trace)
            self.trace.span("drafter prefill", "target", began)
        for pending in self.pending_verdicts:
            self.inner.observe(*pending)
        self.pending_verdicts.clear()
        return self.inner.propose(budget)
