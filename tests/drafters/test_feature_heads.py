"""Heads on the target's features: lossless with any weights, tree and compressor; what is drafted is what was trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from eventspec.compress.elastic import CONCAT, FRUGAL, SELECT, WEIGHTED, Elastic
from eventspec.core import Budget, Media, Proposal, Request, Sampling, Trace, Verdict
from eventspec.costs.fit import session_of
from eventspec.drafters.heads import family_of
from eventspec.drafters.heads.dream import DreamHead
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead, msd_head
from eventspec.drafters.heads.eagle3 import Eagle3Config, Eagle3Head, usual_taps
from eventspec.drafters.heads.feature import FeatureDraft, FeatureDrafter
from eventspec.drafters.heads.head import HeadConfig
from eventspec.drafters.heads.specvlm import specvlm_head
from eventspec.drafters.heads.trees import best_paths
from eventspec.drafters.heads.views import TargetBatch
from eventspec.drafters.heads.vispec import vispec_head
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.lanes.workers import Workers
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.draft import TreeConfig, fixed_tree
from eventspec.text import StopDetector

SIZES = LlamaConfig(40, 16, 24, 6, 2, 1, max_position_embeddings=128)
ONE = replace(SIZES, num_hidden_layers=1)
END = 3
VISUAL = (2, 14)
STATIC = TreeConfig(4, 3, tuple(torch.tensor(x) for x in ([0, 1, 2], [0, 1], [0, 1, 4], [0], [0, 2], [])))


def randomised(module: Any, seed: int, scale: float = 0.6) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.normal_(0.0, scale, generator=generator)
    return module.double().requires_grad_(False).eval()


def target(seed: int = 0) -> LanguageTarget:
    language = randomised(Llama(SIZES), seed)
    picture = torch.randn(VISUAL[1] - VISUAL[0], 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def reading(question: str) -> Prompt:
        text = language.embed(torch.tensor([int(word) for word in question.split()]))
        return Prompt(torch.cat((text[: VISUAL[0]], picture, text[VISUAL[0] :])), VISUAL)

    return LanguageTarget(TextEncoder(language, reading))


def eagle(norm: bool = True, bias: bool = True, seed: int = 1) -> EagleHead:
    return cast(EagleHead, randomised(EagleHead(EagleConfig(ONE, norm, bias)), seed))


def eagle3(normed: bool = False, seed: int = 1) -> Eagle3Head:
    head = Eagle3Head(Eagle3Config(ONE, usual_taps(6), 24, normed))
    head.vocab_ids.copy_(torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:24].sort().values)
    return cast(Eagle3Head, randomised(head, seed))


def specvlm(mode: str) -> EagleHead:
    """EAGLE's head behind a compressor; `mode` may be one branch of FRUGAL's."""
    compressor = Elastic(16, "select" if mode in BRANCHES else mode, MODES[mode], 4)  # type: ignore[arg-type]
    made = specvlm_head(EagleConfig(ONE), compressor)
    made.load_state_dict({**made.state_dict(), **eagle().state_dict()})
    made.double().requires_grad_(False).eval()
    randomised(compressor, 5, 0.3)
    if mode in BRANCHES:  # else the gate takes one of them for every question here, whatever is wrong with the others
        compressor.force(mode)
    return made


BRANCHES = [option.kind for option in FRUGAL]
MODES = {"select": SELECT, "weighted": WEIGHTED, "concat": CONCAT, **dict.fromkeys(BRANCHES, FRUGAL)}
HEADS: dict[str, Callable[[], Any]] = {
    "eagle1": lambda: eagle(norm=False),
    "eaglevlm": lambda: eagle(bias=False),
    "eagle3": eagle3,
    "eagle3 normed": lambda: eagle3(normed=True),
    "msd": lambda: randomised(msd_head(EagleConfig(ONE)), 1),
    "vispec": lambda: randomised(vispec_head(EagleConfig(ONE), 3), 1, 0.4),
    "dream": lambda: randomised(DreamHead(HeadConfig(ONE)), 1),
}
COMPRESSED: dict[str, Callable[[], Any]] = {mode: partial(specvlm, mode) for mode in MODES}
EVERY = {**HEADS, **COMPRESSED}
GROWTHS = {"dynamic": TreeConfig(10, 8), "narrow": TreeConfig(2, 5), "chain": TreeConfig(1, 6), "static": STATIC}


def drafter(model: LanguageTarget, head: Any, growth: TreeConfig) -> FeatureDrafter:
    return FeatureDrafter("eagle", head, model.language, END, growth)


def answered(
    model: LanguageTarget, by: FeatureDrafter | None, request: Request, floor: float = 0.02
) -> tuple[list[int], Trace]:
    trace, policy = Trace(), DraftPolicy(max_nodes=59, node_cost=floor, worth=1.0, level_cost=0.0)
    workers, stop = Workers("one"), StopDetector(request.sampling.stop_ids)
    found = run(Decoding(Asking(model, request, stop, Drafts((), (by,)), policy), workers, trace), workers)
    return found.token_ids, trace


@cache
def plain_answer(make: Callable[[int], LanguageTarget], seed: int, sampling: Sampling) -> list[int]:
    """What the target says alone: the same whoever drafts."""
    return answered(make(seed), None, Request(Media(), "5 1 9 2 14 7", sampling))[0]


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("seeds", [(0,), pytest.param((1, 2), marks=pytest.mark.long)], ids=str)
def test_a_head_of_any_weights_never_changes_the_answer(kind: str, growth: str, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        model = target(seed)
        by = drafter(model, HEADS[kind](), GROWTHS[growth])
        for sampling in (Sampling(max_new_tokens=30, stop_ids=(END,)), Sampling(1.0, max_new_tokens=25, seed=seed)):
            found, trace = answered(model, by, Request(Media(), "5 1 9 2 14 7", sampling))
            assert found == plain_answer(target, seed, sampling)
            assert trace.drafted > 0
            assert not trace.notes


def tied(seed: int) -> LanguageTarget:
    """A target that cannot tell tokens 2k and 2k + 1 apart: every one of its choices is a tie."""
    model = target(seed)
    for weight in (model.language.head.weight, model.language.embed.weight):
        weight[1::2] = weight[::2]
    return model


@pytest.mark.parametrize("kind", HEADS)
def test_ties_everywhere_change_nothing_and_break_no_tree(kind: str) -> None:
    """Children as likely as their parents and as each other: closure holds (the engine checks every proposal), and the target's
    tie goes the way it goes alone."""
    for seed in range(2):
        model, head = tied(seed), HEADS[kind]()
        if isinstance(head, Eagle3Head):
            head.head.weight[1::2] = head.head.weight[::2]
        for growth in GROWTHS.values():
            request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=20))
            found, trace = answered(model, drafter(model, head, growth), request, floor=1e-9)
            assert found == plain_answer(tied, seed, request.sampling)
            assert trace.drafted > 0
            assert not trace.notes


def chances(model: LanguageTarget, prompt: str, temperature: float, least: float) -> dict[tuple[int, ...], float]:
    """Every answer of three tokens and how likely it is, by plain forwards; what begins with less than `least` is left out."""
    language, known = model.language, {(): 1.0}
    rows = model.encoder.make(prompt).rows
    for _ in range(3):
        longer = dict[tuple[int, ...], float]()
        for path, chance in known.items():
            text = torch.cat((rows, language.embed(torch.tensor(path, dtype=torch.int64))))[None]
            hidden = language(text, torch.arange(text.shape[1]), text.shape[1], None)[0, -1]
            shares = (language.logits(hidden) / temperature).softmax(-1).tolist()
            longer |= {(*path, token): chance * share for token, share in enumerate(shares) if chance * share > least}
        known = longer
    return known


def fit(drawn: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """p of chi-square: every answer that is expected 8 times is a cell, all others are one."""
    count = drawn.total()
    cells = {path: chance * count for path, chance in wanted.items() if chance * count >= 8}
    assert len(cells) > 20
    seen = [drawn[path] for path in cells]
    return float(chisquare([*seen, count - sum(seen)], [*cells.values(), count - sum(cells.values())]).pvalue)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["eaglevlm", "dream"])
def test_sampled_answers_have_the_targets_distribution(kind: str) -> None:
    """Chi-square over answers of three tokens, a draft tree in every round; the slightly warmer target fails the same test."""
    model, prompt, temperature = target(), "5 1 9 2 14 7", 0.3
    by, drawn, accepted = drafter(model, HEADS[kind](), TreeConfig(8, 3)), Counter[tuple[int, ...]](), 0
    for seed in range(2500):
        request = Request(Media(), prompt, Sampling(temperature, max_new_tokens=3, seed=seed))
        answer, trace = answered(model, by, request, floor=1e-9)
        drawn[tuple(answer)] += 1
        accepted += trace.accepted
    assert accepted > 100
    assert fit(drawn, chances(model, prompt, temperature, 1e-4)) > 1e-3
    assert fit(drawn, chances(model, prompt, 1.2 * temperature, 1e-4)) < 1e-6


@pytest.mark.parametrize("mode", MODES)
def test_a_compressor_never_changes_the_answer(mode: str) -> None:
    model = target()
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=30))
    found, trace = answered(model, drafter(model, COMPRESSED[mode](), TreeConfig(4, 5)), request)
    assert found == plain_answer(target, 0, request.sampling)
    assert trace.drafted > 0


def opened(model: LanguageTarget, by: FeatureDrafter, first: list[int]) -> FeatureDraft:
    """A draft session behind the prompt and some committed tokens, as the loop leaves it."""
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=40))
    session = session_of(model, NO_TAIL, by.taps, request)
    draft = by.open(request, session, Trace())
    assert isinstance(draft, FeatureDraft)
    for token in first:
        scores, verdict = session.score(Proposal.empty()), Verdict(np.empty(0, np.int64), np.array([token]))
        draft.observe(verdict, scores)
        session.commit(verdict)
    return draft


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("rope", [1, 3])
def test_what_is_drafted_is_what_was_trained(kind: str, rope: int) -> None:
    """A chain's choices, level by level, are those of the unrolled training pass on the same tokens."""
    model, head = target(), EVERY[kind]()
    first = [4, 11, 6][:rope]
    draft = opened(model, drafter(model, head, TreeConfig(1, 4)), first)
    if rope > 1:
        draft.propose(Budget(max_nodes=2))  # what was read early must not differ from what is read at once
        draft.observe(Verdict(np.empty(0, np.int64), np.array([9])), scored(model, head, first))
        first = [*first, 9]
    drafted = draft.propose(Budget(max_nodes=4))
    chain = drafted.tokens.tolist()
    logs = levels(model, head, first, chain)
    assert len(chain) == 4 or END in chain
    for level, token in enumerate(chain):
        assert token == int(logs[level].argmax()), level


