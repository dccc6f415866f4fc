"""The recipe of the feature-level heads: online-logit distillation (2509.11815, section 3.3). The target runs on the fly,
frozen; all heads learn from the same pass, so they see the same data in the same order and can be compared.

Answers are the target's own. A head's row j holds the feature of token j and the embedding of token j + 1, and learns the
feature and the distribution behind token j + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.compress import Elastic
from eventspec.drafters.dream import DreamHead
from eventspec.drafters.eagle import MsdHead
from eventspec.drafters.eagle3 import Eagle3Head
from eventspec.drafters.feature import LEVELS
from eventspec.drafters.head_folder import Head
from eventspec.drafters.small_vlm import SmallVlm
from eventspec.drafters.static_tree import Rates
from eventspec.drafters.vispec import VispecHead
from eventspec.models.embedded import pixels_from_frames
from eventspec.models.video_llava import VideoLlava
from eventspec.nn import Llama
from eventspec.train.data import Branch, Clips, Questions, pack
from eventspec.train.models import autocast
from eventspec.train.neighbours import dream_steps, first_block, sharpest, small_steps, vispec_steps
from eventspec.train.ranked import acceptance_rates, count_rounds, ranked
from eventspec.train.unrolled import shifted, steps
from eventspec.train.views import TargetBatch, View, compressed, decoupled, whole


@dataclass(frozen=True)
class HeadRecipe:
    """A head in training, with what compresses its visual rows: how many steps it is unrolled for, and the weights of its
    losses. `decay`: of each further step; `middle`: layers of the target one of which its first block learns (DREAM);
    `cost`: of what the compressor's ways cost."""

    head: Head
    compressor: Elastic | None = None
    unroll: int = 1
    words: float = 0.1
    feature: float = 1.0
    decay: float = 0.8
    middle: tuple[int, ...] = ()
    cost: float = 0.0

    def module(self) -> nn.ModuleDict:
        """Everything that is trained."""
        parts: dict[str, nn.Module] = {"head": self.head}
        if self.compressor is not None:
            parts["compressor"] = self.compressor
        return nn.ModuleDict(parts)

    @property
    def layers(self) -> set[int]:
        """The target's layers whose outputs its training reads, besides the last one's."""
        return {tap for tap in self.head.taps if tap >= 0} | {layer - by for layer in self.middle for by in (0, 1)}

    def view(self, seen: TargetBatch) -> View:
        """What the head sees of a batch."""
        if self.compressor is not None:
            return compressed(seen, self.head.taps, self.compressor)
        return (decoupled if isinstance(self.head, MsdHead) else whole)(seen, self.head.taps)

    def steps(self, language: Llama, seen: TargetBatch, count: int) -> Rollout:
        """What the head predicts on the branch rows of a batch, so many steps ahead."""
        head = self.head
        if isinstance(head, SmallVlm):
            return Rollout(small_steps(head, seen, count), seen.loss_mask)
        if isinstance(head, VispecHead):
            return Rollout(vispec_steps(head, language, seen, count), seen.loss_mask)
        view = self.view(seen)
        rope = language.cos[view.positions], language.sin[view.positions]
        if isinstance(head, DreamHead):
            rows = first_block(head, view, rope)
            return Rollout(dream_steps(head, rows, view, rope, count), view.loss_mask, rows[:, view.prefix :])
        hidden = head.features(view.tapped)
        outs = steps(head, view.embeds, hidden, rope, view.prefix, view.mask, count, view.plain)
        return Rollout(outs, view.loss_mask, cost=view.cost)


@dataclass(frozen=True)
class Rollout:
    """Predicted features [B, R, D] of every step; which branch rows are learned from, bool [B, R]; the output of the first of
    several blocks [B, R, D]; what its view of the visual rows costs, scalar."""

    outs: Iterator[Tensor]
    loss_mask: Tensor
    block: Tensor | None = None
    cost: Tensor | None = None


