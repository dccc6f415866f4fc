"""Adapters in training between a frozen event model and a frozen target: what they read, what they should write, and their
losses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.align import gaps
from eventspec.align.adapters import KINDS, ROLLED, Adapter, by_frame, laid_out, pooled_layers
from eventspec.drafters.heads.unrolled import shifted
from eventspec.train.answers import greedy_answers
from eventspec.train.data import Branch, Index, PixelSource, drawn, pack
from eventspec.train.frozen import Branches, FrozenDrafter, FrozenTarget, Said, agreement_of, said_of
from eventspec.train.models import autocast, read_branches

TEMPERATURE = 0.1
"""Of InfoNCE, over cosines."""
GAPS = (gaps.cosine, gaps.l2, gaps.mmd, gaps.sliced_wasserstein, gaps.linear_cka)
MOST_ROWS = 3000
SEEN = 0
"""Among inputs by number: the target's own visual rows, [B, M, D]."""
LOSSES = {"squared": 1.0, "cosine": 0.5, "contrast": 0.1, "information": 0.5}
"""What each part weighs in phases alignment and joint."""
ALIGN, ACCEPT = 1.0, 0.1
"""What alignment and the predictor of acceptance weigh in phase joint, beside the cross-entropy of answers."""
MOST_CONTRASTED = 512
"""Rows of texts that are told apart, at most."""