def scored(model: LanguageTarget, head: Any, tokens: list[int]) -> Any:
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=40))
    session = session_of(model, NO_TAIL, head.taps, request)
    scores = session.score(Proposal.chain(tokens))
    return replace(scores, features=scores.features[-1:])


def levels(model: LanguageTarget, head: Any, first: list[int], chain: list[int]) -> list[torch.Tensor]:
    """log q over the target's tokens at every level of a chain, by the training pass."""
    language = model.language
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=40))
    rows = model.encoder.make(request.question).rows
    text = torch.cat((rows, language.embed(torch.tensor([*first, *chain]))))[None]
    (begin, prefix), length = VISUAL, text.shape[1]
    every = tuple(range(7))
    hidden, tapped = language.tapped(text, torch.arange(length), length, None, every)
    taps = dict(zip(every, tapped, strict=True)) | {-1: language.normed(hidden)}
    mask = torch.ones(length, length, dtype=torch.bool).tril()[prefix:][None, None]
    # Questions are told from answers by their labels, branches by offset 0.
    labels = torch.full((1, length - prefix), -100)
    labels[:, len(rows) - prefix - 1 :] = 1
    offsets = torch.arange(length - prefix)[None]
    following, places = torch.cat((text[:, 1:], text[:, -1:]), 1), torch.arange(length)[None]
    logits = language.logits(hidden[:, prefix:])
    ids, learned = torch.full((1, length), -1), labels > 0
    batch = TargetBatch(text, ids, following, taps, logits, places, mask, offsets, labels, begin, prefix, learned)
    found = []
    for level, out in enumerate(family_of(head).rollout(head, language, batch, len(chain)).outs):
        row = len(rows) - prefix + len(first) - 2 + level
        own = head.scores(out[0, row], language).log_softmax(-1)
        whole_row = torch.full((40,), -math.inf, dtype=torch.float64)
        whole_row[head.vocab_ids if isinstance(head, Eagle3Head) else torch.arange(40)] = own
        found.append(whole_row)
    return found


