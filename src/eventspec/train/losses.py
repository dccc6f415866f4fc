"""Losses shared by recipes: answer cross-entropy, dense grounding from the renderer's labels, and distillation on a
teacher's top logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.scenes.facts import EGO, LIGHTS, SIGNALS, Facts
from eventspec.train.data import GROUNDS

CLIP_FACTS = (len(EGO), len(LIGHTS), len(SIGNALS), 2, 5)
BACKGROUND_WEIGHT = 0.15


class Grounding(nn.Module):
    """Linear heads that read the renderer's per-patch labels and the clip's facts out of hidden states; dropped at export.

    Essential at this data size: answers alone teach a tower very slowly (reference: the embedded pair's notes, section 5).
    """

    def __init__(self, vision: int, language: int) -> None:
        super().__init__()
        self.patches = nn.Linear(vision, sum(GROUNDS))
        self.rows = nn.Linear(language, sum(GROUNDS))
        self.clip = nn.Linear(language, sum(CLIP_FACTS))

    def patch_loss(self, head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
        """hidden [..., 64, D], labels int8 [..., 4, 8, 8] -> weighted cross-entropy, the mean over the four planes."""
        logits = head(hidden).float().split(GROUNDS, -1)
        target = labels.flatten(-2).movedim(-2, 0).long()
        parts = []
        for scores, plane in zip(logits, target, strict=True):
            weight = torch.ones(scores.shape[-1], device=scores.device)
            weight[0] = BACKGROUND_WEIGHT
            parts.append(F.cross_entropy(scores.flatten(0, -2), plane.flatten(), weight))
        return torch.stack(parts).mean()

    def clip_loss(self, hidden: Tensor, facts: list[Facts]) -> Tensor:
        """hidden [B, D] of the last visual row -> cross-entropy of ego, light, signal, junction, count."""
        rows = [
            (EGO.index(f.ego), LIGHTS.index(f.light), SIGNALS.index(f.signal), int(f.junction), min(4, len(f.users)))
            for f in facts
        ]
        target = torch.tensor(rows, device=hidden.device)
        logits = self.clip(hidden).float().split(CLIP_FACTS, -1)
        return torch.stack([F.cross_entropy(scores, target[:, i]) for i, scores in enumerate(logits)]).mean()


def answer_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """float [B, R, V], int64 [B, R] with -100 -> mean cross-entropy and token accuracy."""
    kept = labels >= 0
    logits, labels = logits[kept].float(), labels[kept]
    return F.cross_entropy(logits, labels), (logits.detach().argmax(-1) == labels).float().mean()


def distillation_loss(logits: Tensor, labels: Tensor, teacher_ids: Tensor, teacher_logs: Tensor) -> Tensor:
    """Cross-entropy against the teacher's top-k distribution, renormalised: ids int64 and log-probabilities float [B, R, k]."""
    kept = labels >= 0
    logs = logits[kept].float().log_softmax(-1).gather(-1, teacher_ids[kept])
    weight = teacher_logs[kept].float().softmax(-1)
    return -(weight * logs).sum(-1).mean()