class AdapterTraining(nn.Module):
    """Adapters with one output, and their losses on a batch of clips: they share the event model's pass. `alike`: the LOSSES
    of phases alignment and joint, the `usual` ones for none; `judged`: whether a predictor of acceptance learns beside each."""

    usual: tuple[str, ...] = ("squared", "cosine", "contrast")

    def __init__(
        self,
        target: FrozenTarget,
        drafter: FrozenDrafter,
        adapters: Mapping[str, Adapter],
        clips: PixelSource,
        answers: Mapping[int, list[Branch]],
        packed: int,
        alike: Collection[str] = (),
        judged: bool = False,
    ) -> None:
        super().__init__()
        width = target.model.config.language.hidden_size
        self.predictors = nn.ModuleDict({name: nn.Linear(2 * width, 1) for name in adapters if judged})
        self.adapters, self.alike = nn.ModuleDict(adapters), alike or self.usual
        self.target, self.clips, self.answers, self.packed = target, clips, answers, packed
        self.drafter, self.rng = drafter, np.random.default_rng(0)

    def inputs(self, clips: PixelSource, index: Index, branches: Branches) -> dict[int, Tensor]:
        """All that any adapter reads, by number: float [B, T, C] each, on the target's device, where adapters learn."""
        raise NotImplementedError

    def wanted(self, clips: PixelSource, index: Index, branches: Branches) -> tuple[Tensor, Tensor]:
        """What adapters should write, float [B, T, D], and which rows of it count, bool [B, T]."""
        raise NotImplementedError

    def said(self, written: Tensor, branches: Branches) -> Said:
        """What the target makes of what an adapter wrote, float [B, T, D]."""
        raise NotImplementedError

    def written(self, adapter: Adapter, inputs: Mapping[int, Tensor], branches: Branches, seen: bool = False) -> Tensor:
        """What an adapter writes, float [B, T, D], of all `inputs`; `seen`: it looks at the target's rows."""
        own = [inputs[number] for number in adapter.config.layers]
        written: Tensor = adapter(own, adapter.look(inputs[SEEN]) if seen else ())
        return written

    def as_read(self, written: Tensor) -> Tensor:
        """What an adapter wrote as the target's language model reads it, float [B, T, D]."""
        return written

    def predicted(self, name: str, written: Tensor, branches: Branches) -> Tensor:
        """Logits [A] that the answer to each question is the target's, from adapted events and the question alone."""
        embed, rows = self.target.model.language.embed, self.as_read(written).float().mean(1)
        asked = [embed(torch.tensor(one.question, device=rows.device)).float().mean(0) for known in branches for one in known]
        own = torch.cat([row.expand(len(known), -1) for row, known in zip(rows, branches, strict=True)])
        logits: Tensor = self.predictors[name](torch.cat((own, torch.stack(asked)), -1))[:, 0]
        return logits

    def losses(self, phase: str, index: Index, progress: float) -> dict[str, Tensor]:
        """Of every adapter, under its name; what begins with `_` is reported only."""
        parts = dict[str, Tensor]()
        with autocast(self.target.weight), autocast(self.drafter.weight):
            branches = [drawn(self.answers[int(i)], self.packed, self.rng) for i in index]
            looking = self.looks and bool(self.rng.random() < 0.5)  # a first question comes before the target's rows
            with torch.no_grad():
                inputs = self.inputs(self.clips, index, branches)
                inputs |= {SEEN: self.target.rows(self.clips, index)} if looking else {}
                wanted = self.wanted(self.clips, index, branches) if phase in ("alignment", "joint") else None
            for name, adapter in self.each():
                written = self.written(adapter, inputs, branches, looking and KINDS[adapter.config.kind].looks)
                written = written.detach() if phase == "predictor" else written
                if wanted is not None:
                    near = aligned(name, written, *wanted, alike=self.alike)
                    hidden = adapter.hidden([inputs[number] for number in adapter.config.layers]) if adapter.next else None
                    if hidden is not None and (foreseen := adapter.predict_next(hidden)) is not None:
                        near[f"{name} next"] = 0.5 * foreseen_error(foreseen, wanted[0])
                    if phase == "alignment":
                        parts |= near
                        continue
                    parts[f"{name} apart"] = ALIGN * near.pop(name)
                    parts |= near
                with torch.set_grad_enabled(phase != "predictor"):  # where the predictor alone learns, of what there is
                    said = self.said(written, branches)
                right = torch.stack([part.all() for part in said.right()])
                if phase != "predictor":
                    parts |= {name: said.teacher_loss(), f"_{name}_accuracy": said.accuracy()}
                if phase in ("predictor", "joint"):
                    judged = F.binary_cross_entropy_with_logits(self.predicted(name, written, branches), right.float())
                    parts[f"{name} judged"] = judged if phase == "predictor" else ACCEPT * judged
                if phase == "end-to-end":
                    share = said.accepted_share()
                    parts |= {f"{name} missed": 2 * (1 - share), f"_{name}_accepted": share.detach()}
        return parts

    @property
    def looks(self) -> bool:
        """Whether any adapter looks at the target's rows."""
        return any(KINDS[adapter.config.kind].looks for _, adapter in self.each())

    def agreement(self, clips: PixelSource, answers: Mapping[int, list[Branch]]) -> dict[str, dict[str, float]]:
        """As `agreement_of`, of every adapter on held-out clips; of one that looks at the target's rows also where they are,
        as `NAME_seen`."""

        def of(adapter: Adapter, seen: bool) -> dict[str, float]:
            def saying(index: Index, branches: Branches) -> Said:
                with autocast(self.drafter.weight):
                    inputs = self.inputs(clips, index, branches) | ({SEEN: self.target.rows(clips, index)} if seen else {})
                return self.said(self.written(adapter, inputs, branches, seen), branches)

            return agreement_of(self.target.weight, saying, answers, self.packed)

        self.eval()
        found = {name: of(adapter, False) for name, adapter in self.each()}
        for name, adapter in self.each():
            if KINDS[adapter.config.kind].looks:
                found[name] |= {f"{figure}_seen": value for figure, value in of(adapter, True).items() if figure != "n_answers"}
        self.train()
        return found

    @torch.no_grad()
    def gaps(self, clips: PixelSource, answers: Mapping[int, list[Branch]], apart: int = 0) -> dict[str, dict[str, float]]:
        """How far what every adapter writes lies from what it should, on held-out clips, by `GAPS`, on `MOST_ROWS` rows at
        most, evenly taken. `apart`: from what is wanted at the same places of the recording so many further on, a control."""
        written, wanted = dict[str, list[Tensor]](), list[Tensor]()
        self.eval()
        for number, known in sorted(answers.items()):
            index, branches = np.array([number]), [known[: self.packed]]
            with autocast(self.target.weight), autocast(self.drafter.weight):
                inputs, (own, counts) = self.inputs(clips, index, branches), self.wanted(clips, index, branches)
                wanted.append(own[counts])
                for name, adapter in self.each():
                    written.setdefault(name, []).append(self.written(adapter, inputs, branches)[counts])
        self.train()
        theirs = wanted[apart:] + wanted[:apart]
        lengths = [min(len(rows), len(others)) for rows, others in zip(wanted, theirs, strict=True)]

        def together(parts: list[Tensor]) -> np.ndarray[Any, Any]:
            whole = torch.cat([rows[:length] for rows, length in zip(parts, lengths, strict=True)]).float().cpu().numpy()
            return np.asarray(whole[np.linspace(0, len(whole) - 1, min(len(whole), MOST_ROWS)).astype(int)])

        target = together(theirs)
        return {name: {gap.__name__: gap(together(rows), target) for gap in GAPS} for name, rows in written.items()}

    def each(self) -> list[tuple[str, Adapter]]:
        """The adapters by name."""
        return [(name, adapter) for name, adapter in self.adapters.items() if isinstance(adapter, Adapter)]


