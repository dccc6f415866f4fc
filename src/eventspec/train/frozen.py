"""A frozen target that reads other visual rows than its own: what it says then of its own answers, and how far it agrees with
itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from eventspec.models.video_llava import VideoLlava
from eventspec.train.data import Branch, Clips, Index, Packed, Questions, drawn
from eventspec.train.losses import answer_loss, distillation_loss
from eventspec.train.models import autocast, read_branches

Branches = list[list[Branch]]
"""Of each recording of a batch."""


@dataclass(frozen=True)
class Said:
    """A pass over answers that the target gave on all of its own rows: logits float [B, R, V], labels int64 [B, R] as in
    `Packed`, its top ids and log-probabilities then, [B, R, 8] each, and how long every answer is, in the order of the rows."""

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
    """A model that learns nothing, with its prompts. It is no module, so it is no part of what is trained and saved."""

    def __init__(self, model: VideoLlava, questions: Questions) -> None:
        # In training mode its products follow autocast.
        self.model, self.questions = model.train().requires_grad_(False), questions

    @property
    def device(self) -> torch.device:
        return self.model.language.embed.weight.device

    def reads(self, visual: Tensor, branches: Branches) -> Said:
        """Visual rows [B, T, D], and for each of the recordings branches that carry the target's logits."""
        hidden, packed = read_branches(self.model.language, self.questions, visual, branches)
        return self.said(self.model.language.logits(hidden), packed, branches)

    def said(self, logits: Tensor, packed: Packed, branches: Branches) -> Said:
        """Another model's logits [B, R, V] on the rows of packed branches, beside the target's."""
        assert packed.teacher_ids is not None and packed.teacher_logs is not None
        teacher = packed.teacher_ids.to(self.device), packed.teacher_logs.to(self.device)
        lengths = tuple(len(branch.answer) for known in branches for branch in known)
        return Said(logits, packed.labels.to(self.device), *teacher, lengths)

    @torch.no_grad()
    def agreement(self, saying: Saying, answers: Mapping[int, list[Branch]], packed: int) -> dict[str, float]:
        """Over answers to recordings by number, with what `saying` gives: the share of the target's tokens that come first
        after its own, tokens of an answer up to the first that does not (what a chain drafted ahead would have accepted), and
        the share of answers that come out whole."""
        found: list[list[bool]] = []
        for number, branches in sorted(answers.items()):
            for at in range(0, len(branches), packed):
                with autocast(self.device):
                    said = saying(np.array([number]), [branches[at : at + packed]])
                found += [part.tolist() for part in said.right()]
        tokens = sum(map(len, found))
        leading = [next((n for n, right in enumerate(own) if not right), len(own)) for own in found]
        return {
            "tokens": sum(map(sum, found)) / tokens,
            "leading": sum(leading) / len(found),
            "answers": sum(map(all, found)) / len(found),
            "n_answers": len(found),
        }


class AnswerTraining(nn.Module):
    """A model that learns to say what a frozen target says of clips, `packed` answers about each at once."""

    def __init__(self, target: FrozenTarget, clips: Clips, answers: Mapping[int, list[Branch]], packed: int) -> None:
        super().__init__()
        self.target, self.clips, self.answers, self.packed = target, clips, answers, packed
        self.rng = np.random.default_rng(0)

    def said(self, clips: Clips, index: Index, branches: Branches) -> Said:
        """What the model says at the tokens of the target's answers."""
        raise NotImplementedError

    def losses(self, index: Index, progress: float) -> dict[str, Tensor]:
        """teacher: cross-entropy with the target's own distribution; `_accuracy`: how often its own token comes first."""
        branches = [drawn(self.answers[int(i)], self.packed, self.rng) for i in index]
        with autocast(self.target.device):
            said = self.said(self.clips, index, branches)
            return {"teacher": said.teacher_loss(), "_accuracy": said.accuracy()}

    def agreement(self, clips: Clips, answers: Mapping[int, list[Branch]]) -> dict[str, float]:
        """As `FrozenTarget.agreement`, on held-out clips."""
        return self.target.agreement(lambda index, branches: self.said(clips, index, branches), answers, self.packed)
