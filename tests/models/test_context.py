"""A recording that several questions are asked about: each is answered as if it were the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import BadInput, Media, Proposal, Sampling, Trace, Verdict
from eventspec.engine.policy import NO_TAIL
from eventspec.models.prompt import FrameEncoder
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.video.clip import VideoClip

FRAMES = np.random.default_rng(0).integers(0, 256, (4, 2, 2, 3), np.uint8)
TREE = Proposal(np.array([3, 4, 5, 6]), np.array([-1, -1, 0, 2]))


@pytest.fixture(scope="module")
def target() -> LanguageTarget:
    language = Llama(LlamaConfig(20, 16, 24, 2, 2, 1, max_position_embeddings=400)).double().requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in language.parameters():
        parameter.normal_(0.0, 0.6, generator=generator)
    map_ = torch.randn(12, 3 * 16, generator=generator, dtype=torch.float64)

    def see(frames: Any) -> torch.Tensor:
        return (torch.from_numpy(frames).double().flatten() / 255 @ map_).view(3, 16)

    def text(question: str) -> tuple[list[int], list[int]]:
        return [1, 2], [int(word) for word in question.split()]

    return LanguageTarget(FrameEncoder(language, text, see, len(FRAMES), "tiny"))


def media(frames: Any = FRAMES) -> Media:
    return Media(frames=VideoClip(frames, np.arange(len(frames), dtype=np.int64)))


def opened(context: Any, question: str, tail: int = NO_TAIL, taps: tuple[int, ...] = (), most: int = 8) -> Any:
    return context.open(question, Sampling(max_new_tokens=most), tail, Trace(), taps)


def said(*tokens: int) -> Verdict:
    return Verdict(np.empty(0, np.int64), np.array(tokens, np.int64))


@pytest.mark.parametrize("taps", [(), (-1,), (1, 2)], ids=str)
@torch.inference_mode()
def test_a_second_question_reads_its_own_rows_and_scores_as_a_fresh_one(taps: tuple[int, ...], target: LanguageTarget) -> None:
    context = target.encode(media(), Trace())
    first = opened(context, "5 6 7", taps=taps)
    first.commit(said(int(first.score(TREE).logits[0].argmax())))
    first.score(TREE)
    del first
    second = opened(context, "8 9", taps=taps)
    assert (len(second.pending), second.chunked) == (2, True)
    alone = opened(target.encode(media(), Trace()), "8 9", taps=taps)
    assert (len(alone.pending), alone.chunked) == (2 + 12 + 2, False), "features take no other forward than plain decoding"
    for _ in range(2):
        mine, yours = second.score(TREE), alone.score(TREE)
        torch.testing.assert_close(mine.logits, yours.logits)
        if taps:
            torch.testing.assert_close(mine.features, yours.features)
            torch.testing.assert_close(second.prompt().features, alone.prompt().features)
        second.commit(said(11))
        alone.commit(said(11))
    assert torch.equal(
        second.fresh_copy().score(Proposal.empty()).logits,
        opened(target.encode(media(), Trace()), "8 9").score(Proposal.empty()).logits,
    )


@torch.inference_mode()
def test_features_of_a_prompt_that_was_not_read_are_refused(target: LanguageTarget) -> None:
    session = opened(target.encode(media(), Trace()), "8 9", taps=(-1,))
    with pytest.raises(ValueError, match="was not read yet"):
        session.prompt()


@torch.inference_mode()
def test_layers_that_were_not_tapped_before_are_read_anew(target: LanguageTarget) -> None:
    lean = target.encode(media(), Trace())
    first = opened(lean, "5 6 7")
    first.score(Proposal.empty())
    first.commit(said(3))
    del first
    assert len(opened(lean, "8").pending) == 1, "keys and values are enough"
    assert len(opened(lean, "8", taps=(-1,)).pending) == 2 + 12 + 1, "what the last layer gave was not kept"
    context = target.encode(media(), Trace())
    context.keep_outputs()
    session = opened(context, "5 6 7")
    session.score(Proposal.empty())
    session.commit(said(3))
    assert len(opened(context, "8", taps=(-1,)).pending) == 1, "what the head reads follows from what was kept"
    tapped = opened(context, "8", taps=(1,))
    assert len(tapped.pending) == 2 + 12 + 1
    tapped.score(Proposal.empty())
    assert tapped.prompt().features.shape == (15, 16)


@pytest.mark.parametrize("tail", [NO_TAIL, 4])
@pytest.mark.parametrize("taps", [(-1,), (2,), (0, 1, -1)], ids=str)
@torch.inference_mode()
def test_features_that_are_worked_out_later_are_those_of_the_whole_layer(
    taps: tuple[int, ...], tail: int, target: LanguageTarget
) -> None:
    lazy, eager = target.encode(media(), Trace()), target.encode(media(), Trace())
    eager.keep_outputs()
    one, two = (opened(context, "5 6 7", tail=tail, taps=taps) for context in (lazy, eager))
    for session in (one, two):
        session.score(TREE)
        session.commit(said(3))
        session.score(TREE)  # what is drafted since lies behind the prompt, and is none of it
    found, wanted = one.prompt().features, two.prompt().features
    assert found.shape == (17, 16 * len(taps))
    torch.testing.assert_close(found, wanted)
    text, (begin, end) = one.prompt(visual=False), one.prompt().visual
    assert (begin, end) == text.visual == (2, 14)
    for part in (slice(begin), slice(end, None)):
        torch.testing.assert_close(text.features[part], wanted[part])
    if taps == (-1,):
        assert not torch.allclose(text.features[begin:end], wanted[begin:end]), "the control: these were not worked out"


@torch.inference_mode()
def test_features_of_text_come_with_a_draft_and_those_before_any_recording_once(
    target: LanguageTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out, runner = list[int](), target.language.runner()
    plain = runner.last_outputs

    def counted(entering: Any, places: Any, cache: Any) -> Any:
        worked_out.append(len(entering))
        return plain(entering, places, cache)

    monkeypatch.setattr(runner, "last_outputs", counted)
    monkeypatch.setattr(runner, "_opening", None)
    for frames, question, draft, alone in (
        (FRAMES, "5 6 7", TREE, [2]),  # the two rows before the recording
        (FRAMES[::-1], "8 9", TREE, []),
        (FRAMES[::-1], "", TREE, []),
        (FRAMES[::-1], "8 9 10", Proposal.empty(), [2]),  # the last row's logits need what that layer gives for it
    ):
        context, whole = target.encode(media(frames), Trace()), target.encode(media(frames), Trace())
        whole.keep_outputs()
        lazy, eager = (opened(one, question, taps=(-1,)) for one in (context, whole))
        torch.testing.assert_close(lazy.score(draft).features, eager.score(draft).features)
        worked_out.clear()
        text, wanted = lazy.prompt(visual=False).features, eager.prompt().features
        for part in (slice(2), slice(14, None)):
            torch.testing.assert_close(text[part], wanted[part])
        assert worked_out == alone


@torch.inference_mode()
def test_answers_in_the_making_at_once_do_not_disturb_each_other(target: LanguageTarget) -> None:
    context = target.encode(media(), Trace())
    questions, sessions, truth = ["5 6 7", "8 9", "5 6"], [], []
    for question in questions:
        sessions.append(opened(context, question, tail=1))
        truth.append(opened(target.encode(media(), Trace()), question))
    for token in (3, 14, 15):
        for session, alone in zip(sessions, truth, strict=True):
            torch.testing.assert_close(session.score(TREE).logits, alone.score(TREE).logits)
            session.commit(said(token))
            alone.commit(said(token))


@torch.inference_mode()
def test_a_cache_grows_for_a_longer_answer(target: LanguageTarget) -> None:
    context = target.encode(media(), Trace())
    session = opened(context, "5")
    session.score(Proposal.empty())
    session.commit(said(3))
    longer = opened(context, "5", most=300)
    assert longer.chunked
    assert longer.room >= 300


@torch.inference_mode()
def test_frames_one_by_one_are_the_frames_at_once(target: LanguageTarget) -> None:
    growing = target.encode(media(FRAMES[:0]), Trace())
    with pytest.raises(BadInput, match="no frames"):
        opened(growing, "5 6")
    for place in range(len(FRAMES)):
        growing.extend(FRAMES[place : place + 1], Trace())
        found = opened(growing, "5 6").score(TREE).logits
    whole = target.encode(media(), Trace())
    assert torch.equal(growing.visual, whole.visual)
    torch.testing.assert_close(found, opened(whole, "5 6").score(TREE).logits)
    with pytest.raises(BadInput, match="5 frames are more than tiny takes"):
        growing.extend(FRAMES[:1], Trace())
