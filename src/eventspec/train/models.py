"""The two models in training: grounding heads beside them, and the loss of a batch; and the losses that recipes share. They
decide how long and on what."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.models.embedded import Size, pixels_from_classes
from eventspec.models.eventgpt import EventGpt
from eventspec.models.pixels import normalised
from eventspec.models.video_llava import VideoLlava
from eventspec.nn import Llama
from eventspec.scenes.facts import EGO, LIGHTS, SIGNALS, Facts
from eventspec.train.data import Branch, Clips, Index, Packed, Questions, augment_events, augment_frames, drawn, pack

M = TypeVar("M", bound=nn.Module)

GROUNDS = (11, 7, 7, 5)
"""Classes of the four label planes: kind, action, colour, distance (0 = nothing)."""
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


class GroundedTraining(nn.Module):
    """A model of the pair and its grounding heads, and the loss of a batch with `packed` questions about each recording."""

    packed = 6

    def __init__(self, model: VideoLlava | EventGpt, questions: Questions, clips: Clips, seed: int) -> None:
        super().__init__()
        self.model, config = model, model.config
        self.heads = Grounding(config.vision.hidden_size, config.language.hidden_size)
        initialise(self)
        self.questions, self.clips, self.rng = questions, clips, np.random.default_rng(seed)


class TargetTraining(GroundedTraining):
    """The target in training."""

    model: VideoLlava

    def __init__(self, size: Size, questions: Questions, clips: Clips) -> None:
        super().__init__(VideoLlava(size.target), questions, clips, 0)

    def tower_losses(self, index: Index, progress: float) -> dict[str, Tensor]:
        """Tower alone: one random frame a clip, dense labels."""
        frame = int(self.rng.integers(8))
        pixels = self.frames(index, [frame]).flatten(0, 1)
        labels = self.clips.column("frame_labels", index)[:, frame].to(pixels.device)
        with autocast(pixels):
            features = self.model.tower(pixels, self.model.config.vision_layer)[:, 1:]
            loss = self.heads.patch_loss(self.heads.patches, features, labels)
        return {"patches": loss}

    def frames(self, index: Index, chosen: list[int]) -> Tensor:
        """Augmented, normalised frames float [B, K, 3, 112, 112]."""
        frames = self.clips.column("frames", index)[:, chosen]
        return normalised(augment_frames(frames, self.rng)).to(next(self.parameters()).device)

    def joint_losses(self, index: Index, progress: float, counts: tuple[int, ...]) -> dict[str, Tensor]:
        """Some of 8 frames at their true positions, questions packed behind them. How many is drawn from `counts`: a model
        that has only seen four starts from scratch when it is given eight."""
        model, size = self.model, self.model.config.vision.tokens
        count = counts[int(self.rng.integers(len(counts)))]
        chosen = sorted(self.rng.permutation(8)[:count].tolist())
        facts = [self.clips.facts(int(i)) for i in index]
        before = self.questions.prefix()
        prefix = len(before) + count * size
        packed = pack([self.questions.draw(f, self.packed, self.rng) for f in facts], prefix)
        pixels = self.frames(index, chosen)
        labels = self.clips.column("frame_labels", index)[:, chosen].to(pixels.device)
        full = len(before) + 8 * size
        positions = torch.cat([torch.arange(len(before))] + [len(before) + size * f + torch.arange(size) for f in chosen])
        with autocast(pixels):
            features = model.tower(pixels.flatten(0, 1), model.config.vision_layer)
            visual = model.projector(features).unflatten(0, (len(index), count)).flatten(1, 2)
            hidden, _ = through(model.language, before, visual, packed, positions, full)
            rows = hidden[:, len(before) : prefix].unflatten(1, (count, size))
            logits = model.language.logits(hidden[:, prefix:])
            seen = self.heads.patch_loss(self.heads.patches, features.unflatten(0, (len(index), count))[:, :, 1:], labels)
            read = self.heads.patch_loss(self.heads.rows, rows[:, :, 1:], labels)
            clip = self.heads.clip_loss(hidden[:, prefix - 1], facts)
        answer, accuracy = answer_loss(logits, packed.labels.to(logits.device))
        dense = 0.2 * (1 - 0.9 * progress) if count == 8 else 0.2
        return {"answer": answer, "dense": dense * (seen + read + clip), "_accuracy": accuracy, "_patches": seen, "_clip": clip}


class DrafterTraining(GroundedTraining):
    """The drafter in training, on the right answers, or on the target's own where `answers` holds them."""

    model: EventGpt

    def __init__(self, size: Size, questions: Questions, clips: Clips) -> None:
        super().__init__(EventGpt(size.drafter), questions, clips, 1)
        self.answers: dict[int, list[Branch]] = {}

    def losses(self, index: Index, progress: float) -> dict[str, Tensor]:
        model, config = self.model, self.model.config
        facts = [self.clips.facts(int(i)) for i in index]
        before = self.questions.prefix()
        prefix = len(before) + config.event_tokens
        packed = pack([self.branches(int(i)) for i in index], prefix)
        device = next(self.parameters()).device
        classes = self.clips.column("classes", index).to(device)
        pictures = pixels_from_classes(classes.flatten(0, 1)).unflatten(0, (len(index), -1))
        pixels = augment_events(pictures.contiguous(), self.rng)
        labels = self.clips.column("window_labels", index).to(device)
        with autocast(pixels):
            features = model.tower(pixels.flatten(0, 1))
            adapted = model.adaptor(model.projector(features)).unflatten(0, (len(index), config.images))
            visual = torch.cat((adapted.mean(2), adapted.mean(1)), 1)
            hidden, _ = through(model.language, before, visual, packed, torch.arange(prefix), prefix)
            spatial = hidden[:, prefix - config.vision.tokens + 1 : prefix]
            logits = model.language.logits(hidden[:, prefix:])
            seen = self.heads.patch_loss(
                self.heads.patches, features.unflatten(0, (len(index), config.images))[:, :, 1:], labels
            )
            read = self.heads.patch_loss(self.heads.rows, spatial, labels[:, config.images // 2])
            clip = self.heads.clip_loss(hidden[:, prefix - 1], facts)
        wanted = packed.labels.to(device)
        answer, accuracy = answer_loss(logits, wanted)
        parts = {"answer": answer, "_accuracy": accuracy, "_patches": seen, "_clip": clip}
        weight = 0.2
        if packed.teacher_ids is not None and packed.teacher_logs is not None:
            weight = 0.04
            parts["teacher"] = distillation_loss(logits, wanted, packed.teacher_ids.to(device), packed.teacher_logs.to(device))
        parts["dense"] = weight * (seen + read + clip)
        return parts

    def branches(self, index: int) -> list[Branch]:
        if index in self.answers:
            return drawn(self.answers[index], self.packed, self.rng)
        return self.questions.draw(self.clips.facts(index), self.packed, self.rng)


def read_branches(language: Llama, before: list[int], visual: Tensor, branches: list[list[Branch]]) -> tuple[Tensor, Packed]:
    """Outputs float [B, R, D] of a language model at the rows of packed branches, after the text ids `before` and visual rows
    [B, T, D]; and the packed branches."""
    hidden, _, packed = tapped_branches(language, before, visual, branches, ())
    return hidden, packed


def tapped_branches(
    language: Llama, before: list[int], visual: Tensor, branches: list[list[Branch]], taps: tuple[int, ...]
) -> tuple[Tensor, list[Tensor], Packed]:
    """As `read_branches`, with the outputs [B, R, D] of the layers `taps` too (0 = the embedding), ascending."""
    prefix = len(before) + visual.shape[1]
    packed = pack(branches, prefix)
    hidden, tapped = through(language, before, visual, packed, torch.arange(prefix), prefix, taps)
    return hidden[:, prefix:], [rows[:, prefix:] for rows in tapped], packed


def through(
    language: Llama,
    before: list[int],
    visual: Tensor,
    packed: Packed,
    positions: Tensor,
    full: int,
    taps: tuple[int, ...] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Prefix text, visual rows [B, T, D] and packed branches through a language model -> [B, prefix + R, D], and the outputs of
    the layers `taps`."""
    device, batch = visual.device, len(visual)
    head = language.embed(torch.tensor(before, device=device)).to(visual.dtype).expand(batch, -1, -1)
    tail = language.embed(packed.ids.to(device)).to(visual.dtype)
    where = torch.cat((positions.expand(batch, -1), full + packed.offsets), 1).to(device)
    prefix = len(before) + visual.shape[1]
    return language.tapped(torch.cat((head, visual, tail), 1), where, prefix, packed.mask.to(device), taps)


def initialise(module: M) -> M:
    """The module with its first weights: normal matrices with the deviation of their width ** -0.5 (0.06 at most, half for the
    output projections of a block), 0.04 for embeddings; zero biases."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1 or name.endswith("cls"):
            scale = 0.5 if name.endswith(("out.weight", "down.weight", "fc2.weight")) else 1.0
            width = parameter.shape[-1] if parameter.dim() == 2 else parameter[0].numel()
            nn.init.normal_(parameter, std=min(0.06, scale * width**-0.5) if "embed" not in name else 0.04)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module


def autocast(beside: Tensor) -> torch.autocast:
    """bfloat16 products where the hardware has them, three to four times faster: weights that learn stay fp32. And always where
    a frozen model beside them, of which a weight is given, is in lower precision: fp32 rows could not be multiplied by it."""
    fast = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.autocast(beside.device.type, torch.bfloat16, enabled=fast or beside.dtype != torch.float32)


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