class HeadTraining(nn.Module):
    """Heads beside a frozen target, and their losses on a batch of clips."""

    def __init__(
        self,
        target: VideoLlava,
        recipes: Mapping[str, HeadRecipe],
        questions: Questions,
        clips: Clips,
        answers: Mapping[int, list[Branch]],
        packed: int = 6,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: recipe.module() for name, recipe in recipes.items()})
        self.recipes, self.questions, self.clips, self.answers, self.packed = recipes, questions, clips, answers, packed
        # In a list: it is no part of what is trained and saved. In training mode its products follow autocast.
        self._target = [target.train().requires_grad_(False)]
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.layers = tuple(sorted(set().union(*(recipe.layers for recipe in recipes.values()))))

    def losses(self, index: object, progress: float) -> dict[str, Tensor]:
        """Of every head on one pass of the target."""
        assert isinstance(index, np.ndarray)
        parts: dict[str, Tensor] = {}
        with autocast(self.target.language.embed.weight.device):
            seen = self._seen(index)
            losses = {name: head_losses(recipe, self.target, seen) for name, recipe in self.recipes.items()}
        for name, found in losses.items():
            parts.update({f"_{name}_{part[1:]}" if part.startswith("_") else f"{name}_{part}": x for part, x in found.items()})
        return parts

    @property
    def target(self) -> VideoLlava:
        """The frozen target."""
        return self._target[0]

    @torch.no_grad()
    def acceptance(self, numbers: list[int], batch: int, depth: int = 8) -> dict[str, float]:
        """tau of every head on clips: how many drafts of a chain of `depth`, begun at any token of an answer, are the target's
        own next tokens, and the bonus token. What lies behind an answer's end counts as neither right nor wrong."""
        self.rng = np.random.default_rng(self.seed)  # the same questions every time
        right, begun = dict.fromkeys(self.recipes, 0.0), dict.fromkeys(self.recipes, 0.0)
        for at in range(0, len(numbers), batch):
            with autocast(self.target.language.embed.weight.device):
                seen = self._seen(np.array(numbers[at : at + batch]))
                for name, recipe in self.recipes.items():
                    found = ranked(recipe, self.target, seen, 1, depth)
                    right[name] += float((found == 0).sum())
                    begun[name] += float((found[0] >= 0).sum())
        return {name: 1 + gained / max(1.0, begun[name]) for name, gained in right.items()}

    @torch.no_grad()
    def rates(self, numbers: list[int], batch: int, most: int = 10, depth: int = LEVELS) -> dict[str, Rates]:
        """How often the target's next token is the first, second, ... choice of every head, by level, in the rounds that chains
        of `depth` take through the answers: what a static tree is made for. An answer's end is a draft that is not right."""
        self.rng = np.random.default_rng(self.seed)
        counts = {name: torch.zeros(depth + 1, most + 1) for name in self.recipes}
        for at in range(0, len(numbers), batch):
            with autocast(self.target.language.embed.weight.device):
                seen = self._seen(np.array(numbers[at : at + batch]))
                for name, recipe in self.recipes.items():
                    counts[name] += count_rounds(ranked(recipe, self.target, seen, most, depth), most)
        return {name: acceptance_rates(found) for name, found in counts.items()}

    @torch.no_grad()
    def _seen(self, index: np.ndarray[Any, Any]) -> TargetBatch:
        """The target's own pass over the recordings, with some of its answers behind each."""
        target = self.target
        language, before = target.language, self.questions.prefix()
        device = language.embed.weight.device
        frames = self.clips.column("frames", index).numpy()
        pixels = torch.cat([pixels_from_frames(clip) for clip in frames]).to(device)
        visual = target.encode(pixels).unflatten(0, (len(index), -1))
        prefix = len(before) + visual.shape[1]
        packed = pack([self._branches(int(i)) for i in index], prefix)
        ids, labels = packed.ids.to(device), packed.labels.to(device)
        head = language.embed(torch.tensor(before, device=device)).expand(len(index), -1, -1)
        rows = torch.cat((head, visual, language.embed(ids)), 1)
        places = torch.cat((torch.arange(prefix).expand(len(index), -1), prefix + packed.offsets), 1).to(device)
        hidden, tapped = language.tapped(rows, places, prefix, packed.mask.to(device), self.layers)
        taps = {**dict(zip(self.layers, tapped, strict=True)), -1: language.normed(hidden)}
        # The row behind: in a branch the next token, at its end the last one, which has no row; every branch begins alike.
        behind = torch.where(labels >= 0, labels, ids.roll(-1, 1))
        following = torch.cat((rows[:, 1:prefix], language.embed(ids[:, :1]), language.embed(behind)), 1)
        loss_mask = (labels >= 0) & (labels.roll(-1, 1) >= 0)
        loss_mask[:, -1] = False
        said = torch.full(rows.shape[:2], -1, device=device)
        said[:, : len(before)], said[:, prefix:] = torch.tensor(before), ids
        logits = language.logits(hidden[:, prefix:])
        return TargetBatch(rows, said, following, taps, logits, places, packed, len(before), prefix, loss_mask)

    def _branches(self, index: int) -> list[Branch]:
        known = self.answers[index]
        return [Branch(known[i].question, known[i].answer) for i in self.rng.permutation(len(known))[: self.packed]]


def head_losses(recipe: HeadRecipe, target: VideoLlava, seen: TargetBatch) -> dict[str, Tensor]:
    """words: cross-entropy with the target's distribution; feature: smooth L1; `_right`, `_right3`: how often the head's first
    choice is the target's, at the first and at the third step ahead."""
    head, language = recipe.head, target.language
    predicted = recipe.steps(language, seen, recipe.unroll)
    wanted = (seen.logits[..., head.ids] if isinstance(head, Eagle3Head) else seen.logits).roll(-1, 1)
    nameable = wanted.amax(-1) >= seen.logits.roll(-1, 1).amax(-1)  # the target's choice is one the head can name
    true = seen.taps[-1][:, seen.prefix :].roll(-1, 1)
    loss_mask, parts = predicted.loss_mask, dict[str, list[Tensor]](words=[], feature=[])
    figures: dict[str, Tensor] = {}
    for step, out in enumerate(predicted.outs):
        if step:
            loss_mask = loss_mask & shifted(loss_mask, 1)
            loss_mask[:, 0] = False
        kept, share = loss_mask & nameable, recipe.decay**step
        logits = head.scores(out[kept], language).float()
        parts["words"].append(share * F.cross_entropy(logits, wanted[kept].float().softmax(-1)))
        if recipe.feature:
            parts["feature"].append(share * F.smooth_l1_loss(out[loss_mask].float(), true[loss_mask].float()))
        if step in (0, 2):
            right = (logits.argmax(-1) == wanted[kept].argmax(-1)).float().sum() / loss_mask.sum()
            figures["_right" if step == 0 else "_right3"] = right
    losses = {"words": recipe.words * torch.stack(parts["words"]).sum(), **figures}
    if recipe.feature:
        losses["feature"] = recipe.feature * torch.stack(parts["feature"]).sum()
    if recipe.cost and predicted.cost is not None:
        losses["cost"] = recipe.cost * predicted.cost
    if recipe.middle and predicted.block is not None:
        true = sharpest(language, seen, recipe.middle).roll(-1, 1)
        losses["middle"] = F.smooth_l1_loss(predicted.block[predicted.loss_mask].float(), true[predicted.loss_mask].float())
    return losses
