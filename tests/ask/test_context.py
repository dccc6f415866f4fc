"""Several questions about one recording, with the bundled pair: every answer is that of a fresh question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.ask import generate
from eventspec.core import BadInput, Window
from eventspec.drafters import FeatureDrafter
from eventspec.drafters.heads.views import HeadInputs
from eventspec.models.session import Prefix, Reading
from eventspec.nn.cache import KVCache, Loan
from eventspec.nn.draft import DraftKernel
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

QUESTIONS = ("What is ahead?", "How many road users are visible?", "Describe the scene.")
SETTINGS = [
    pytest.param({}, id="greedy"),
    pytest.param({"temperature": 0.8, "seed": 3}, id="sampled", marks=pytest.mark.long),
    pytest.param(
        {"temperature": 1.2, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 5}, id="cut and penalised", marks=pytest.mark.long
    ),
]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/street_scene")


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_second_question_is_answered_as_a_fresh_one(settings: dict[str, Any], pair: Pair, recording: Recording) -> None:
    context, later = pair.open(recording), 0
    for question in QUESTIONS:
        for method in ("autoregressive", "eagle", "specvlm", "cross-modal", "prior"):
            kept = context.ask(question, method, max_new_tokens=24, **settings)
            fresh = generate(pair, recording, question, method, max_new_tokens=24, **settings)
            assert kept.token_ids == fresh.token_ids
            assert not kept.trace.given_up
            later += not any(span.stage == "vision" for span in kept.trace.spans)
    assert later >= 12, "the recording was encoded again"


@pytest.mark.parametrize(
    "head",
    [
        "eagle3",
        "vispec",
        "dream",
        "massv:pruned",
        "hivis",
        *(pytest.param(h, marks=pytest.mark.long) for h in ("msd", "frugal")),
    ],
)
def test_heads_keep_what_they_read(head: str, pair: Pair, recording: Recording) -> None:
    other = pair.with_head(head)
    context = other.open(recording)
    for question in (*QUESTIONS, QUESTIONS[0]):
        kept = context.ask(question, "eagle", max_new_tokens=24)
        fresh = generate(other, recording, question, "eagle", max_new_tokens=24)
        assert kept.token_ids == fresh.token_ids
        assert not kept.trace.given_up
        # Rounding may move a node across a threshold; what the head sees is the same.
        assert abs(kept.trace.accepted - fresh.trace.accepted) <= 1


def test_a_plain_answer_between_two_of_a_head_loses_nothing_that_the_head_read(
    pair: Pair, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that taps inner layers needs their outputs for the whole prefix, which plain decoding does not ask for."""
    other, known, begin = pair.with_head("eagle3"), list[int](), Prefix.begin
    context = other.open(recording)

    def watched(self: Prefix, *asked: Any) -> tuple[Reading, Loan]:
        reading, loan = begin(self, *asked)
        if self.language is pair.parts.language_target.language:
            known.append(reading.rows)
        return reading, loan

    monkeypatch.setattr(Prefix, "begin", watched)
    for method in ("eagle", "autoregressive", "eagle", "autoregressive"):
        kept = context.ask(QUESTIONS[0], method, max_new_tokens=16)
        assert kept.token_ids == generate(other, recording, QUESTIONS[0], method, max_new_tokens=16).token_ids
    assert known[0] == 0
    assert min(known[2], known[4], known[6]) > 500, known
    assert known[1] == known[3] == 0, "fresh questions"