def grown(draft: FeatureDraft, width: int, depth: int) -> dict[tuple[int, ...], float]:
    """EAGLE-2's tree by its definition, one path at a time: log-probability of every recorded path."""
    model, head = draft.target.language, draft.drafter.head  # type: ignore[attr-defined]
    first = [4]
    known = dict[tuple[int, ...], float]()
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        level = dict[tuple[int, ...], float]()
        for path in frontier:
            logs = levels(LanguageTarget(TextEncoder(model, target().encoder.make)), head, first, [*path, 0])[len(path)]
            for token in logs.topk(width).indices.tolist():
                level[*path, token] = known.get(path, 0.0) + float(logs[token])
        known |= level
        frontier = sorted((p for p in level if p[-1] != END), key=lambda p: -level[p])[:width]
    return known


@pytest.mark.parametrize("kind", HEADS)
def test_a_dynamic_tree_is_eagle_2s(kind: str) -> None:
    model = target()
    draft = opened(model, drafter(model, HEADS[kind](), TreeConfig(3, 3)), [4])
    proposal = draft.propose(Budget(max_nodes=12))
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    wanted = grown(draft, 3, 3)
    best = sorted(wanted, key=lambda p: -wanted[p])[:12]
    assert set(paths) == set(best)


def test_asked_twice_it_drafts_the_same() -> None:
    model = target()
    draft = opened(model, drafter(model, eagle(), TreeConfig(4, 4)), [4])
    one, two = draft.propose(Budget(max_nodes=9)), draft.propose(Budget(max_nodes=9))
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.parents.tolist() == two.parents.tolist()


