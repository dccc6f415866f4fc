"""Training of heads: the unrolled pass against its definition, what is learned from, and a whole run in small."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import eventspec as es
from eventspec.compress.elastic import FRUGAL, SELECT, WEIGHTED, Elastic, Option
from eventspec.drafters import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, load_head
from eventspec.drafters.heads import RECIPES, TargetSizes
from eventspec.drafters.heads.specvlm import compressor_of, every_branch, specvlm_head
from eventspec.drafters.heads.unrolled import steps
from eventspec.drafters.heads.views import TargetBatch, View
from eventspec.models.embedded import SIZES
from eventspec.models.session import LanguageTarget
from eventspec.models.video_llava import VideoLlava
from eventspec.nn import LlamaConfig
from eventspec.nn.llama import rope_tables
from eventspec.pairs.pair_file import DATA
from eventspec.train.data import Branch, pack
from eventspec.train.distillation import HeadTraining, acceptance_rates, count_rounds, head_losses, ranked
from eventspec.train.gating import Outcomes, concatenated, fit, tried
from eventspec.train.heads import new_heads

ONE = LlamaConfig(40, 16, 24, 1, 2, 1, max_position_embeddings=64)


def random(module: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=generator)
    return module.double()


def heads() -> dict[str, Any]:
    return {
        "eagle": random(EagleHead(EagleConfig(ONE))),
        "eagle1": random(EagleHead(EagleConfig(ONE, input_norm=False))),
        "eagle3": random(Eagle3Head(Eagle3Config(ONE, (1, 2, 3), 20))),
    }


def slow(head: Any, embeds: torch.Tensor, hidden: torch.Tensor, row: int, count: int) -> list[torch.Tensor]:
    """What a drafter does that stands behind pair `row` and follows the text: pairs one by one, its own features behind."""
    found = []
    rows = hidden[: row + 1]
    for _ in range(count):
        length = len(rows)
        normed, residual = head.fuse_inputs(embeds[:length][None], rows[None])
        cos, sin = (table.double()[None] for table in rope_tables(ONE, length))
        queries, keys, values = (part.transpose(1, 2) for part in head.layer.project(normed, cos, sin))
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        out = head.layer.finish(residual, attended.transpose(1, 2).flatten(-2))[0]
        found.append(out[-1])
        rows = torch.cat((rows, out[-1:]))
    return found


@pytest.mark.parametrize("kind", ["eagle", "eagle1", "eagle3"])
@torch.no_grad()
def test_unrolled_steps_are_what_a_drafter_sees(kind: str) -> None:
    head, generator = heads()[kind], torch.Generator().manual_seed(3)
    prefix, rows = 4, 7
    embeds, hidden = (torch.randn(1, prefix + rows, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    cos, sin = (table.double()[None] for table in rope_tables(ONE, prefix + rows))
    mask = torch.full((rows, prefix + rows), -math.inf, dtype=torch.float64).triu(prefix + 1)[None, None]
    head.features = lambda tapped: tapped  # they are given as they are
    view = View(embeds, hidden, torch.arange(prefix + rows)[None], mask, prefix, torch.ones(1, rows, dtype=torch.bool))
    outs = list(steps(head, view, (cos, sin), 3))
    for start in range(rows - 3):
        expected = slow(head, embeds[0], hidden[0], prefix + start, 3)
        for step, wanted in enumerate(expected):
            torch.testing.assert_close(outs[step][0, start + step], wanted)


def seen(seed: int = 0) -> TargetBatch:
    """A batch of two recordings with two questions each, random throughout."""
    branches = [[Branch([5, 6, 7], [8, 9, 10, 11, 2]), Branch([5, 9], [12, 13, 2])], [Branch([5, 4], [14, 15, 16, 2])] * 2]
    prefix, generator = 9, torch.Generator().manual_seed(seed)
    packed = pack(branches, prefix)
    total = prefix + packed.ids.shape[1]

    def noise(width: int, length: int = total) -> torch.Tensor:
        return torch.randn(2, length, width, generator=generator)

    loss_mask = (packed.labels >= 0) & (packed.labels.roll(-1, 1) >= 0)
    loss_mask[:, -1] = False
    places = torch.cat((torch.arange(prefix).expand(2, -1), prefix + packed.offsets), 1)
    logits = noise(40, total - prefix)
    ids = torch.cat((torch.full((2, prefix), -1), packed.ids), 1)
    ids[:, :2] = torch.tensor([1, 30])
    return TargetBatch(
        noise(16),
        ids,
        noise(16),
        {tap: noise(16) for tap in (1, 2, 3, 4, 5, -1)},
        logits,
        places,
        packed.mask,
        packed.offsets,
        packed.labels,
        2,
        prefix,
        loss_mask,
    )


def test_only_words_behind_the_first_of_an_answer_are_learned() -> None:
    found = seen()
    rows = found.loss_mask[0].nonzero().flatten().tolist()
    # Rows of [5 6 7 | 8 9 10 11] [5 9 | 12 13]: the row of 7 learns what follows 8; an end is the last thing learned.
    assert rows == [2, 3, 4, 5, 8, 9]


@pytest.mark.parametrize("kind", ["select", "weighted"])
def test_branches_get_gradients_and_so_do_gates_that_mix(kind: Any) -> None:
    options = SELECT if kind == "select" else WEIGHTED
    torch.manual_seed(0)
    head = specvlm_head(EagleConfig(ONE), Elastic(16, kind, options, frame=4))
    for name, parameter in head.named_parameters():
        if not name.startswith("view."):
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    target = VideoLlava(SIZES["nano"].target)
    target.language.head = torch.nn.Linear(16, 40, bias=False)  # type: ignore[assignment]
    target.language.cos, target.language.sin = rope_tables(ONE, 64)
    losses = [head_losses(head, RECIPES["specvlm"], target.language, seen()) for _ in range(12)]
    torch.stack([part["words"] + part["feature"] for part in losses]).sum().backward()
    compressor = compressor_of(head)
    assert compressor.gate is not None
    gate = [parameter.grad for parameter in compressor.gate.parameters()]
    if kind == "select":
        assert gate == [None] * len(gate), "a branch is drawn; the gate is fitted afterwards"
    else:
        assert any(grad is not None and float(grad.abs().sum()) > 0 for grad in gate)
    branches = [p.grad for name, p in compressor.named_parameters() if name.startswith("branches.")]
    assert branches
    assert all(grad is not None and torch.isfinite(grad).all() for grad in branches)


def outcomes(gains: Any, count: int = 800, seed: int = 0) -> Outcomes:
    """Questions about recordings, four of each, whose branches give what `gains` makes of a number of question and picture."""
    generator = torch.Generator().manual_seed(seed)
    questions, pictures = torch.randn(count, 8, generator=generator), torch.randn(count, 2, 8, generator=generator)
    noise = 0.05 * torch.randn(count, 3, generator=generator)
    tau = (torch.tensor([4.0, 4.0, 4.0]) + gains(questions[:, 0], pictures[:, 0, 0]) + noise).clamp_min(1)
    return Outcomes(questions, pictures, tau, torch.tensor([0.2, 0.2, 0.0]), torch.arange(count) // 4)


def test_a_gate_learns_what_question_and_picture_say_of_the_branches() -> None:
    options = (Option("prune", 2), Option("pool", 2), Option("none"))

    def gains(question: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        return torch.stack((question.sign(), -question.sign() * (picture > 0), -question.sign() * (picture < 0)), -1)

    made = Elastic(8, "select", options)
    found = fit(made, outcomes(gains, 1600), cost=0.0)
    assert found["tau"]["gate"] > 0.9 * found["tau"]["best"] > found["tau"]["prune"], found
    assert max(found["chosen"].values()) < 0.6
    assert (found["n"], found["recordings"]) == (400, 100), "recordings that it did not learn from"
    assert len(found["seeds"]) == 4
    shown = outcomes(gains, 40, seed=9)
    made.eval()
    taken = [int(made.shares(shown.questions[row], shown.pictures[row]).argmax()) for row in range(40)]
    assert np.mean([int(shown.tau[row].argmax()) == taken[row] for row in range(40)]) > 0.8, "the compressor has that gate"


def test_a_gate_that_can_learn_nothing_is_balanced_and_costs_move_it() -> None:
    """A control: branches that give the same whatever is asked. Cheap ones are chosen where costs count."""
    options = (Option("prune", 2), Option("pool", 2), Option("none"))
    even = outcomes(lambda question, picture: torch.zeros(len(question), 3))
    found = fit(Elastic(8, "select", options), even, cost=0.0)
    assert max(found["chosen"].values()) < 0.6
    assert found["tau"]["gate"] == pytest.approx(found["tau"]["pool"], abs=0.02), "there is nothing to gain"
    dear = fit(Elastic(8, "select", options), even, cost=1.0)
    assert dear["chosen"]["none"] > 0.9
    best = outcomes(lambda question, picture: torch.tensor([1.0, 0.0, 0.0]).expand(len(question), 3))
    assert fit(Elastic(8, "select", options), best, cost=0.0, balance=0.0)["chosen"]["prune"] > 0.9


@torch.no_grad()
def test_a_branch_is_tried_at_every_question_by_forcing_it() -> None:
    """tau of a branch at a question is that of the head with this branch alone."""
    torch.manual_seed(0)
    language = LlamaConfig(40, 16, 24, 8, 2, 1, max_position_embeddings=64)
    target = VideoLlava(replace(SIZES["nano"].target, language=language)).language
    options = (Option("prune", 5), Option("pool", 2, grid=True), Option("none"))
    head = specvlm_head(EagleConfig(ONE), Elastic(16, "select", options, frame=4)).eval()
    random(head).float()
    found, batch = tried(head, target, seen()), seen()
    assert found.tau.shape == (4, 3)
    assert found.recordings.tolist() == [0, 0, 1, 1]
    assert concatenated([found, found]).recordings.tolist() == [0, 0, 1, 1] * 2, "a recording that comes again is the same one"
    assert found.costs.tolist() == pytest.approx([2 / 7, 2 / 7, 0])
    training_like = HeadTraining(SimpleNamespace(target=target, batches=lambda *asked: iter([batch])), {"it": head}, {})
    for number in range(3):
        compressor_of(head).forced = number
        rows = batch.loss_mask.sum(1).float() @ torch.ones(2)
        per_question = torch.tensor([4.0, 2.0, 3.0, 3.0])
        assert training_like.acceptance([0], batch=1)["it"] == pytest.approx(float(found.tau[:, number] @ per_question / rows))


def forced(elastic: Elastic, way: int) -> Elastic:
    """A compressor that takes one branch whatever the question."""
    elastic.forced = way
    return elastic.eval()


@torch.no_grad()
@pytest.mark.parametrize("way", range(5))
def test_a_view_in_training_is_the_view_at_inference(way: int) -> None:
    """With hard choices, a branch sees exactly the rows that the drafter would be given for its question."""
    found = seen()
    elastic = forced(Elastic(16, "select", FRUGAL, frame=2), way)
    head = random(EagleHead(EagleConfig(ONE))).float()
    view = every_branch(found, head.taps, elastic)
    cos, sin = (table for table in rope_tables(ONE, 64))
    rope = cos[view.positions], sin[view.positions]
    out = next(steps(head, view, rope, 1))
    plain = found.view(head.taps)
    for recording, (begin, end, question) in ((0, (0, 7, 2)), (0, (7, 11, 1)), (1, (0, 5, 1))):
        kept = found.prefix
        embeds = torch.cat((plain.embeds[recording, :kept], plain.embeds[recording, kept + begin : kept + end]))
        tapped = torch.cat((plain.tapped[recording, :kept], plain.tapped[recording, kept + begin : kept + end]))
        rows = torch.cat((embeds[2:kept], tapped[2:kept]), 1)
        # A drafter holds the pairs before the last row of the prompt: that row's pair waits for the first token.
        fewer, places = elastic(rows, tapped[kept : kept + question])
        own = (torch.cat((embeds[:2], fewer[:, :16], embeds[kept:])), torch.cat((tapped[:2], fewer[:, 16:], tapped[kept:])))
        positions = torch.cat((torch.arange(2), 2 + places, torch.arange(kept, kept + end - begin)))
        length = len(positions)
        normed, residual = head.fuse_inputs(own[0][None], own[1][None])
        queries, keys, values = (
            p.transpose(1, 2) for p in head.layer.project(normed, cos[positions][None], sin[positions][None])
        )
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        expected = head.layer.finish(residual, attended.transpose(1, 2).flatten(-2))[0, length - (end - begin) :]
        torch.testing.assert_close(out[recording, begin:end], expected, rtol=1e-3, atol=1e-3)


def test_a_perfect_head_gains_everything_and_a_wrong_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """tau counts drafts in a row from every token of an answer; here the head is asked for what it is told."""
    from eventspec.drafters.heads import unrolled as module

    found = seen()
    language = VideoLlava(SIZES["nano"].target).language
    language.cos, language.sin = rope_tables(ONE, 64)

    class Source:
        target = language

        def batches(self, *asked: Any) -> Any:
            yield found

    training = HeadTraining(Source(), {"it": EagleHead(EagleConfig(ONE))}, {"it": RECIPES["eagle"]})
    answer = found.logits.roll(-1, 1)
    for said, gained in ((answer, None), (-answer, 0.0)):
        monkeypatch.setattr(EagleHead, "scores", lambda self, hidden, target, said=said: said)
        monkeypatch.setattr(module, "steps", lambda *words, said=said: iter([torch.zeros(2, said.shape[1], 16)] * words[3]))
        tau = training.acceptance([0, 1], batch=2)["it"]
        # Chains that begin at the rows of an answer with n learned rows gain n, n - 1, ..., 1.
        runs = [4, 2, 3, 3]
        best = sum(n * (n + 1) / 2 for n in runs) / sum(runs)
        assert tau == pytest.approx(1 + (best if gained is None else gained))


@pytest.mark.parametrize("name", RECIPES)
def test_every_head_learns_with_all_it_has(name: str) -> None:
    """Losses are numbers, every parameter gets a gradient, and some steps on one batch make them smaller."""
    torch.manual_seed(0)
    language = LlamaConfig(40, 16, 24, 8, 2, 1, max_position_embeddings=64)
    target = VideoLlava(replace(SIZES["nano"].target, language=language)).train().requires_grad_(False)
    recipe = RECIPES[name]
    made = new_heads([name], TargetSizes(language, tuple(range(40)), target.config.vision.tokens))[name]
    optimiser, totals = torch.optim.AdamW(made.parameters(), 1e-2), []
    for turn in range(40):
        losses = head_losses(made, recipe, target.language, seen())
        total = torch.stack([loss for part, loss in losses.items() if not part.startswith("_")]).sum()
        total.backward()
        if not turn:
            missing = [
                n
                for n, p in made.named_parameters()
                if p.requires_grad
                and (p.grad is None or not torch.isfinite(p.grad).all())
                # A gate is fitted afterwards; a branch that no question of this batch drew waits.
                and not n.startswith(("view.compressor.gate.inner", "view.compressor.gate.out"))
            ]
            assert not missing
        optimiser.step()
        optimiser.zero_grad()
        totals.append(float(total.detach()))
    assert np.isfinite(totals).all()
    assert min(totals[-5:]) < 0.9 * totals[0]


@pytest.mark.parametrize("depth", [4, 40])
@torch.no_grad()
def test_ranks_stand_where_their_chain_began(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is told the answer at two steps and the second best at the third: every chain that is long enough gains two,
    and the target's choice is its second one then."""
    found = seen()
    target = VideoLlava(SIZES["nano"].target)
    target.language.cos, target.language.sin = rope_tables(ONE, 64)
    answer = found.logits.roll(-1, 1)
    second = answer.scatter(-1, answer.argmax(-1, keepdim=True), answer.topk(2).values[..., 1:] - 1e-3)
    said = iter((answer, answer, *[second] * depth))
    monkeypatch.setattr(EagleHead, "scores", lambda self, hidden, target: next(said))
    ranks = ranked(EagleHead(EagleConfig(ONE)), target.language, found, 3, depth)
    left = torch.zeros_like(ranks[0])  # learned rows of the answer from here on
    for row in reversed(range(left.shape[1])):
        behind = left[:, row + 1] if row + 1 < left.shape[1] else 0
        left[:, row] = torch.where(found.loss_mask[:, row], behind + 1, 0)
    assert int(left.max()) > 2, "some answers are long enough"
    for level, rank in enumerate((0, 0, 1)):
        assert (ranks[level] == torch.where(left > level, rank, -1)).all()
    assert len(ranks) == depth
    assert (ranks[3:] == -1).all(), "nothing is counted behind that, nor beyond what there are rows for"
    counts = count_rounds(ranks, 3)
    answers = [len(run) for row in found.loss_mask.int().tolist() for run in "".join(map(str, row)).split("0") if run]
    begun = [min(3, length - at) for length in answers for at in range(0, length, 3)]
    assert counts[0, 0] == len(begun)
    assert counts[1:5].tolist() == [
        [sum(length > 0 for length in begun), 0, 0, 0],
        [sum(length > 1 for length in begun), 0, 0, 0],
        [0, sum(length > 2 for length in begun), 0, 0],
        [0, 0, 0, 0],
    ]


