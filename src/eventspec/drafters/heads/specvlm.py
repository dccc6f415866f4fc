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
from eventspec.compress.elastic import CONCAT, FRUGAL, SELECT, WEIGHTED, Mode, Option
from eventspec.core import BadCheckpoint
from eventspec.drafters.heads import eagle
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead, eagle_config
from eventspec.drafters.heads.head import HeadFolder, Recipe, TargetSizes
from eventspec.drafters.heads.unrolled import steps
from eventspec.drafters.heads.views import HeadInputs, PromptView, Rollout, TargetBatch, View, hidden_where
from eventspec.models.checkpoint import without_memory
from eventspec.nn.llama import LanguageEnds

COST = 0.05
"""Weight of what the branches cost; without it the gate takes the dearest one for every question."""


class CompressedView(PromptView):
    """The visual pairs through a compressor, which looks at the question's features."""

    def __init__(self, compressor: Elastic) -> None:
        super().__init__()
        self.compressor = compressor
        # No visual row is left in HiViS.
        self.sees_visual = compressor.mode != "concat" or [option.kind for option in compressor.options] != ["none"]

    def pairs(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        begin, end = visual
        columns = inputs.embeds, inputs.tapped, inputs.positions
        seen = (inputs.embeds[:0], inputs.tapped[:0], inputs.positions[:0])
        if self.sees_visual:
            rows = torch.cat((inputs.embeds[begin:end], inputs.tapped[begin:end]), 1)
            kept, places = self.compressor(rows, inputs.tapped[end:])
            seen = (*kept.chunk(2, 1), inputs.positions[begin:end][places])
        parts = [torch.cat((own[:begin], of, own[end:])) for own, of in zip(columns, seen, strict=True)]
        return HeadInputs(*parts)


def specvlm_head(config: EagleConfig, compressor: Elastic) -> EagleHead:
    """EAGLE's head after a compressor of its width."""
    return EagleHead(config, CompressedView(compressor), "specvlm")


def compressor_of(head: EagleHead) -> Elastic:
    """The compressor of a head that has one."""
    assert isinstance(head.view, CompressedView)
    return head.view.compressor


def recipe_of(mode: Mode, options: tuple[Option, ...], begins_with: str | None = "specvlm", cost: float = 0.0) -> Recipe:
    """A head after a compressor of that kind; `cost`: weight of what its branches cost."""
    frames = any(option.frames > 1 for option in options)

    def make(sizes: TargetSizes) -> EagleHead:
        compressor = Elastic(sizes.language.hidden_size, mode, options, sizes.frame if frames else 0)
        return specvlm_head(EagleConfig(sizes.layer), compressor)

    fresh = ("view.compressor.gate.",) if cost else ()  # a gate that has chosen is too sure for costs to change it
    extra = {"cost": cost} if cost else {}
    return Recipe(make, unroll=3, extra=extra, begins_with=begins_with, fresh=fresh, own_targets_only=frames)


def rollout(head: EagleHead, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
    view, cost = every_branch(batch, head.taps, compressor_of(head))
    rope = target.cos[view.positions], target.sin[view.positions]
    return Rollout(steps(head, view, rope, count), view.loss_mask, {} if cost is None else {"cost": lambda: cost})


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


def every_branch(batch: TargetBatch, taps: tuple[int, ...], elastic: Elastic) -> tuple[View, Tensor | None]:
    """The visual pairs as every branch of a compressor gives them, and what the branches that were drawn cost a question
    (`compress.Option.cost`), scalar, where one is drawn.

    Questions that choose differently come after the same recording: all branches are laid out in the prefix, hidden from each
    other, and a question's choice is a bias on its attention to each. At inference only the chosen one is there.
    """
    all_pairs, first, prefix = batch.view(taps), batch.visual, batch.prefix
    embeds, tapped = all_pairs.embeds, all_pairs.tapped
    question = (batch.offsets == 0).cumsum(1) - 1
    loss_mask, mask = batch.loss_mask, all_pairs.mask[..., prefix:]
    branches = elastic.branches_of(torch.cat((embeds[:, first:prefix], tapped[:, first:prefix]), -1))
    biases, cost = torch.zeros(*question.shape, len(branches), device=tapped.device), None
    if elastic.mode == "select":
        shares = _shares(elastic, tapped[:, prefix:], batch, question)
        biases = shares.clamp_min(1e-9).log()
        # A recording is read once for a question, however long the answer: one row of a question stands for it.
        starts = loss_mask & ~loss_mask.roll(1, 1)
        kept = [len(places) / max(1, prefix - first) for _, places in branches]
        each = [option.cost(share) for option, share in zip(elastic.options, kept, strict=True)]
        costs = (shares * shares.new_tensor(each)).sum(-1)[starts]
        cost = costs.mean() if len(costs) else None
    if elastic.mode == "weighted":
        # Added rows depend on the question, so a recording has room for one: the first question's.
        shares = _shares(elastic, tapped[:, prefix:], batch, question)[:, 0].to(tapped.dtype)
        mixed = (shares[:, :, None, None] * torch.stack([rows for rows, _ in branches], 1)).sum(1)
        branches, biases, loss_mask = [(mixed, branches[-1][1])], biases[..., :1], loss_mask & (question == 0)
    counts = torch.tensor([first, *(len(places) for _, places in branches)])
    group = torch.repeat_interleave(torch.arange(len(counts)), counts).to(tapped.device)
    places = torch.cat([first + places for _, places in branches]).to(tapped.device)
    kept_embeds, kept_tapped = torch.cat([rows for rows, _ in branches], 1).chunk(2, -1)
    # The text before is seen by all; a branch's rows see it and themselves.
    order = torch.arange(len(group), device=tapped.device)
    among = ((group[:, None] == group) | (group == 0)) & (order[:, None] >= order)
    top = hidden_where(~torch.cat((among, among.new_zeros(len(group), question.shape[1])), 1))
    bias = torch.cat((torch.zeros_like(biases[..., :1]), biases), -1)[..., group]
    view = View(
        torch.cat((embeds[:, :first], kept_embeds, embeds[:, prefix:]), 1),
        torch.cat((tapped[:, :first], kept_tapped, tapped[:, prefix:]), 1),
        torch.cat((batch.positions[:, :first], batch.positions[:, places], batch.positions[:, prefix:]), 1),
        torch.cat((top.expand(len(tapped), 1, -1, -1), torch.cat((bias[:, None], mask), -1)), 2),
        len(group),
        loss_mask,
    )
    return view, cost


def _shares(elastic: Elastic, tapped: Tensor, batch: TargetBatch, question: Tensor) -> Tensor:
    """The gate's shares for every branch row [B, R, branches]: its question's, by the mean feature of the question's own
    rows."""
    asked = (batch.labels < 0).to(tapped.dtype)
    member = F.one_hot(question.clamp_min(0), int(question.max()) + 1).to(tapped.dtype) * asked[..., None]
    mean = member.transpose(1, 2) @ tapped / member.sum(1)[..., None].clamp_min(1)
    shares = elastic.shares(mean[:, :, None])
    return shares.gather(1, question.clamp_min(0)[..., None].expand(-1, -1, shares.shape[-1]))
