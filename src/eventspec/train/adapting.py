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
from eventspec.align.adapters import Adapter, laid_out, pooled_layers
from eventspec.train.answers import greedy_answers
from eventspec.train.data import Branch, Index, PixelSource, drawn, pack
from eventspec.train.frozen import Branches, FrozenDrafter, FrozenTarget, Said, agreement_of, said_of
from eventspec.train.models import autocast, read_branches

TEMPERATURE = 0.1
"""Of InfoNCE, over cosines."""
GAPS = (gaps.cosine, gaps.l2, gaps.mmd, gaps.sliced_wasserstein, gaps.linear_cka)
MOST_ROWS = 3000
LOSSES = {"squared": 1.0, "cosine": 0.5, "contrast": 0.1}
"""What each part weighs in phase alignment."""


class AdapterTraining(nn.Module):
    """Adapters with one output, and their losses on a batch of clips: they share the event model's pass. `alike`: the LOSSES
    of phase alignment, the `usual` ones for none."""

    usual = tuple(LOSSES)

    def __init__(
        self,
        target: FrozenTarget,
        drafter: FrozenDrafter,
        adapters: Mapping[str, Adapter],
        clips: PixelSource,
        answers: Mapping[int, list[Branch]],
        packed: int,
        alike: Collection[str] = (),
    ) -> None:
        super().__init__()
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

    def losses(self, phase: str, index: Index, progress: float) -> dict[str, Tensor]:
        """Of every adapter, under its name; what begins with `_` is reported only."""
        parts = dict[str, Tensor]()
        with autocast(self.target.weight), autocast(self.drafter.weight):
            branches = [drawn(self.answers[int(i)], self.packed, self.rng) for i in index]
            with torch.no_grad():
                inputs = self.inputs(self.clips, index, branches)
                wanted = self.wanted(self.clips, index, branches) if phase == "alignment" else None
            for name, adapter in self.each():
                own = own_inputs(adapter, inputs)
                if wanted is not None:
                    parts |= aligned(name, adapter, own, *wanted, alike=self.alike)
                    continue
                said = self.said(adapter(own), branches)
                parts |= {name: said.teacher_loss(), f"_{name}_accuracy": said.accuracy()}
                if phase == "end-to-end":
                    share = said.accepted_share()
                    parts |= {f"{name} missed": 2 * (1 - share), f"_{name}_accepted": share.detach()}
        return parts

    def agreement(self, clips: PixelSource, answers: Mapping[int, list[Branch]]) -> dict[str, dict[str, float]]:
        """As `agreement_of`, of every adapter on held-out clips."""

        def of(adapter: Adapter) -> dict[str, float]:
            def saying(index: Index, branches: Branches) -> Said:
                with autocast(self.drafter.weight):
                    inputs = self.inputs(clips, index, branches)
                return self.said(adapter(own_inputs(adapter, inputs)), branches)

            return agreement_of(self.target.weight, saying, answers, self.packed)

        self.eval()
        found = {name: of(adapter) for name, adapter in self.each()}
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
                    written.setdefault(name, []).append(adapter(own_inputs(adapter, inputs))[counts])
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


def own_inputs(adapter: Adapter, inputs: Mapping[int, Tensor]) -> list[Tensor]:
    """Those of all inputs that an adapter reads."""
    return [inputs[number] for number in adapter.config.layers]


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
        return self.target.reads(written, branches)


class FeatureTraining(AdapterTraining):
    """To features: what the event model computes at the tokens of the target's answers in, what the target computed there
    itself out; its head names the next tokens."""

    usual = ("squared", "cosine")  # a place of a text means something else in every recording: InfoNCE has nothing to compare

    def inputs(self, clips: PixelSource, index: Index, branches: Branches) -> dict[int, Tensor]:
        """After the final norm (1), and the rows that were read (2), [B, R, D] each, at the rows where the target reads the
        same text."""
        language = self.drafter.model.language
        hidden, packed = self.drafter.reads(clips, index, branches)
        places, _ = same_text(branches)
        found = language.normed(hidden), language.embed(packed.ids.to(hidden.device))
        at = places.to(hidden.device)[..., None]
        read = [rows.gather(1, at.expand(-1, -1, rows.shape[-1])) for rows in found]
        return {number: rows.to(self.target.device) for number, rows in enumerate(read, 1)}

    def wanted(self, clips: PixelSource, index: Index, branches: Branches) -> tuple[Tensor, Tensor]:
        """What the target's head read at the same tokens, where an answer follows."""
        language = self.target.model.language
        hidden, _ = read_branches(language, self.target.before, self.target.rows(clips, index), branches)
        return language.normed(hidden), same_text(branches)[1].to(self.target.device)

    def said(self, written: Tensor, branches: Branches) -> Said:
        packed, (_, known) = pack(branches, 0), same_text(branches)
        packed = replace(packed, labels=packed.labels.where(known, -100))
        return said_of(self.target.model.language.head(written), packed, branches)


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


def aligned(
    name: str,
    adapter: Adapter,
    inputs: list[Tensor],
    wanted: Tensor,
    counts: Tensor,
    alike: Collection[str],
) -> dict[str, Tensor]:
    """The LOSSES that `alike` names; where an adapter predicts the next row, also its error. wanted [B, T, D], of which the
    rows `counts`, bool [B, T], are compared."""
    hidden = adapter.hidden(inputs)
    rows, wanted = adapter.project(hidden).float(), wanted.float()
    own = wanted[counts]
    spread, near = own.var(), F.cosine_similarity(rows[counts], own, dim=-1).mean()
    losses: dict[str, Callable[[], Tensor]] = {
        "squared": lambda: F.mse_loss(rows[counts], own) / spread,
        "cosine": lambda: 1 - near,
        "contrast": lambda: contrast(rows, wanted, counts),
    }
    apart = sum((LOSSES[loss] * made() for loss, made in losses.items() if loss in alike), torch.zeros((), device=rows.device))
    parts = {name: apart, f"_{name}_cosine": near.detach()}
    foreseen = adapter.predict_next(hidden)
    if foreseen is not None:
        parts[f"{name} next"] = 0.5 * F.mse_loss(foreseen[:, :-1].float(), wanted[:, 1:]) / spread
    return parts


def contrast(rows: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """InfoNCE over the recordings of a batch: each row of [B, T, D] that counts, bool [B, T], is to be nearer to its own of
    `wanted` than to those of other recordings at the same place."""
    near = torch.einsum("btd,ctd->tbc", F.normalize(rows, dim=-1), F.normalize(wanted, dim=-1)) / TEMPERATURE
    near = near.masked_fill(~counts.T[:, None], -torch.inf)[counts.T]
    own = torch.arange(len(rows), device=rows.device).expand(rows.shape[1], -1)[counts.T]
    return F.cross_entropy(near, own)
