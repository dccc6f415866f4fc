"""A frozen target: its own pass over clips, which heads learn from, what it says of its own answers where it reads other visual
rows, and how far it agrees with itself then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from eventspec.drafters.heads.views import TargetBatch, loss_mask_of
from eventspec.models.eventgpt import EventGpt
from eventspec.models.video_llava import VideoLlava
from eventspec.nn import Llama
from eventspec.train.data import Branch, Index, Packed, PixelSource, drawn, pack
from eventspec.train.models import answer_loss, autocast, distillation_loss, read_branches, tapped_branches

Branches = list[list[Branch]]
"""Of each recording of a batch."""


@dataclass(frozen=True)
class Said:
    """A pass over answers that the target gave on all of its own rows: logits float [B, R, V], labels int64 [B, R] as in
    `Packed`, its top ids and log-probabilities then, [B, R, 8] each, and how many labels every answer has, in their order."""

    logits: Tensor
    labels: Tensor
    teacher_ids: Tensor
    teacher_logs: Tensor
    lengths: tuple[int, ...]

    def teacher_loss(self) -> Tensor:
        """Cross-entropy with what it said on its own rows."""
        return distillation_loss(self.logits, self.labels, self.teacher_ids, self.teacher_logs)

    def accuracy(self) -> Tensor:
        """How often its own token comes first."""
        return answer_loss(self.logits, self.labels)[1]

    def right(self) -> list[Tensor]:
        """For every answer, which of its tokens come first, bool [A]."""
        kept = self.labels >= 0
        return list((self.logits[kept].argmax(-1) == self.labels[kept]).split(self.lengths))

    def accepted_share(self) -> Tensor:
        """The share of the answers' tokens that a chain drafted from here would have accepted on average, drawn token by token:
        the sum over places of the product of the probabilities of all tokens up to there."""
        kept = self.labels >= 0
        logs = self.logits[kept].float().log_softmax(-1).gather(-1, self.labels[kept][:, None])[:, 0]
        paths = [part.cumsum(0).exp() for part in logs.split(self.lengths)]
        return torch.cat(paths).mean()


Saying = Callable[[Index, Branches], Said]
"""What a model says of branches about recordings by number."""


class FrozenTarget:
    """A model that learns nothing, and the ids `before` the visual rows of its prompts. It is no module, so it is no part of
    what is trained and saved."""

    def __init__(self, model: VideoLlava, before: list[int]) -> None:
        # In training mode its products follow autocast.
        self.model, self.before = model.train().requires_grad_(False), before

    @property
    def weight(self) -> Tensor:
        """One of its own: where it is, and in which precision."""
        return self.model.language.embed.weight

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def rows(self, clips: PixelSource, index: Index) -> Tensor:
        """Its own visual rows of clips, [B, K * tokens, D]."""
        rows: Tensor = self.model.encode(clips.frames(index).to(self.device)).unflatten(0, (len(index), -1))
        return rows

    def reads(self, visual: Tensor, branches: Branches) -> Said:
        """Visual rows [B, T, D], and for each of the recordings branches that carry the target's logits."""
        hidden, packed = read_branches(self.model.language, self.before, visual, branches)
        return said_of(self.model.language.logits(hidden), packed, branches)


def said_of(logits: Tensor, packed: Packed, branches: Branches) -> Said:
    """Another model's logits [B, R, V] on the rows of packed branches, beside the target's."""
    assert packed.teacher_ids is not None and packed.teacher_logs is not None
    teacher = packed.teacher_ids.to(logits.device), packed.teacher_logs.to(logits.device)
    lengths = list[int]()
    for labels, known in zip(packed.labels, branches, strict=True):
        rows = [len(branch.question) + len(branch.answer) - 1 for branch in known]
        lengths += [int((part >= 0).sum()) for part in labels[: sum(rows)].split(rows)]
    return Said(logits, packed.labels.to(logits.device), *teacher, tuple(lengths))


@torch.no_grad()
def agreement_of(beside: Tensor, saying: Saying, answers: Mapping[int, list[Branch]], packed: int) -> dict[str, float]:
    """Over answers to recordings by number, with what `saying` gives: the share of the target's tokens that come first after
    its own, tokens of an answer up to the first that does not (what a chain drafted ahead would have accepted), and the share
    of answers that come out whole."""
    found: list[list[bool]] = []
    for number, branches in sorted(answers.items()):
        for at in range(0, len(branches), packed):
            with autocast(beside):
                given = saying(np.array([number]), [branches[at : at + packed]])
            found += [part.tolist() for part in given.right()]
    tokens = sum(map(len, found))
    leading = [next((n for n, right in enumerate(own) if not right), len(own)) for own in found]
    return {
        "tokens": sum(map(sum, found)) / tokens,
        "leading": sum(leading) / len(found),
        "answers": sum(map(all, found)) / len(found),
        "n_answers": len(found),
    }