class RowTraining(AdapterTraining):
    """To rows: layers of the event tower in, the target's visual rows out."""

    def inputs(self, clips: PixelSource, index: Index, branches: Branches) -> dict[int, Tensor]:
        """Pooled layers of the event tower, [B, images + tokens, C] each."""
        read = tuple(sorted({layer for _, adapter in self.each() for layer in adapter.config.layers}))
        found = pooled_layers(self.drafter.model, clips.pictures(index).to(self.drafter.weight.device), read)
        return {number: layer.to(self.target.device) for number, layer in zip(read, found, strict=True)}

    def wanted(self, clips: PixelSource, index: Index, branches: Branches) -> tuple[Tensor, Tensor]:
        """The target's own visual rows."""
        rows = self.target.rows(clips, index).unflatten(1, (-1, self.target.model.config.vision.tokens))
        made = laid_out(rows, self.drafter.model.config)
        return made, torch.ones(made.shape[:2], dtype=torch.bool, device=made.device)

    def said(self, written: Tensor, branches: Branches) -> Said:
        return self.target.reads(self.as_read(written), branches)


class TowerTraining(RowTraining):
    """To the tower: layers of the event tower at the moments of the target's frames in, what its own tower gives for them out.
    Written rows are [B, frames * tokens, C]."""

    def inputs(self, clips: PixelSource, index: Index, branches: Branches) -> dict[int, Tensor]:
        """[B * frames, tokens, C] each."""
        read = tuple(sorted({layer for _, adapter in self.each() for layer in adapter.config.layers}))
        own, target = self.drafter.model.config, self.target.model.config
        found = self.drafter.model.tower.outputs(clips.pictures(index).to(self.drafter.weight.device), read)
        placed = [by_frame(layer, own.images, target.frames, target.vision.tokens) for layer in found]
        return {number: layer.to(self.target.device) for number, layer in zip(read, placed, strict=True)}

    def written(self, adapter: Adapter, inputs: Mapping[int, Tensor], branches: Branches, seen: bool = False) -> Tensor:
        rows: Tensor = super().written(adapter, inputs, branches).unflatten(0, (len(branches), -1)).flatten(1, 2)
        return rows

    def wanted(self, clips: PixelSource, index: Index, branches: Branches) -> tuple[Tensor, Tensor]:
        """What the target's tower gives."""
        model = self.target.model
        seen = model.tower(clips.frames(index).to(self.target.device), model.config.vision_layer)
        made = seen.unflatten(0, (len(index), -1)).flatten(1, 2)
        return made, torch.ones(made.shape[:2], dtype=torch.bool, device=made.device)

    def as_read(self, written: Tensor) -> Tensor:
        rows: Tensor = self.target.model.projector(written)
        return rows


