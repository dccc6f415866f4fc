"""A frozen target that reads other visual rows than its own: what it says then of its own answers, and how far it agrees with
itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.models.video_llava import VideoLlava
from eventspec.train.data import Branch, Packed, Questions, pack
from eventspec.train.losses import answer_loss, distillation_loss
from eventspec.train.models import autocast, through


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
        """Of the answers' tokens, how many a chain drafted from here would have accepted on average, drawn token by token:
        the sum over places of the product of the shares of all tokens up to there."""
        kept = self.labels >= 0
        logs = self.logits[kept].float().log_softmax(-1).gather(-1, self.labels[kept][:, None])[:, 0]
        paths = [part.cumsum(0).exp() for part in logs.split(self.lengths)]
        return torch.cat(paths).mean()


Saying = Callable[[np.ndarray[Any, Any], list[list[Branch]]], Said]
"""What somebody says of branches about recordings by number."""


class FrozenTarget:
    """A model that learns nothing, with its prompts. It is no module, so it is no part of what is trained and saved."""

    def __init__(self, model: VideoLlava, questions: Questions) -> None:
        # In training mode its products follow autocast.
        self.model, self.questions = model.train().requires_grad_(False), questions

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.language.embed.weight.device

    def reads(self, visual: Tensor, branches: list[list[Branch]]) -> Said:
        """Visual rows [B, T, D], and for each of the recordings branches that carry its own logits."""
        language, before = self.model.language, self.questions.prefix()
        prefix = len(before) + visual.shape[1]
        packed = pack(branches, prefix)
        hidden = through(language, before, visual, packed, torch.arange(prefix), prefix)
        return self.said(language.logits(hidden[:, prefix:]), packed, branches)

    def said(self, logits: Tensor, packed: Packed, branches: list[list[Branch]]) -> Said:
        """Somebody's logits [B, R, V] on the rows of packed branches, beside its own."""
        assert packed.teacher_ids is not None and packed.teacher_logs is not None
        teacher = packed.teacher_ids.to(self.device), packed.teacher_logs.to(self.device)
        lengths = tuple(len(branch.answer) for known in branches for branch in known)
        return Said(logits, packed.labels.to(self.device), *teacher, lengths)

    @torch.no_grad()
    def agreement(self, saying: Saying, answers: Mapping[int, list[Branch]], packed: int) -> dict[str, float]:
        """Over answers to recordings by number, with what somebody says of them: shares of the target's tokens that come first
        behind its own, tokens of an answer up to the first that does not (what a chain drafted ahead would have accepted), and
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
