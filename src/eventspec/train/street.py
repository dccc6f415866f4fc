"""What heads learn from on the synthetic street: the pass of one of our own targets over rendered clips, many of its answers to
a clip packed behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from eventspec.drafters.heads.views import TargetBatch, loss_mask_of
from eventspec.models.embedded import pixels_from_frames
from eventspec.models.video_llava import VideoLlava
from eventspec.nn import Llama
from eventspec.train.data import Branch, Clips, Index, Questions, drawn, pack


class StreetBatches:
    """As `distillation.BatchSource`; `packed` of the answers to a clip, drawn again every time."""

    def __init__(
        self, model: VideoLlava, questions: Questions, clips: Clips, answers: Mapping[int, list[Branch]], packed: int = 6
    ) -> None:
        # In training mode its products follow autocast.
        self.model, self.questions = model.train().requires_grad_(False), questions
        self.clips, self.answers, self.packed = clips, answers, packed

    @property
    def target(self) -> Llama:
        return self.model.language

    def batches(self, numbers: Index, layers: tuple[int, ...], rng: np.random.Generator) -> Iterator[TargetBatch]:
        """As `BatchSource.batches`: one."""
        language, before = self.target, self.questions.prefix()
        device = language.embed.weight.device
        pixels = pixels_from_frames(self.clips.column("frames", numbers).flatten(0, 1).numpy()).to(device)
        visual = self.model.encode(pixels).unflatten(0, (len(numbers), -1))
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