def test_rounds_go_on_behind_what_a_chain_gained() -> None:
    """Two answers behind a recording. Of 5 rows: three drafts right and the target's token, then the last row, where the second
    choice is right. Of 2 rows: both right, and a third draft would lie behind the end."""
    ranks = torch.full((3, 1, 9), -1)
    ranks[0, 0, [1, 2, 3, 4, 5, 7, 8]] = torch.tensor([0, 0, 0, 2, 1, 0, 0])
    ranks[1, 0, [1, 2, 3, 7]] = torch.tensor([0, 0, 2, 0])
    ranks[2, 0, [1, 2]] = torch.tensor([0, 2])
    counts = count_rounds(ranks, 2)
    assert counts.tolist() == [[3, 0, 0], [2, 1, 0], [2, 0, 0], [1, 0, 0]]
    assert [*map(pytest.approx, acceptance_rates(counts * 100))] == [(2 / 3, 1 / 3), (1.0, 0.0), (0.5, 0.0)]
    assert len(acceptance_rates(counts)) == 1, "so few rounds say nothing about deeper levels"


@pytest.mark.long
def test_a_small_run_gives_a_pair_with_heads(tmp_path: Path) -> None:
    from eventspec.pairs import load_pair
    from eventspec.train.heads import PRESETS, train

    monkey = replace(PRESETS["smoke"], answered=2)
    PRESETS["tiny"] = monkey
    try:
        folder = train("nano", "tiny", list(RECIPES), tmp_path, lambda *words: None, begin_with="nano")
    finally:
        del PRESETS["tiny"]
    pair = load_pair(folder)
    assert {"eagle", "specvlm"} <= pair.methods.keys()
    assert set(pair.parts.heads) == set(RECIPES)
    assert isinstance(pair.target, LanguageTarget)
    assert all(load_head(where, pair.target.language).rates for where in pair.parts.heads.values())
    told = json.loads((folder / "heads.json").read_text())["calibration"]["tau"]
    assert all(np.isfinite(list(told.values())))
    with_it = pair.with_head("spec-llava").drafting("always")  # which the bundled pair has not
    clip, settings = DATA / "clips/street_scene", {"max_new_tokens": 12}
    drafted, plain = (es.generate(with_it, clip, "What is ahead?", name, **settings) for name in ("eagle", "autoregressive"))
    assert drafted.token_ids == plain.token_ids and drafted.trace.drafted > 0