class FeatureTraining(AdapterTraining):
    """To features: what the event model computes at the tokens of the target's answers in, what the target computed there
    itself out; its head names the next tokens."""

    usual = ("squared", "cosine")

    def inputs(self, clips: PixelSource, index: Index, branches: Branches) -> dict[int, Tensor]:
        """After the final norm (1), the rows that were read (2), and what further layers gave, [B, R, D] each, at the rows
        where the target reads the same text."""
        language, taps = self.drafter.model.language, sorted({tap for _, one in self.each() for tap in one.config.taps})
        hidden, tapped, packed = self.drafter.reads(clips, index, branches, tuple(taps))
        places, _ = same_text(branches)
        found = {1: language.normed(hidden), 2: language.embed(packed.ids.to(hidden.device))}
        found |= {2 + tap: rows for tap, rows in zip(taps, tapped, strict=True)}
        at = places.to(hidden.device)[..., None]
        read = {number: rows.gather(1, at.expand(-1, -1, rows.shape[-1])) for number, rows in found.items()}
        return {number: rows.to(self.target.device) for number, rows in read.items()}

    def written(self, adapter: Adapter, inputs: Mapping[int, Tensor], branches: Branches, seen: bool = False) -> Tensor:
        """Of one whose features follow each other, as it drafts: the first token of every stretch of `ROLLED` from what the
        event model read, the others from the feature before. While it learns, stretches begin anywhere."""
        if adapter.fusion is None:
            return super().written(adapter, inputs, branches, seen)
        steps = adapter.rolled([inputs[number] for number in adapter.config.layers], ROLLED)
        begin = int(self.rng.integers(ROLLED)) if self.training else 0
        ahead = stretched(same_text(branches)[1].to(steps[0].device), begin)
        every = torch.stack([shifted(rows, by) for by, rows in enumerate(steps)])
        return every.gather(0, ahead[None, ..., None].expand(1, *every.shape[1:]))[0]

    def wanted(self, clips: PixelSource, index: Index, branches: Branches) -> tuple[Tensor, Tensor]:
        """What the target's head read at the same tokens, where an answer follows."""
        language = self.target.model.language
        hidden, _ = read_branches(language, self.target.before, self.target.rows(clips, index), branches)
        return language.normed(hidden), same_text(branches)[1].to(self.target.device)

    def said(self, written: Tensor, branches: Branches) -> Said:
        packed, (_, known) = pack(branches, 0), same_text(branches)
        packed = replace(packed, labels=packed.labels.where(known, -100))
        return said_of(self.target.model.language.head(written), packed, branches)


def stretched(counts: Tensor, begin: int) -> Tensor:
    """How many rows before each one its stretch began, int64 [B, R]: rows that count, bool [B, R], come in runs, each is cut
    after `ROLLED - begin` rows and then after every `ROLLED`."""
    order = torch.arange(counts.shape[1], device=counts.device).expand_as(counts)
    place = order - order.masked_fill(counts, -1).cummax(1).values - 1
    place = place.where(counts, 0)
    return torch.where(place < ROLLED - begin, place, (place + begin) % ROLLED)


def same_text(branches: Branches) -> tuple[Tensor, Tensor]:
    """For every row of the packed branches, int64 [B, R], the row where the event model has read the same answer so far, and
    whether there is one and a token of the answer follows, bool [B, R]: tokens of two vocabularies do not all end alike."""
    packed = pack(branches, 0)
    places, known = torch.zeros_like(packed.ids), torch.zeros_like(packed.ids, dtype=torch.bool)
    for row, several in enumerate(branches):
        ours = theirs = 0
        for branch in several:
            own = branch.own or branch
            begin, length = ours + len(branch.question) - 1, len(branch.answer)
            read = torch.arange(length) if branch.own is None or branch.read is None else torch.tensor(branch.read)
            places[row, begin : begin + length] = theirs + len(own.question) - 1 + read.clamp_min(0)
            known[row, begin : begin + length] = read >= 0
            ours, theirs = begin + length, theirs + len(own.question) + len(own.answer) - 1
    return places, known


def paired(theirs: Branch, own: Branch) -> Branch:
    """The target's answer, and the event model's own to the same question, which it reads in its place; both as long as the
    shorter one."""
    length = min(len(theirs.answer), len(own.answer))
    assert theirs.teacher_ids is not None and theirs.teacher_logs is not None
    kept = theirs.answer[:length], theirs.teacher_ids[:length], theirs.teacher_logs[:length]
    return Branch(theirs.question, *kept, own=Branch(own.question, own.answer[:length]))