@pytest.mark.parametrize(("method", "head"), [("auto", "specvlm"), ("specvlm", "specvlm"), ("eagle", "eagle")])
def test_heads_too_have_read_what_is_prepared(
    method: str, head: str, pair: Pair, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever drafts behind the prefill at today's costs; the control is a method without a head."""
    read, reading = list[int](), FeatureDrafter.read

    def watched(self: FeatureDrafter, inputs: HeadInputs, cache: KVCache, kernel: DraftKernel) -> torch.Tensor:
        read.append(len(inputs.embeds))
        return reading(self, inputs, cache, kernel)

    prepared, control = pair.open(recording), pair.open(recording)
    prepared.prepare(method)
    control.prepare("prior")
    monkeypatch.setattr(FeatureDrafter, "read", watched)
    wanted = generate(pair, recording, "Describe the scene.", "autoregressive", max_new_tokens=24).token_ids
    for context, most in ((prepared, 40), (control, 600)):
        read.clear()
        assert context.ask("Describe the scene.", head, max_new_tokens=24).token_ids == wanted
        assert most / 10 < read[0] < most


def test_no_question_of_the_usual_length_copies_what_was_read(
    pair: Pair, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the first behind `prepare` nor a longer one; the control is an answer that may be longer than there is room."""
    copied, beginning = list[int](), KVCache.beginning

    def watched(self: KVCache, rows: int, capacity: int) -> KVCache:
        copied.append(rows)
        return beginning(self, rows, capacity)

    context = pair.open(recording)
    context.prepare("prior")
    monkeypatch.setattr(KVCache, "beginning", watched)
    for question in ("Safe?", *QUESTIONS, "Describe the scene, please, and everybody in it."):
        context.ask(question, "prior")
    assert copied == []
    context.ask("Safe?", "autoregressive", max_new_tokens=400)
    assert [rows > 500 for rows in copied] == [True]


def test_constraints_and_streams_work_from_a_context(pair: Pair, recording: Recording) -> None:
    context, settings = pair.open(recording), {"constraint": pair.regex("[0-9]+ cars?\\.")}
    for question in QUESTIONS[1:]:
        kept = context.ask(question, "eagle", **settings)
        assert kept.token_ids == generate(pair, recording, question, "eagle", **settings).token_ids
        assert "".join(piece.text for piece in context.stream_text(question, "prior", **settings)) == kept.text


def test_a_lossy_target_has_a_context_of_its_own(pair: Pair, recording: Recording) -> None:
    context = pair.open(recording)
    for method in ("autoregressive", "compressed-target", "autoregressive", "compressed-target"):
        kept = context.ask(QUESTIONS[0], method, max_new_tokens=16)
        assert kept.token_ids == generate(pair, recording, QUESTIONS[0], method, max_new_tokens=16).token_ids


def test_frames_as_they_arrive_are_the_recording_at_once(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    frames = np.asarray(recording.video.frames)[:8]
    whole = replace(recording, video=type(recording.video)(frames, recording.video.times_us[:8]))
    growing = pair.open(replace(recording, video=None))
    with pytest.raises(BadInput, match="no RGB frames"):
        growing.ask(QUESTIONS[0], "prior")
    for place in range(8):
        growing.extend(frames[place : place + 1])
        if place == 3:
            growing.ask(QUESTIONS[1], "eagle", max_new_tokens=8)  # about what there is so far
    for method in ("autoregressive", "eagle", "prior"):
        answer = growing.ask(QUESTIONS[2], method)
        assert answer.token_ids == generate(pair, whole, QUESTIONS[2], method).token_ids
    with pytest.raises(BadInput, match="more than the target takes"):
        growing.extend(frames[:1])


@pytest.mark.parametrize("frames", [np.zeros((2, 4, 4)), np.zeros((4, 4, 3), np.uint8), np.zeros((1, 4, 4, 3), np.float32)])
def test_what_are_no_frames_is_refused(frames: Any, pair: Pair, recording: Recording) -> None:
    with pytest.raises(BadInput, match=r"wanted uint8 \[K, H, W, 3\]"):
        pair.open(recording).extend(frames)


def test_what_the_readers_said_of_a_recording_is_said_of_every_answer(pair: Pair, recording: Recording) -> None:
    torn = replace(recording, notes=("the file is torn: 90 % is lost",))
    beyond = Window(recording.span.start_us, recording.span.end_us + 5_000_000)
    answers = [
        generate(pair, torn, "What is ahead?", "prior", beyond, max_new_tokens=2),
        pair.open(torn, beyond).ask("What is ahead?", "prior", max_new_tokens=2),
    ]
    for answer in answers:
        assert answer.trace.notes[0] == torn.notes[0] and "reaches beyond the recording" in answer.trace.notes[1]
