"""How heads learn: online-logit distillation (2509.11815, section 3.3). The target runs on the fly, frozen; all heads learn
from the same pass, so they see the same data in the same order and can be compared.

Answers are the target's own. A head's row j holds the feature of token j and the embedding of token j + 1, and learns the
feature of token j + 1 and the distribution of the token after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.drafters.heads import Head, Recipe, family_of
from eventspec.drafters.heads.trees import LEVELS, Rates
from eventspec.drafters.heads.unrolled import shifted
from eventspec.drafters.heads.views import TargetBatch
from eventspec.nn.llama import LanguageEnds
from eventspec.train.data import Index
from eventspec.train.loop import total
from eventspec.train.models import autocast

SCARCE = 20
"""Rounds that a level's rates are counted from at least; deeper ones are taken to be alike."""


class BatchSource(Protocol):
    """A frozen target and what it does with recordings that have numbers; `train.frozen` and `train.own` have one each."""

    @property
    def target(self) -> LanguageEnds:
        """The model that heads are to draft for."""

    def batches(self, numbers: Index, layers: tuple[int, ...], rng: np.random.Generator) -> Iterator[TargetBatch]:
        """The target's own pass over recordings, with some of its answers to each, and the outputs of `layers` (the last
        one's, normed, come as -1 anyway); as many batches as suit the target. Not differentiable."""


def layers_read(heads: Iterable[Head], count: int) -> tuple[int, ...]:
    """Of a target of `count` layers those whose outputs the training of some heads reads, besides the last one's."""
    return tuple(sorted(set().union(*(family_of(head).layers_read(head, count) for head in heads))))


class HeadTraining(nn.Module):
    """Heads beside a frozen target, and their losses."""

    def __init__(self, source: BatchSource, heads: Mapping[str, Head], recipes: Mapping[str, Recipe], seed: int = 0) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(heads)
        self.source, self.own, self.recipes = source, heads, recipes
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.layers = layers_read(heads.values(), source.target.config.num_hidden_layers)

    def losses(self, index: Index, progress: float) -> dict[str, Tensor]:
        """Of every head on the recordings `index`, each batch of them from one pass of the target. Gradients are there when it
        returns, and the losses carry none."""
        parts: dict[str, Tensor] = {}
        batches = self.seen(index)
        rows = sum(int(batch.loss_mask.sum()) for batch in batches)
        for batch in batches:
            share = float(batch.loss_mask.sum()) / max(1, rows)  # every learned row weighs alike, whichever batch it is in
            for name, head in self.own.items():
                with self._autocast():
                    losses = head_losses(head, self.recipes[name], self.source.target, batch)
                if torch.is_grad_enabled():  # here, and head by head: the graphs of all of them are more than memory holds
                    (share * total(losses)).backward()
                for part, loss in losses.items():
                    key = f"_{name}_{part[1:]}" if part.startswith("_") else f"{name}_{part}"
                    parts[key] = parts.get(key, 0.0) + share * loss.detach()
        return parts

    @torch.no_grad()
    def acceptance(self, numbers: list[int], batch: int, depth: int = 8) -> dict[str, float]:
        """tau of every head on recordings: how many drafts of a chain of `depth`, begun at any token of an answer, are the
        target's own next tokens, and the bonus token. What lies after an answer's end counts as neither right nor wrong."""
        right, begun = dict.fromkeys(self.own, 0.0), dict.fromkeys(self.own, 0.0)
        for name, found in self._ranked(numbers, batch, 1, depth):
            right[name] += float((found == 0).sum())
            begun[name] += float((found[0] >= 0).sum())
        return {name: 1 + gained / max(1.0, begun[name]) for name, gained in right.items()}

    @torch.no_grad()
    def rates(self, numbers: list[int], batch: int, most: int = 10, depth: int = LEVELS) -> dict[str, Rates]:
        """How often the target's next token is the first, second, ... choice of every head, by level, in the rounds that chains
        of `depth` take through the answers: what a static tree is made for. An answer's end is a draft that is not right."""
        counts = {name: torch.zeros(depth + 1, most + 1) for name in self.own}
        for name, found in self._ranked(numbers, batch, most, depth):
            counts[name] += count_rounds(found, most)
        return {name: acceptance_rates(found) for name, found in counts.items()}

    def _ranked(self, numbers: list[int], batch: int, most: int, depth: int) -> Iterator[tuple[str, Tensor]]:
        """As `ranked`, of every head by name, on the same questions about recordings every time."""
        self.rng = np.random.default_rng(self.seed)
        for at in range(0, len(numbers), batch):
            for seen in self.seen(np.array(numbers[at : at + batch])):
                for name, head in self.own.items():
                    with self._autocast():
                        found = ranked(head, self.source.target, seen, most, depth)
                    yield name, found

    def seen(self, index: Index) -> list[TargetBatch]:
        """The target's pass over recordings, with some of its answers to each."""
        with torch.no_grad(), self._autocast():
            return list(self.source.batches(index, self.layers, self.rng))

    def _autocast(self) -> torch.autocast:
        return autocast(self.source.target.embed.weight)