class FreeRunning(FeatureTraining):
    """To features, of two texts that the models made on their own, place by place, as earlier work does it: answers are
    `paired`. Once the texts part, what is read has nothing to do with what is wanted; this class is here to measure that."""

    def pairs(self, clips: PixelSource, answers: Mapping[int, list[Branch]]) -> dict[int, list[Branch]]:
        """The target's answers about clips with the event model's to the same questions."""
        drafter, found = self.drafter.model.eval(), dict[int, list[Branch]]()
        with torch.no_grad():
            for number, known in answers.items():
                visual = drafter.encode(clips.pictures(np.array([number])).to(self.drafter.weight.device))[0]
                texts = greedy_answers(drafter.language, self.drafter.before, visual, [branch.question for branch in known])
                found[number] = [paired(theirs, own) for theirs, own in zip(known, texts, strict=True)]
        drafter.train()
        return found


def alike_share(*texts: Mapping[int, list[Branch]]) -> float:
    """Of all places of texts that were paired, the share with the same token in both: what a model that repeats the event
    model's token gets right."""
    every = [branch for answers in texts for known in answers.values() for branch in known]
    same = [a == b for each in every if each.own for a, b in zip(each.answer, each.own.answer, strict=True)]
    return sum(same) / max(1, len(same))


def aligned(name: str, written: Tensor, wanted: Tensor, counts: Tensor, alike: Collection[str]) -> dict[str, Tensor]:
    """The LOSSES that `alike` names, of what was written beside what is wanted, [B, T, D] each; the rows `counts`, bool [B, T],
    are compared."""
    rows, wanted = written.float(), wanted.float()
    own = wanted[counts]
    spread, near = own.var(), F.cosine_similarity(rows[counts], own, dim=-1).mean()
    losses: dict[str, Callable[[], Tensor]] = {
        "squared": lambda: F.mse_loss(rows[counts], own) / spread,
        "cosine": lambda: 1 - near,
        "contrast": lambda: contrast(rows, wanted, counts) if counts.all() else contrast_rows(rows[counts], own),
        "information": lambda: -information(rows, wanted, counts),
    }
    apart = sum((LOSSES[loss] * made() for loss, made in losses.items() if loss in alike), torch.zeros((), device=rows.device))
    return {name: apart, f"_{name}_cosine": near.detach()}


def foreseen_error(foreseen: Tensor, wanted: Tensor) -> Tensor:
    """Of what each row predicts of the next one, [B, T, D] each."""
    return F.mse_loss(foreseen[:, :-1].float(), wanted[:, 1:].float()) / wanted.float().var()


def contrast_rows(rows: Tensor, own: Tensor) -> Tensor:
    """InfoNCE over rows of texts, [N, D] each: a place of a text means something else in every recording, so each is to be
    nearer to its own than to those of all other places, of `MOST_CONTRASTED` rows that are drawn."""
    drawn = torch.randperm(len(rows), device=rows.device)[:MOST_CONTRASTED]
    near = F.normalize(rows[drawn], dim=-1) @ F.normalize(own[drawn], dim=-1).T / TEMPERATURE
    return F.cross_entropy(near, torch.arange(len(drawn), device=rows.device))


def information(rows: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """Mutual information in nats a channel between what was written and what is wanted, [B, T, D] each, where it counts, bool
    [B, T]; of Gaussian channels that tell nothing of each other: -log(1 - r^2) / 2 of each channel's correlation r. Where every
    row counts, what all recordings have in common at a place is none. It knows neither sign nor scale. The aim is that of VISTA
    (2505.10917), the estimate is not."""
    whole = bool(counts.all()) and len(rows) > 1
    one, two = (part - part.mean(0) if whole else part[counts] - part[counts].mean(0) for part in (rows, wanted))
    one, two = (part.flatten(0, -2) / part.flatten(0, -2).std(0, correction=0).clamp_min(1e-6) for part in (one, two))
    return -0.5 * torch.log1p(-(one * two).mean(0).square().clamp_max(0.9999)).mean()


def contrast(rows: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """InfoNCE over the recordings of a batch: each row of [B, T, D] that counts, bool [B, T], is to be nearer to its own of
    `wanted` than to those of other recordings at the same place."""
    near = torch.einsum("btd,ctd->tbc", F.normalize(rows, dim=-1), F.normalize(wanted, dim=-1)) / TEMPERATURE
    near = near.masked_fill(~counts.T[:, None], -torch.inf)[counts.T]
    own = torch.arange(len(rows), device=rows.device).expand(rows.shape[1], -1)[counts.T]
    return F.cross_entropy(near, own)
