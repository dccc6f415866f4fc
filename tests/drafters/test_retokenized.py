"""Drafters with another tokenizer: proposals are in the target's ids, the drafter hears the text, the answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import (
    BadInput,
    Budget,
    Context,
    DraftSession,
    Limits,
    Media,
    Proposal,
    Request,
    Scores,
    Target,
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.drafters import LanguageDrafter, Retokenized
from eventspec.drafters.retokenized import MAPPINGS, shared_ids
from eventspec.engine import Asking, Decoding, DraftPolicy, run
from eventspec.engine.drafts import Drafts
from eventspec.lanes.workers import Workers
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.text import StopDetector, TokenSpace, Vocabulary
from eventspec.tree import check

TEXT = " the car is an the ca is the w"
NO_SCORES = Scores(torch.empty(0, 1))


@pytest.fixture(scope="session")
def spaces(
    sentencepiece_model: Callable[..., bytes],
    words: tuple[tuple[str, ...], ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TokenSpace, TokenSpace]:
    """The drafter's and the target's."""
    found = []
    for some in words:
        folder = tmp_path_factory.mktemp("vocabulary")
        (folder / "tokenizer.model").write_bytes(sentencepiece_model(some))
        found.append(TokenSpace(Vocabulary.of_folder(Path(folder)), 2))
    return found[0], found[1]


class Recites:
    """Knows the answer's text and drafts it in its own ids from where it was told the answer is; notes what it hears."""

    name, taps, concurrent = "recites", (), False
    needs_target = False

    def __init__(self, space: TokenSpace, text: str = TEXT) -> None:
        self.vocabulary, self.eos_id = space.vocabulary, space.eos_id
        self.text = text.encode()
        self.heard: list[int] = []

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        return self

    def propose(self, budget: Budget) -> Proposal:
        said = self.vocabulary.spell(self.heard)
        if not self.text.startswith(said):
            return Proposal.empty("recites")
        ids = [*self.vocabulary.respell(self.text[len(said) :]), self.eos_id]
        if budget.show is not None:
            budget.show(ids)
        return check(Proposal.chain(ids[: min(budget.max_nodes, budget.max_depth)], "recites"), budget)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.heard += verdict.tokens.tolist()