class FrozenDrafter:
    """The event model of a pair that learns nothing, as `FrozenTarget`: its prompts may be others."""

    def __init__(self, model: EventGpt, before: list[int]) -> None:
        self.model, self.before = model.train().requires_grad_(False), before

    @property
    def weight(self) -> Tensor:
        """As `FrozenTarget.weight`."""
        return self.model.language.embed.weight

    def reads(
        self, clips: PixelSource, index: Index, branches: Branches, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor], Packed]:
        """As `event_reads`."""
        return event_reads(self.model, self.before, clips, index, branches, taps)


def event_reads(
    model: EventGpt,
    before: list[int],
    clips: PixelSource,
    index: Index,
    branches: Branches,
    taps: tuple[int, ...] = (),
) -> tuple[Tensor, list[Tensor], Packed]:
    """What an event model's language model gives [B, R, D] at the rows of packed branches, as it reads them, after the ids
    `before` and its event rows; and what its layers `taps` gave there."""
    visual = model.encode(clips.pictures(index).to(model.language.embed.weight.device))
    return tapped_branches(model.language, before, visual, as_read(branches), taps)


def as_read(branches: Branches) -> Branches:
    """Branches as the event model reads them."""
    return [[branch.own or branch for branch in known] for known in branches]


class AnswerTraining(nn.Module):
    """A model that learns to say what a target says of clips, `packed` answers about each at once."""

    def __init__(self, clips: PixelSource, answers: Mapping[int, list[Branch]], packed: int) -> None:
        super().__init__()
        self.clips, self.answers, self.packed = clips, answers, packed
        self.rng = np.random.default_rng(0)

    @property
    def weight(self) -> Tensor:
        """One of the model that answers: where it is, and in which precision."""
        return next(self.parameters())

    def said(self, clips: PixelSource, index: Index, branches: Branches) -> Said:
        """What the model says at the tokens of the target's answers."""
        raise NotImplementedError

    def losses(self, index: Index, progress: float) -> dict[str, Tensor]:
        """teacher: cross-entropy with the target's own distribution; `_accuracy`: how often its own token comes first."""
        branches = [drawn(self.answers[int(i)], self.packed, self.rng) for i in index]
        with autocast(self.weight):
            given = self.said(self.clips, index, branches)
            return {"teacher": given.teacher_loss(), "_accuracy": given.accuracy()}

    def agreement(self, clips: PixelSource, answers: Mapping[int, list[Branch]]) -> dict[str, float]:
        """As `agreement_of`, on held-out clips."""
        return agreement_of(self.weight, lambda index, branches: self.said(clips, index, branches), answers, self.packed)


class StreetBatches:
    """As `distillation.BatchSource`: rendered clips, and `packed` of the answers to each behind it, drawn again every time."""

    def __init__(self, frozen: FrozenTarget, clips: PixelSource, answers: Mapping[int, list[Branch]], packed: int) -> None:
        self.frozen, self.clips, self.answers, self.packed = frozen, clips, answers, packed

    @property
    def target(self) -> Llama:
        return self.frozen.model.language

    def batches(self, numbers: Index, layers: tuple[int, ...], rng: np.random.Generator) -> Iterator[TargetBatch]:
        """As `BatchSource.batches`: one."""
        language, before, device = self.target, self.frozen.before, self.frozen.device
        visual = self.frozen.rows(self.clips, numbers)
        prefix = len(before) + visual.shape[1]
        known = [drawn(self.answers[int(number)], self.packed, rng) for number in numbers]
        packed = pack([[Branch(branch.question, branch.answer) for branch in branches] for branches in known], prefix)
        ids, labels = packed.ids.to(device), packed.labels.to(device)
        head = language.embed(torch.tensor(before, device=device)).expand(len(numbers), -1, -1)
        rows = torch.cat((head, visual, language.embed(ids)), 1)
        places = torch.cat((torch.arange(prefix).expand(len(numbers), -1), prefix + packed.offsets), 1).to(device)
        mask, offsets = packed.mask.to(device), packed.offsets.to(device)
        hidden, tapped = language.tapped(rows, places, prefix, mask, layers)
        taps = {**dict(zip(layers, tapped, strict=True)), -1: language.normed(hidden)}
        # The row after: in a branch the next token, at its end the last one, which has no row; every branch begins alike.
        after = torch.where(labels >= 0, labels, ids.roll(-1, 1))
        following = torch.cat((rows[:, 1:prefix], language.embed(ids[:, :1]), language.embed(after)), 1)
        said = torch.full(rows.shape[:2], -1, device=device)
        said[:, : len(before)], said[:, prefix:] = torch.tensor(before), ids
        logits = language.logits(hidden[:, prefix:])
        learned = loss_mask_of(labels)
        yield TargetBatch(rows, said, following, taps, logits, places, mask, offsets, labels, len(before), prefix, learned)
