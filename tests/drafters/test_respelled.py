"""A drafter that reads text in its own ids and names the target's: what it drafts is what its model would say, read afresh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import Budget, Request, Sampling, Scores, Trace, Verdict
from eventspec.drafters import RespelledDrafter
from eventspec.engine.drafts import Drafts
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording
from eventspec.text import TokenSpace, Vocabulary

QUESTION = "What is ahead?"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one", fit=False)


def drafter_of(pair: Pair, theirs: TokenSpace) -> RespelledDrafter:
    adapters = pair.parts.adapters
    assert adapters is not None
    scored = adapters.scored(adapters.usual("features") or "")
    return RespelledDrafter("event-eagle", adapters.events, pair.tokens, theirs, scored)


def afresh(drafter: RespelledDrafter, media: object, answer: list[int]) -> int:
    """The likeliest token after an answer, from one pass over the whole prompt."""
    language, (ours, theirs) = drafter.encoder.language, drafter.spaces
    visual = drafter.encoder.encode(media, Trace(), "drafter")  # type: ignore[arg-type]
    ids = theirs.vocabulary.respell(ours.vocabulary.spell(answer))
    prompt = drafter.encoder.prompt(QUESTION, visual).rows
    rows = torch.cat((prompt, language.embed(torch.tensor(ids, dtype=torch.int64)).to(prompt.dtype)))
    hidden = language(rows[None], torch.arange(len(rows))[None], len(rows), None)[0, -1:]
    assert drafter.model.scored is not None
    return int(drafter.model.scored.logits(hidden, rows[-1:], media, Trace())[0, : drafter.model.limit].argmax())


@torch.inference_mode()
def test_a_draft_is_what_a_fresh_reading_gives_also_after_the_target_said_something_else(pair: Pair) -> None:
    drafter, media = drafter_of(pair, pair.tokens), media_of(Recording.open("example:street"))
    request = Request(media, QUESTION, Sampling(max_new_tokens=32))
    draft = drafter.open(request, None, Trace())
    answer = list[int]()
    for said in ([], pair.tokens.vocabulary.encode(" A red car"), pair.tokens.vocabulary.encode(" is")):
        if said:
            draft.observe(Verdict.of(tokens=said), Scores(torch.zeros(1, 1)))
            answer += said
        chain = draft.propose(Budget(4)).tokens.tolist()
        assert len(chain) == 4
        for at, token in enumerate(chain):
            assert token == afresh(drafter, media, [*answer, *chain[:at]])


def test_with_a_tokenizer_of_its_own_no_token_of_the_answer_changes(pair: Pair) -> None:
    """The finer tokenizer of the bundled pair's second drafter; what its ids mean to this model is chance, and harmless."""
    assert pair.folder is not None
    fine = Vocabulary.load(Path(pair.folder) / "drafter_fine/tokenizer.json")
    drafter = drafter_of(pair, TokenSpace(fine, pair.tokens.eos_id))
    method = pair.method("event-eagle")
    mine = pair.with_method("event-eagle", method.__class__(**{**vars(method), "drafts": Drafts.by(drafter)})).drafting(
        "always"
    )
    recording = Recording.open("example:street")
    base = generate(pair, recording, QUESTION, "autoregressive")
    found = generate(mine, recording, QUESTION, "event-eagle")
    assert found.token_ids == base.token_ids
    assert found.trace.drafted > 0
