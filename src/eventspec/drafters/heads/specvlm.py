"""SpecVLM's head (2509.11815, section 3.2): EagleVLM after an elastic compressor of the visual rows, which looks at the
question; and HiViS (2509.23928), which is the same with no visual row left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.compress import Elastic
from eventspec.compress.elastic import CONCAT, FRUGAL, SELECT, WEIGHTED, Mode, Option, picture_of
from eventspec.core import BadCheckpoint
from eventspec.drafters.heads import eagle
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead, eagle_config
from eventspec.drafters.heads.head import Head, HeadFolder, Recipe, TargetSizes
from eventspec.drafters.heads.unrolled import steps
from eventspec.drafters.heads.views import HeadInputs, PromptView, Rollout, TargetBatch, View, hidden_where
from eventspec.models.checkpoint import without_memory
from eventspec.nn.llama import LanguageEnds

COST = 0.05
"""Of `frugal`: what a branch that reads every row would have to gain in the logarithm of tau to be worth it. A head reads them
once, and drafts for it through an answer of some twenty rounds."""


class CompressedView(PromptView):
    """The visual pairs through a compressor, which looks at the question's features."""

    def __init__(self, compressor: Elastic) -> None:
        super().__init__()
        self.compressor = compressor
        # No visual row is left in HiViS.
        self.sees_visual = compressor.mode != "concat" or [option.kind for option in compressor.options] != ["none"]

    def force(self, branch: str) -> None:
        self.compressor.force(branch)

    def pairs(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        begin, end = visual
        columns = inputs.embeds, inputs.tapped, inputs.positions
        seen = (inputs.embeds[:0], inputs.tapped[:0], inputs.positions[:0])
        number = None
        if self.sees_visual:
            rows, question = torch.cat((inputs.embeds[begin:end], inputs.tapped[begin:end]), 1), inputs.tapped[end:]
            number = self.compressor.chosen(rows, question)
            kept, places = self.compressor(rows, question) if number is None else self.compressor.branch(rows, number)
            seen = (*kept.chunk(2, 1), inputs.positions[begin:end][places])
        parts = [torch.cat((own[:begin], of, own[end:])) for own, of in zip(columns, seen, strict=True)]
        return HeadInputs(*parts, branch=None if number is None else self.compressor.options[number].kind)


def specvlm_head(config: EagleConfig, compressor: Elastic) -> EagleHead:
    """EAGLE's head after a compressor of its width."""
    return EagleHead(config, CompressedView(compressor), "specvlm")


def compressor_of(head: Head) -> Elastic:
    """The compressor of a head that has one."""
    assert isinstance(head, EagleHead) and isinstance(head.view, CompressedView)
    return head.view.compressor


def gated(head: Head) -> bool:
    """Whether a head has a compressor whose gate is fitted after it has learned (`train.gating`)."""
    return isinstance(head, EagleHead) and isinstance(head.view, CompressedView) and head.view.compressor.picture


def recipe_of(mode: Mode, options: tuple[Option, ...], begins_with: str | None = "specvlm", cost: float = 0.0) -> Recipe:
    """A head after a compressor of that kind; `cost`: as `Recipe.gate_cost`. Where the rows of a frame are not known, branches
    go over successive rows."""
    frames = any(option.frames > 1 for option in options)

    def make(sizes: TargetSizes) -> EagleHead:
        known, frame = options, sizes.frame
        if not frame:
            known = tuple(option for option in (one.in_a_row() for one in options) if option is not None)
        grid = frames or any(option.grid for option in known)
        compressor = Elastic(sizes.language.hidden_size, mode, known, frame if grid else 0)
        return specvlm_head(EagleConfig(sizes.layer), compressor)

    return Recipe(make, unroll=3, begins_with=begins_with, own_targets_only=frames, gate_cost=cost)


def rollout(head: EagleHead, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
    view = every_branch(batch, head.taps, compressor_of(head))
    rope = target.cos[view.positions], target.sin[view.positions]
    return Rollout(steps(head, view, rope, count), view.loss_mask)


def _read(folder: HeadFolder) -> Callable[[], EagleHead]:
    config = eagle_config(folder)
    try:
        with without_memory():
            compressor = Elastic.from_json(config.language.hidden_size, folder.own["compressor"])
        return partial(specvlm_head, config, compressor)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{folder.path / 'config.json'}: eventspec.compressor: {error}") from None


FAMILY = replace(
    eagle.FAMILY,
    name="specvlm",
    title="SpecVLM",
    recipes={
        "specvlm": recipe_of("select", SELECT, None),
        "frugal": recipe_of("select", FRUGAL, cost=COST),
        "weighted": recipe_of("weighted", WEIGHTED),
        "concat": recipe_of("concat", CONCAT),
        "hivis": recipe_of("concat", (Option("none"),), "eagle"),
    },
    rollout=rollout,
    read=_read,
    recognises=lambda folder: "lm_head.weight" not in folder.checkpoint.at and "compressor" in folder.own,
    own_fields=("compressor",),
    names={"view.compressor.branches.": "compressor.ways.", "view.compressor.": "compressor."},
    fields=lambda head: (eagle.FAMILY.fields(head)[0], {"compressor": compressor_of(head).as_json()}),
    details=lambda head: {"mode": compressor_of(head).mode} if head.view.sees_visual else {"head": "HiViS"},
)


def every_branch(batch: TargetBatch, taps: tuple[int, ...], elastic: Elastic) -> View:
    """The visual pairs as every branch of a compressor gives them.

    Questions that choose differently come after the same recording: all branches are laid out in the prefix, hidden from each
    other, and a question's choice is a bias on its attention to each. At inference only the chosen one is there.
    """
    all_pairs, first, prefix = batch.view(taps), batch.visual, batch.prefix
    embeds, tapped = all_pairs.embeds, all_pairs.tapped
    question = question_of(batch)
    loss_mask, mask = batch.loss_mask, all_pairs.mask[..., prefix:]
    rows = torch.cat((embeds[:, first:prefix], tapped[:, first:prefix]), -1)
    branches = elastic.branches_of(rows)
    biases = torch.zeros(*question.shape, len(branches), device=tapped.device)
    if elastic.mode != "concat":
        means = question_means(batch, tapped)
        shares = elastic.shares(means, picture_of(rows)[:, None].expand(-1, means.shape[1], -1, -1))
    if elastic.mode == "select":
        chosen = shares.clamp_min(1e-9).log()
        biases = chosen.gather(1, question.clamp_min(0)[..., None].expand(-1, -1, len(branches)))
    if elastic.mode == "weighted":
        # Added rows depend on the question, so a recording has room for one: the first question's.
        weights = shares[:, 0].to(tapped.dtype)
        mixed = (weights[:, :, None, None] * torch.stack([rows for rows, _ in branches], 1)).sum(1)
        branches, biases, loss_mask = [(mixed, branches[-1][1])], biases[..., :1], loss_mask & (question == 0)
    counts = torch.tensor([first, *(places.shape[-1] for _, places in branches)])
    group = torch.repeat_interleave(torch.arange(len(counts)), counts).to(tapped.device)
    places = first + torch.cat([places.expand(len(tapped), -1) for _, places in branches], 1).to(tapped.device)
    kept_embeds, kept_tapped = torch.cat([rows for rows, _ in branches], 1).chunk(2, -1)
    # The text before is seen by all; a branch's rows see it and themselves.
    order = torch.arange(len(group), device=tapped.device)
    among = ((group[:, None] == group) | (group == 0)) & (order[:, None] >= order)
    top = hidden_where(~torch.cat((among, among.new_zeros(len(group), question.shape[1])), 1))
    bias = torch.cat((torch.zeros_like(biases[..., :1]), biases), -1)[..., group]
    return View(
        torch.cat((embeds[:, :first], kept_embeds, embeds[:, prefix:]), 1),
        torch.cat((tapped[:, :first], kept_tapped, tapped[:, prefix:]), 1),
        torch.cat((batch.positions[:, :first], batch.positions.gather(1, places), batch.positions[:, prefix:]), 1),
        torch.cat((top.expand(len(tapped), 1, -1, -1), torch.cat((bias[:, None], mask), -1)), 2),
        len(group),
        loss_mask,
    )


def question_of(batch: TargetBatch) -> Tensor:
    """Which of its recording's questions a branch row belongs to, int64 [B, R]."""
    return (batch.offsets == 0).cumsum(1) - 1


def question_means(batch: TargetBatch, tapped: Tensor) -> Tensor:
    """The mean feature [B, Q, F] of every question's own rows, of tapped outputs [B, P + R, F]."""
    question, own = question_of(batch), tapped[:, batch.prefix :]
    asked = (batch.labels < 0).to(own.dtype)
    member = F.one_hot(question.clamp_min(0), int(question.max()) + 1).to(own.dtype) * asked[..., None]
    means: Tensor = member.transpose(1, 2) @ own / member.sum(1)[..., None].clamp_min(1)
    return means