@pytest.mark.parametrize("kind", EVERY)
def test_a_session_makes_nothing_on_the_default_device(kind: str) -> None:
    """With the target's tensors in one place and the default device elsewhere, as on a GPU."""
    model = target()
    draft = opened(model, drafter(model, EVERY[kind](), TreeConfig(3, 3)), [4])
    scores = scored(model, draft.drafter.head, [4])
    with torch.device("meta"):
        for _ in range(2):
            assert len(draft.propose(Budget(max_nodes=9)))
            draft.observe(Verdict(np.empty(0, np.int64), np.array([9])), scores)


def test_a_bushy_fixed_tree_has_room_for_its_rows() -> None:
    """More rows than its width times its levels: ranks (0.6, 0.35) give 16 inner nodes in a tree of width 2."""
    model = target()
    for rates, nodes in ((((0.6, 0.35),), 25), (((0.95, 0.04),), 59), (((0.4, 0.3, 0.2),), 25)):
        request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=20))
        found, trace = answered(model, drafter(model, eagle(), fixed_tree(best_paths(rates, nodes))), request, floor=1e-9)
        assert found == answered(model, None, request)[0]
        assert trace.drafted > 0
        assert not trace.notes


def test_a_heads_own_context_does_not_bound_the_prompt() -> None:
    model = target()
    head = randomised(EagleHead(EagleConfig(replace(ONE, max_position_embeddings=8))), 1)
    by = FeatureDrafter("eagle", head, model.language, END, TreeConfig(2, 4))
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=20))
    found, trace = answered(model, by, request, floor=1e-9)
    assert found == answered(model, None, request)[0]
    assert trace.drafted > 0
    assert not trace.notes


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("kind", ["eaglevlm", "msd", "vispec", *MODES])
def test_few_visual_rows_or_none_are_no_trouble(kind: str, rows: int) -> None:
    whole = target()

    def fewer(question: str) -> Prompt:
        prompt = whole.encoder.make(question)
        begin, end = prompt.visual
        return Prompt(torch.cat((prompt.rows[: begin + rows], prompt.rows[end:])), (begin, begin + rows))

    model = LanguageTarget(TextEncoder(whole.language, fewer))
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=20))
    found, trace = answered(model, drafter(model, EVERY[kind](), TreeConfig(3, 4)), request, floor=1e-9)
    assert found == answered(model, None, request)[0]
    assert trace.drafted > 0
    assert not trace.notes


def test_a_fixed_tree_has_its_shape_whatever_the_weights() -> None:
    model = target()
    shapes = {
        tuple(opened(model, drafter(model, eagle(seed=seed), STATIC), [4]).propose(Budget(max_nodes=59)).parents.tolist())
        for seed in range(4)
    }
    assert shapes == {(-1, -1, -1, 0, 0, 1, 3, 3)}


def test_a_target_without_the_layers_is_left_alone_with_a_note() -> None:
    model = target()
    by = drafter(model, eagle(), TreeConfig(4, 4))
    request = Request(Media(), "5 1 9 2 14 7", Sampling(max_new_tokens=12))

    class Blind(LanguageTarget):
        def encode(self, media: Media, trace: Trace) -> Any:
            context = super().encode(media, trace)
            tapping = context.open
            context.open = lambda *asked: tapping(*asked[:4])  # type: ignore[method-assign]
            return context

    found, trace = answered(Blind(model.encoder), by, request)
    assert found == answered(model, None, request)[0]
    assert any("gave no features" in note for note in trace.notes)