def head_losses(head: Head, recipe: Recipe, target: LanguageEnds, batch: TargetBatch) -> dict[str, Tensor]:
    """words: cross-entropy with the target's distribution; feature: smooth L1; `_right`, `_right3`: how often the head's first
    choice is the target's, at the first and at the third step ahead; and what the head's rollout adds."""
    ids, predicted = head.vocab_ids, family_of(head).rollout(head, target, batch, recipe.unroll)
    wanted = (batch.logits if ids is None else batch.logits[..., ids]).roll(-1, 1)
    nameable = wanted.amax(-1) >= batch.logits.roll(-1, 1).amax(-1)  # the target's choice is one the head can name
    true = batch.taps[-1][:, batch.prefix :].roll(-1, 1)
    loss_mask, parts = predicted.loss_mask, dict[str, list[Tensor]](words=[], feature=[])
    figures: dict[str, Tensor] = {}
    for step, out in enumerate(predicted.outs):
        if step:
            loss_mask = loss_mask & shifted(loss_mask, 1)
            loss_mask[:, 0] = False
        kept, share = loss_mask & nameable, recipe.decay**step
        logits = head.scores(out[kept], target).float()
        # Sums over counts: of a short answer no row is left at a late step.
        words = F.cross_entropy(logits, wanted[kept].float().softmax(-1), reduction="sum") / kept.sum().clamp_min(1)
        parts["words"].append(share * words)
        if recipe.feature:
            apart = F.smooth_l1_loss(out[loss_mask].float(), true[loss_mask].float(), reduction="sum")
            parts["feature"].append(share * apart / (loss_mask.sum() * out.shape[-1]).clamp_min(1))
        if step in (0, 2):
            right = (logits.argmax(-1) == wanted[kept].argmax(-1)).float().sum() / loss_mask.sum().clamp_min(1)
            figures["_right" if step == 0 else "_right3"] = right
    losses = {"words": recipe.words * torch.stack(parts["words"]).sum(), **figures}
    if recipe.feature:
        losses["feature"] = recipe.feature * torch.stack(parts["feature"]).sum()
    wanted_too = {name: weight for name, weight in recipe.extra.items() if name in predicted.extra}
    return {**losses, **{name: weight * predicted.extra[name]() for name, weight in wanted_too.items()}}


def ranked(head: Head, target: LanguageEnds, batch: TargetBatch, most: int, depth: int) -> Tensor:
    """Of a chain of `depth` drafts begun at every branch row, the ranks int64 [depth, B, R] that the target's next tokens have
    among the head's choices: `most` where they are none of them, -1 after a draft that was not right and after an answer's
    end."""
    wanted = batch.logits.roll(-1, 1).argmax(-1)
    steps = min(depth, wanted.shape[1])  # no answer is longer than all rows
    predicted = family_of(head).rollout(head, target, batch, steps)
    alive, found = predicted.loss_mask, []
    for step, out in enumerate(predicted.outs):
        scores = head.scores(out, target)
        named = scores.topk(min(most, scores.shape[-1])).indices
        if head.vocab_ids is not None:
            named = head.vocab_ids[named]
        hit = named == wanted[..., None]
        rank = torch.where(hit.any(-1), hit.float().argmax(-1), most)
        found.append(torch.where(alive, rank, -1).roll(-step, 1))  # row j is draft number `step` of what began `step` before
        alive = shifted(alive & (rank == 0), 1) & predicted.loss_mask
        alive[:, : step + 1] = False
    none = torch.full_like(found[0], -1)
    return torch.stack(found + [none] * (depth - len(found)))


def count_rounds(ranks: Tensor, most: int) -> Tensor:
    """Counts float [depth + 1, most + 1] of ranks [depth, B, R] by level, in the rounds that chains take through the answers:
    the next one begins after the drafts that were right and the target's own token. The first entry of all is how many."""
    depth, count = len(ranks), torch.zeros(len(ranks) + 1, most + 1)
    loss_mask, gained = (ranks[0] >= 0).tolist(), (ranks == 0).sum(0).tolist()
    begun = torch.zeros(ranks.shape[1:], dtype=torch.bool)
    for branch, rows in enumerate(loss_mask):
        due = 0  # an answer's last round comes two rows after its end at most, where the next one may begin
        for row, known in enumerate(rows):
            if known and row >= due:
                begun[branch, row], due = True, row + gained[branch][row] + 1
    count[0, 0] = begun.sum()
    for level in range(depth):
        found = ranks[level][begun.to(ranks.device)]
        count[level + 1] = found[found >= 0].bincount(minlength=most + 1).cpu()
    return count


def acceptance_rates(counts: Tensor) -> Rates:
    """Of `count_rounds`' counts, the rates by level, of the rounds that came so far."""
    found: list[tuple[float, ...]] = []
    for before, here in zip(counts[:-1, 0].tolist(), counts[1:, :-1], strict=True):
        if before < SCARCE and found:
            break
        found.append(tuple((here / max(1.0, before)).tolist()))
    return tuple(found)