def said(tokens: list[int]) -> Verdict:
    return Verdict(np.empty(0, np.int64), np.array(tokens, np.int64))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_draft_says_the_same_in_the_targets_ids(mapping: str, spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces
    inner = Recites(theirs)
    session = Retokenized(inner, theirs, ours, mapping).open(Request(Media(), ""), None, Trace())
    shown: list[list[int]] = []
    proposal = check(session.propose(Budget(64, show=shown.append)), Budget(64))
    spelled = ours.vocabulary.spell(proposal.tokens.tolist()).decode()
    if mapping == "retokenize":
        assert spelled == TEXT
        assert proposal.tokens.tolist() == [*ours.vocabulary.respell(TEXT.encode()), ours.eos_id]
        assert shown == [proposal.tokens.tolist()]
    else:
        assert TEXT.startswith(spelled)
        assert len(proposal) > 0
    assert proposal.probs is None
    assert proposal.origin == "recites"


@pytest.mark.parametrize("cut", range(1, len(TEXT)))
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_draft_goes_on_from_the_middle_of_a_word(mapping: str, cut: int, spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces
    inner = Recites(theirs)
    session = Retokenized(inner, theirs, ours, mapping).open(Request(Media(), ""), None, Trace())
    session.observe(said(ours.vocabulary.respell(TEXT[:cut].encode())), NO_SCORES)
    heard = theirs.vocabulary.spell(inner.heard).decode()
    assert TEXT[:cut].startswith(heard)
    for _ in range(2):  # asked again without a verdict, it says the same
        proposal = session.propose(Budget(64))
        spelled = ours.vocabulary.spell(proposal.tokens.tolist()).decode()
        assert TEXT[cut:].startswith(spelled)
        if mapping == "retokenize":
            assert spelled == TEXT[cut:]


def test_several_verdicts_in_a_row_are_one_text(spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces
    inner = Recites(theirs)
    session = Retokenized(inner, theirs, ours, "retokenize").open(Request(Media(), ""), None, Trace())
    for token in ours.vocabulary.respell(b" the car is"):
        session.observe(said([token]), NO_SCORES)
    assert theirs.vocabulary.spell(inner.heard) == b" the car"  # "is" may go on
    assert inner.heard == theirs.vocabulary.respell(b" the car")  # in whole words, so canonical
    assert ours.vocabulary.spell(session.propose(Budget(64)).tokens.tolist()).decode() == TEXT[11:]


def test_a_drafter_that_is_wrong_hears_the_rest_of_the_word(spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces
    inner = Recites(theirs, " the car is")
    session = Retokenized(inner, theirs, ours, "retokenize").open(Request(Media(), ""), None, Trace())
    session.observe(said(ours.vocabulary.respell(b" the w")), NO_SCORES)
    assert len(session.propose(Budget(8))) == 0
    assert theirs.vocabulary.spell(inner.heard) == b" the w"
    session.observe(said(ours.vocabulary.respell(b"on ")), NO_SCORES)
    assert theirs.vocabulary.spell(inner.heard) == b" the won"


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(data=st.data())
def test_any_answer_keeps_the_drafter_in_step(data: st.DataObject, spaces: tuple[TokenSpace, TokenSpace]) -> None:
    """Random ids, halves of characters and special tokens included: proposals stay trees of the target's ids, and what the
    drafter hears is the answer's own text, whole or up to its last word."""
    theirs, ours = spaces
    for mapping in MAPPINGS:
        inner = Recites(theirs)
        session = Retokenized(inner, theirs, ours, mapping).open(Request(Media(), ""), None, Trace())
        answer: list[int] = []
        for _ in range(data.draw(st.integers(1, 4))):
            fresh = data.draw(st.lists(st.integers(0, ours.vocabulary.size - 1), min_size=1, max_size=5))
            answer += fresh
            session.observe(said(fresh), NO_SCORES)
            budget = Budget(data.draw(st.integers(1, 6)), max_depth=data.draw(st.integers(1, 6)))
            proposal = check(session.propose(budget), budget)
            assert (proposal.tokens < ours.vocabulary.size).all()
        text, heard = ours.vocabulary.spell(answer), theirs.vocabulary.spell(inner.heard)
        if "▁".encode() not in text:
            assert text.startswith(heard)


def test_shared_ids_spell_the_same(spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces
    to_ours, to_theirs = shared_ids(theirs, ours), shared_ids(ours, theirs)
    for token, other in to_ours.items():
        assert theirs.vocabulary.spelling[token] == ours.vocabulary.spelling[other]
    for token, other in to_theirs.items():
        assert ours.vocabulary.spelling[token] == theirs.vocabulary.spelling[other]
    assert to_ours[theirs.eos_id] == ours.eos_id
    car = theirs.vocabulary.id_of("▁c")
    assert car is not None
    assert to_ours[car] == ours.vocabulary.id_of("▁c") != car
    assert theirs.vocabulary.id_of("▁is") not in to_ours


def test_what_was_drawn_counts_as_chosen(spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces

    class Draws(Recites):
        def propose(self, budget: Budget) -> Proposal:
            found = super().propose(budget)
            return Proposal(found.tokens, found.parents, torch.ones(len(found), theirs.vocabulary.size))

    for mapping in MAPPINGS:
        session = Retokenized(Draws(theirs), theirs, ours, mapping).open(Request(Media(), ""), None, Trace())
        assert session.propose(Budget(8)).probs is None


def test_a_tree_becomes_one_tree(spaces: tuple[TokenSpace, TokenSpace]) -> None:
    theirs, ours = spaces
    word = theirs.vocabulary.respell

    class Branches(Recites):
        def propose(self, budget: Budget) -> Proposal:
            the, car, an, is_ = word(b" the") + word(b" car") + word(b" an") + word(b" is")
            return Proposal(np.array([the, car, an, is_]), np.array([-1, 0, 0, 1]))

    session = Retokenized(Branches(theirs), theirs, ours, "retokenize").open(Request(Media(), ""), None, Trace())
    proposal = check(session.propose(Budget(64)), Budget(64))
    leaves = [i for i in range(len(proposal)) if i not in proposal.parents]
    paths = []
    for leaf in leaves:
        path = []
        while leaf >= 0:
            path.insert(0, int(proposal.tokens[leaf]))
            leaf = int(proposal.parents[leaf])
        paths.append(ours.vocabulary.spell(path))
    assert paths == [b" the car is", b" the an"]
    assert (proposal.parents == -1).sum() == 1  # " the" is there once
    assert len(session.propose(Budget(3))) == 3


def test_wrong_calls_are_refused(spaces: tuple[TokenSpace, TokenSpace]) -> None:
    class Taps(Recites):
        taps = (1,)
        needs_target = True

    with pytest.raises(BadInput, match="reads the target's layers"):
        Retokenized(Taps(spaces[0]), *spaces, "retokenize")
    with pytest.raises(BadInput, match="unknown vocabulary mapping 'same'"):
        Retokenized(Recites(spaces[0]), *spaces, "same")


# ----------------------------------------------------------------------------------------------------------------- lossless
def model_over(vocabulary: Vocabulary, seed: int) -> Llama:
    with torch.inference_mode(False):
        config = LlamaConfig(vocabulary.size, 16, 24, 2, 4, 2, max_position_embeddings=400)
        model = Llama(config).double().requires_grad_(False).eval()
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.7, generator=generator)
        return model


def asks(model: Llama) -> TextEncoder:
    return TextEncoder(model, lambda question: Prompt(model.embed(torch.tensor([1, 5, 9, 270])), (0, 0)))


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_the_targets_own(
    mapping: str, temperature: float, seed: int, spaces: tuple[TokenSpace, TokenSpace], asked: Callable[..., Request]
) -> None:
    """Two random models with different tokenizers, and a drafter that recites half of the right answer; sampled answers too,
    because what is drawn depends on the seed and the place alone."""
    theirs, ours = spaces
    language, drafting = model_over(ours.vocabulary, seed), model_over(theirs.vocabulary, seed + 50)
    target, request = LanguageTarget(asks(language)), asked([1], max_new_tokens=30, temperature=temperature)
    policy = DraftPolicy(node_cost=0.0, level_cost=0.0, patience=1e5)

    def answer(drafts: Drafts) -> tuple[list[int], Trace]:
        trace = Trace()
        workers = Workers("one")
        asked = Asking(target, request, StopDetector((2,)), drafts, policy)
        return run(Decoding(asked, workers, trace), workers).token_ids, trace

    alone, _ = answer(Drafts())
    half = ours.vocabulary.spell(alone[:15]).decode("utf-8", "ignore")
    for inner in (LanguageDrafter("tiny", asks(drafting), 2), Recites(theirs, half)):
        found, trace = answer(Drafts.by(Retokenized(inner, theirs, ours, mapping)))
        assert not trace.notes
        assert sum(r.proposed for r in trace.rounds) > 0
        assert found == alone


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_right_draft_in_another_vocabulary_is_accepted(mapping: str, spaces: tuple[TokenSpace, TokenSpace]) -> None:
    """A target that is forced to say the text: its logits are scripted, the drafts come in the drafter's ids."""
    theirs, ours = spaces
    script = [*ours.vocabulary.respell(TEXT.encode()), ours.eos_id]

    class Forced(Target, Context):
        lossless = True
        limits = Limits(ours.vocabulary.size, 0, True, 0.0)

        def encode(self, *parts: Any) -> Forced:
            return self

        def open(self, *parts: Any) -> Any:
            return Saying()

    class Saying:
        room, chunked = 160, False

        def __init__(self) -> None:
            self.at = 0

        def fresh_copy(self) -> Saying:
            return Saying()

        def score(self, proposal: Proposal) -> Scores:
            depth = [-1]
            for parent in proposal.parents.tolist():
                depth.append(depth[parent + 1] + 1)
            logits = torch.zeros(len(proposal) + 1, ours.vocabulary.size)
            for row, level in enumerate(depth):
                logits[row, script[min(self.at + level + 1, len(script) - 1)]] = 9.0
            return Scores(logits)

        def commit(self, verdict: Verdict) -> None:
            self.at += len(verdict.tokens)

    trace = Trace()
    drafter = Retokenized(Recites(theirs), theirs, ours, mapping)
    workers = Workers("one")
    asked = Asking(Forced(), Request(Media(), ""), StopDetector((ours.eos_id,)), Drafts.by(drafter))
    found = run(Decoding(asked, workers, trace), workers)
    assert found.token_ids == script
    assert trace.tau > (len(script) - 1 if mapping == "retokenize" else 1.4), trace.tau
