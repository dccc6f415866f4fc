"""How the gate of an elastic compressor is fitted (SpecVLM, 2509.11815, section 3.2): to what each branch gave.

Its head has learned with every branch alike. Then, of questions about recordings, every branch is forced in turn, and how many
drafts were right is counted: a table of the logarithm of tau by question and branch. The gate, which sees question and picture,
learns to choose what gives most, less what the branch costs, and a term of balance, as for mixtures of experts (Switch
Transformer, 2101.03961, section 2.2), keeps it from taking one branch always. Several gates are begun from other weights; the
one that chooses best for recordings that none of the gates learned from stays, and is judged by others again. The head itself
has learned from all of them: whether its choices pay is what `bench run branches` measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.compress import Elastic
from eventspec.compress.elastic import Gate, picture_of
from eventspec.drafters.heads import Head, Recipe
from eventspec.drafters.heads.specvlm import compressor_of, gated, question_means, question_of
from eventspec.drafters.heads.views import TargetBatch
from eventspec.nn.llama import LanguageEnds
from eventspec.train.data import Index
from eventspec.train.distillation import HeadTraining, ranked

BATCHES = 48
"""Of recordings, that branches are tried on."""
DEPTH = 8
"""Of the chains whose right drafts are counted, as in `HeadTraining.acceptance`."""
BALANCE = 0.1
"""Weight of the balance, beside gains in standard deviations of what branches differ by at a question."""
SEEDS, STEPS, RATE, DECAY = 4, 300, 3e-3, 0.05
PARTS = 4
"""One recording of so many is kept to choose a gate by, another one to judge it."""


@dataclass(frozen=True)
class Outcomes:
    """Of N questions: mean features float [N, D], pictures float [N, 2, D] as `picture_of` gives them, the tau of every branch
    float [N, K], what the branches cost float [K], and which recording each is about, int64 [N]."""

    questions: Tensor
    pictures: Tensor
    tau: Tensor
    costs: Tensor
    recordings: Tensor

    def part(self, kept: Tensor) -> Outcomes:
        """Of the questions `kept`, bool [N]."""
        own = self.questions[kept], self.pictures[kept], self.tau[kept]
        return Outcomes(*own, self.costs, self.recordings[kept])


def fit_gates(training: HeadTraining, recipes: Mapping[str, Recipe], batches: Iterable[Index]) -> dict[str, dict[str, Any]]:
    """Fit the gates of the heads that have one, on the recordings of `batches`; by head, what `fit` found. The same batches are
    tried by all of them."""
    heads = {name: head for name, head in training.own.items() if gated(head)}
    if not heads:
        return {}
    training.eval()
    tables: dict[str, list[Outcomes]] = {name: [] for name in heads}
    with torch.no_grad():
        for numbers in batches:
            for batch in training.seen(numbers):
                for name, head in heads.items():
                    tables[name].append(tried(head, training.source.target, batch))
    return {name: fit(compressor_of(head), concatenated(tables[name]), recipes[name].gate_cost) for name, head in heads.items()}


def tried(head: Head, target: LanguageEnds, batch: TargetBatch) -> Outcomes:
    """What every branch of a head's compressor gives the questions of a batch, whose recordings are numbered. Questions of
    which nothing is learned are left out."""
    elastic = compressor_of(head)
    first, prefix = batch.visual, batch.prefix
    all_pairs, question = batch.view(head.taps), question_of(batch).clamp_min(0)
    rows = torch.cat((all_pairs.embeds[:, first:prefix], all_pairs.tapped[:, first:prefix]), -1)
    means = question_means(batch, all_pairs.tapped)
    kept = [len(places) if places.dim() == 1 else places.shape[-1] for _, places in elastic.branches_of(rows)]
    costs = [option.cost(count / max(1, prefix - first)) for option, count in zip(elastic.options, kept, strict=True)]
    found = []
    for number in range(len(elastic.options)):
        elastic.forced = number
        ranks = ranked(head, target, batch, 1, DEPTH)
        begun, gained = (ranks[0] >= 0).float(), (ranks == 0).sum(0).float()
        counts = [torch.zeros(means.shape[:2], device=means.device).scatter_add_(1, question, part) for part in (begun, gained)]
        found.append(torch.stack(counts))
    elastic.forced = None
    counted, gains = torch.stack(found, -1)
    there = counted[..., 0] > 0
    about = torch.arange(len(means), device=means.device)[:, None].expand(there.shape)
    pictures = picture_of(rows)[:, None].expand(-1, means.shape[1], -1, -1)
    tau = 1 + gains[there] / counted[there]
    questions, shown = means[there].float().cpu(), pictures[there].float().cpu()
    return Outcomes(questions, shown, tau.cpu(), torch.tensor(costs), about[there].cpu())


def concatenated(tables: list[Outcomes]) -> Outcomes:
    """One table of several, whose branches cost the same. A recording may come in several of them, or with a question a row:
    it is known by its picture, as far as that does not depend on what shared its batch."""
    found = {name: torch.cat([getattr(table, name) for table in tables]) for name in ("questions", "pictures", "tau")}
    known, numbers = found["pictures"][:0], list[int]()
    for picture in found["pictures"]:
        near = ((known - picture).abs().amax((-1, -2)) < 1e-3 * picture.abs().amax()).nonzero().flatten().tolist()
        numbers.append(near[0] if near else len(known))
        known = known if near else torch.cat((known, picture[None]))
    return Outcomes(costs=tables[0].costs, recordings=torch.tensor(numbers), **found)


@torch.enable_grad()
def fit(elastic: Elastic, outcomes: Outcomes, cost: float, balance: float = BALANCE) -> dict[str, Any]:
    """Fit a gate, and give it to the compressor. Found, of recordings that no gate learned from and none was chosen by: `tau`
    by its own choices (`gate`), by every branch alone and by the best one of each question (`best`); `chosen`: the share of
    every branch, and `seeds`: the same of each gate that was fitted; `n` questions about so many `recordings`. Where fewer
    than PARTS recordings were tried, they are the same."""
    place = outcomes.recordings % PARTS
    parts = [place < PARTS - 2, place == PARTS - 2, place == PARTS - 1]
    learned, choosing, judged = (outcomes.part(kept) if kept.any() else outcomes for kept in parts)
    gates = [_fitted(elastic, learned, cost, balance, seed) for seed in range(SEEDS)]
    worth = [float(_worth(gate, choosing, cost, balance)) for gate in gates]
    elastic.gate = gates[int(np.argmax(worth))].to(next(elastic.parameters()).device)
    names = [option.kind for option in elastic.options]
    picked = [gate(judged.questions, judged.pictures).argmax(-1) for gate in gates]
    own = picked[int(np.argmax(worth))]
    shares = [torch.bincount(one, minlength=len(names)) / max(1, len(one)) for one in picked]
    tau = {
        "gate": float(judged.tau.gather(1, own[:, None]).mean()),
        **dict(zip(names, judged.tau.mean(0).tolist(), strict=True)),
        "best": float(judged.tau.amax(-1).mean()),
    }
    chosen = [dict(zip(names, (round(share, 4) for share in one.tolist()), strict=True)) for one in shares]
    taus = {name: round(value, 4) for name, value in tau.items()}
    about = {"n": len(own), "recordings": len(torch.unique(judged.recordings))}
    return {**about, "tau": taus, "chosen": chosen[int(np.argmax(worth))], "seeds": chosen}


def _gains(outcomes: Outcomes, cost: float) -> Tensor:
    """What every branch is worth beyond the mean of all at a question, [N, K], in standard deviations."""
    worth = outcomes.tau.log() - cost * outcomes.costs
    apart = worth - worth.mean(-1, keepdim=True)
    return apart / apart.std().clamp_min(1e-6)


def _fitted(elastic: Elastic, outcomes: Outcomes, cost: float, balance: float, seed: int) -> Gate:
    torch.manual_seed(seed)
    gate, gains = Gate(outcomes.questions.shape[-1], len(elastic.options)), _gains(outcomes, cost)
    optimiser = torch.optim.AdamW(gate.parameters(), RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        shares = gate(outcomes.questions, outcomes.pictures).softmax(-1)
        taken = torch.nn.functional.one_hot(shares.argmax(-1), shares.shape[-1]).float().mean(0)
        loss = -(shares * gains).sum(-1).mean() + balance * len(taken) * (taken * shares.mean(0)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return gate.requires_grad_(True).eval()


@torch.no_grad()
def _worth(gate: Gate, outcomes: Outcomes, cost: float, balance: float) -> Tensor:
    """What a gate's choices gain, less the balance of what they are."""
    picked = gate(outcomes.questions, outcomes.pictures).argmax(-1)
    taken = torch.bincount(picked, minlength=outcomes.tau.shape[-1]) / max(1, len(picked))
    return _gains(outcomes, cost).gather(1, picked[:, None]).mean() - balance * len(taken) * (taken**2).sum()
