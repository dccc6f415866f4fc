"""Method skip-encode: an answer from events alone where the threshold allows it, else the target's own; and always said."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.align.acceptance import Calibrated, Predictor
from eventspec.align.adapters import Adapter, AdapterConfig
from eventspec.align.deciding import probability
from eventspec.align.substitute import FEATURES, LONGEST, Drafted, SaidSession, Substitute, SubstitutedTarget
from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import BadCheckpoint, BadInput, Proposal
from eventspec.events.stream import EventStream
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import folder_of
from eventspec.pairs.trained import ACCEPTANCE, digest_of, save_adapter
from eventspec.recordings import Recording

QUESTION = "Describe the scene."
NUMBERS = (0.0,) * len(FEATURES)


def calibrated(bias: float, answers: int = 400) -> Calibrated:
    """A predictor that says the same of every answer, and calibration answers from hopeless ones to sure ones: those from one
    half on are right."""
    probabilities = np.linspace(0.0, 0.999, answers)
    predictor = Predictor(FEATURES, NUMBERS, (1.0,) * len(FEATURES), NUMBERS, bias)
    return Calibrated(predictor, probabilities, probabilities < 0.5, np.arange(answers), 9.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of random weights for the bundled pair."""
    adapters = load_pair("nano", "one", fit=False).parts.adapters
    assert adapters is not None
    torch.manual_seed(3)
    made = Adapter(AdapterConfig.of("linear", adapters.drafter.config, adapters.target.config.language.hidden_size))
    place = tmp_path_factory.mktemp("skipping") / "mine"
    save_adapter(made, place, adapters.drafter, adapters.target)
    return place


def keep(found: Calibrated, folder: Path) -> None:
    """As what was calibrated with the adapter of a folder."""
    replace(found, of={"adapter": digest_of(folder)}).save(folder / ACCEPTANCE)


def pair_of(folder: Path, found: Calibrated, risk: float = 0.05) -> Pair:
    keep(found, folder)
    return load_pair("nano", "one", fit=False).with_adapter(str(folder)).with_risk(risk, str(folder))


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open("example:street")


def test_a_draft_that_is_not_sure_leaves_the_answer_to_the_target(folder: Path, recording: Recording) -> None:
    pair = pair_of(folder, calibrated(-20.0))
    found = generate(pair, recording, QUESTION, "skip-encode", max_new_tokens=24)
    wanted = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=24)
    assert found.token_ids == wanted.token_ids
    assert (found.lossless, found.as_json()["skipped"]) == (False, False)
    assert sorted(seen_by(found)) == ["drafter", "target"]


@pytest.mark.parametrize("bias", [-20.0, 20.0])
def test_what_was_answered_from_events_is_the_targets_draft(
    bias: float, folder: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_of(folder, calibrated(bias))
    wanted = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=LONGEST).token_ids
    near = [*wanted[:4], wanted[4] + 1, *wanted[5:]]
    for answer in (wanted, near):
        monkeypatch.setattr(Substitute, "answer", lambda *_, answer=answer: Drafted(answer, NUMBERS, {}))
        found = generate(pair, recording, QUESTION, "skip-encode", max_new_tokens=LONGEST)
        assert found.token_ids == (wanted if bias < 0 else answer)
        rounds = [(r.accepted, r.origin) for r in found.trace.rounds]
        assert len(rounds) <= 4 + len(wanted) // 24, "a plain step, the draft, and another behind a wrong token"
        assert rounds[1][1] == "aligned"
    context = pair.open(recording)
    assert len(context.ask(QUESTION, "skip-encode", max_new_tokens=LONGEST).trace.rounds) == len(rounds)


@pytest.mark.parametrize("settings", [{}, {"max_new_tokens": 5}, {"stop_strings": (" a",)}])
def test_a_sure_draft_is_the_answer_and_no_frame_is_encoded(
    settings: dict[str, Any], folder: Path, recording: Recording
) -> None:
    pair = pair_of(folder, calibrated(20.0))
    whole = {"max_new_tokens": LONGEST}
    found = generate(pair, recording, QUESTION, "skip-encode", **{**whole, **settings})
    target = pair.method("skip-encode").target
    assert isinstance(target, SubstitutedTarget)
    events_only = pair.with_target(target.substitute.aligned)
    plain = generate(events_only, recording, QUESTION, "autoregressive", **{**whole, **settings})
    assert (found.lossless, found.as_json()["skipped"]) == (False, True)
    assert found.token_ids == plain.token_ids, "the target's language model on adapted rows, token by token"
    assert seen_by(found) == ["drafter"], "the events alone"
    assert any("no frame was encoded" in note for note in found.trace.notes)
    assert found.prompt_tokens > 0
    assert found.visual_tokens == 70


def seen_by(found: Any) -> list[str]:
    """Whose vision encoded something for an answer."""
    return [span.lane for span in found.trace.spans if span.stage == "vision"]


def encoded_beside(found: Any) -> bool:
    """Whether the answer from events came from the other lane."""
    return ("draft", "drafter") in {(span.stage, span.lane) for span in found.trace.spans}


@pytest.mark.parametrize("bias", [-20.0, 20.0])
def test_with_two_lanes_frames_are_encoded_beside_a_doubtful_answer_only(
    bias: float, folder: Path, recording: Recording
) -> None:
    keep(calibrated(bias), folder)
    with load_pair("nano", "two", fit=False) as plain:
        pair = plain.with_adapter(str(folder)).with_risk(0.05, str(folder))
        first, again = (generate(pair, opened, QUESTION, "skip-encode", max_new_tokens=16) for opened in (recording,) * 2)
        other = generate(pair, recording, "Is it safe to continue?", "skip-encode", max_new_tokens=16)
        wanted = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=16)
    assert encoded_beside(first), "of the first answer nobody knows how sure it will be"
    assert encoded_beside(other) == (bias < 0)
    assert sorted(seen_by(first)) == ["drafter", "target"]
    assert first.token_ids == again.token_ids
    assert (first.token_ids == wanted.token_ids) or bias > 0
    assert [found.as_json()["skipped"] for found in (first, again, other)] == [bias > 0] * 3
    assert any("encoded beside" in note for note in first.trace.notes) == (bias > 0)


def test_without_an_event_nothing_is_taken(folder: Path, recording: Recording) -> None:
    pair = pair_of(folder, calibrated(20.0))
    still = replace(recording, events=EventStream.empty(112, 112))
    media = media_of(still)
    target = pair.method("skip-encode").target
    assert isinstance(target, SubstitutedTarget)
    assert target.calibrated is not None
    assert probability(target.substitute.answer(media, QUESTION).features, target.calibrated) == 0.0
    assert not generate(pair, still, QUESTION, "skip-encode", max_new_tokens=4, may_be_empty=("events",)).as_json()["skipped"]


@pytest.mark.parametrize("bias", [-20.0, 20.0])
def test_it_can_be_read_ahead(bias: float, folder: Path, recording: Recording) -> None:
    pair = pair_of(folder, calibrated(bias))
    context = pair.open(recording)
    context.prepare("skip-encode")
    answer = context.ask(QUESTION, "skip-encode", max_new_tokens=8)
    assert "target" not in seen_by(answer) or bias > 0
    with pair.live("skip-encode", window_us=1_000_000) as live:
        assert recording.video is not None
        assert recording.events is not None
        live.push_events(recording.events)
        for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
            live.push_frame(np.asarray(frame), at)
        assert not live.ask(QUESTION, max_new_tokens=4).result.lossless
        assert not live.counts.notes


def test_adapters_and_risks_do_not_forget_each_other(folder: Path, tmp_path: Path) -> None:
    pair = pair_of(folder, calibrated(0.0), 0.2)
    for changed in (pair.with_adapter(str(folder)), pair.with_risk(0.2)):
        target = changed.method("skip-encode").target
        assert isinstance(target, SubstitutedTarget)
        assert (target.risk, target.adapter) == (0.2, str(folder))
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    (other / ACCEPTANCE).unlink()
    assert "skip-encode" not in pair.with_adapter(str(other)).methods, "another adapter's answers are not what was asked for"
    with pytest.raises(BadInput, match="was not calibrated"):
        pair.with_adapter(str(other), "skip-encode")
    with pytest.raises(BadInput, match="is for method aligned: name another one for method event-eagle"):
        pair.with_adapter(str(folder), "event-eagle")
    assert "skip-encode" not in pair.with_target(pair.target).methods, "it was calibrated on that target"


def test_a_second_question_is_decided_anew(folder: Path, recording: Recording) -> None:
    pair = pair_of(folder, calibrated(-20.0))
    context = pair.open(recording)
    answers = [context.ask(question, "skip-encode", max_new_tokens=12) for question in (QUESTION, "What is ahead?")]
    assert [span.stage for span in answers[1].trace.spans].count("vision") == 0
    for answer, question in zip(answers, (QUESTION, "What is ahead?"), strict=True):
        assert answer.token_ids == generate(pair, recording, question, "autoregressive", max_new_tokens=12).token_ids


def test_a_smaller_risk_asks_for_more(folder: Path) -> None:
    thresholds = []
    for risk in (0.01, 0.05, 0.3):
        target = pair_of(folder, calibrated(0.0), risk).method("skip-encode").target
        assert isinstance(target, SubstitutedTarget)
        thresholds.append(target.threshold)
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[0] > thresholds[-1]


def test_what_nobody_calibrated_is_refused(folder: Path, recording: Recording) -> None:
    pair = pair_of(folder, calibrated(20.0))
    for settings, name in (
        ({"temperature": 0.5}, "temperature"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"min_new_tokens": 9}, "min_new_tokens"),
        ({"logit_bias": {7: 1.0}}, "logit_bias"),
        ({"banned_ids": (9,)}, "banned_ids"),
        ({"stop_ids": (9,)}, "stop_ids"),
    ):
        with pytest.raises(BadInput, match=f"plain greedy answers: leave out {name}"):
            generate(pair, recording, QUESTION, "skip-encode", **settings)
    with pytest.raises(BadInput, match="has no events: method skip-encode"):
        generate(pair, replace(recording, events=None), QUESTION, "skip-encode")
    for risk in (0.0, 1.0, float("nan")):
        with pytest.raises(BadInput, match="a risk of"):
            pair.with_risk(risk)
    with pytest.raises(BadInput, match=r"30 calibration recordings are too few for a risk of 0\.01: 99 are needed"):
        pair_of(folder, calibrated(0.0, 30), 0.01)
    keep(calibrated(20.0, 3), folder)
    asked = load_pair("nano", "one", fit=False).with_adapter(str(folder))
    assert asked.method("skip-encode").notes[-1].endswith("19 are needed at least; the target is always asked")
    assert generate(asked, recording, QUESTION, "skip-encode").token_ids == generate(asked, recording, QUESTION).token_ids
    never = pair_of(folder, Calibrated(calibrated(0.0).predictor, np.ones(400), np.ones(400, bool), np.arange(400), 9.0))
    assert "no answer is sure enough" in never.method("skip-encode").notes[-1]
    (folder / ACCEPTANCE).unlink()
    bare = load_pair("nano", "one", fit=False)
    with pytest.raises(BadInput, match="was not calibrated: method skip-encode does not know when to trust it"):
        bare.with_risk(0.05, str(folder))
    assert "skip-encode" not in bare.with_adapter(str(folder)).methods
    calibrated(0.0).save(folder / ACCEPTANCE)
    with pytest.raises(BadCheckpoint, match="it was calibrated with other weights of the adapter"):
        bare.with_risk(0.05, str(folder))
    strange = Predictor(("a", "b"), (0.0, 0.0), (1.0, 1.0), (0.0, 0.0), 0.0)
    Calibrated(strange, np.ones(40), np.zeros(40, bool), np.arange(40), 9.0).save(folder / ACCEPTANCE)
    with pytest.raises(BadCheckpoint, match="it goes by a, b, wanted least, sum"):
        bare.with_risk(0.05, str(folder))


def test_what_was_answered_in_one_arm_teaches_no_other(folder: Path, recording: Recording) -> None:
    pair = pair_of(folder, calibrated(20.0))
    generate(pair, recording, QUESTION, "skip-encode")
    known, other = (one.method("skip-encode").target for one in (pair, pair.forgetful()))
    assert isinstance(known, SubstitutedTarget)
    assert isinstance(other, SubstitutedTarget)
    assert not known.doubts(QUESTION)
    assert other.doubts(QUESTION)
    assert pair.forgetful().method("skip-encode").drafts.after[0].name == "aligned"


def test_an_answer_whose_features_are_no_numbers_is_left_to_the_target() -> None:
    usual = (-0.1, -0.5, 2.0, -3.0, 9.0)
    assert probability(usual, calibrated(20.0)) > 0.9
    assert probability((math.nan, *usual[1:]), calibrated(20.0)) == 0.0


@pytest.mark.parametrize("damage", ["", "{", '{"predictor": {}}'])
def test_a_damaged_calibration_keeps_nobody_from_other_methods(damage: str, tmp_path: Path, recording: Recording) -> None:
    copy = tmp_path / "pair"
    shutil.copytree(folder_of("nano"), copy)
    (copy / "adapters/attention" / ACCEPTANCE).write_text(damage)
    with load_pair(copy, "one", fit=False) as pair:
        assert generate(pair, recording, QUESTION, "aligned", max_new_tokens=4).lossless
        assert pair.with_adapter("attention", "aligned").method("aligned").notes[-1] == "drafter: adapter attention"
        for use in (lambda: pair.method("skip-encode"), lambda: pair.with_adapter("attention", "skip-encode")):
            with pytest.raises(BadCheckpoint, match="holds no calibrated predictor"):
                use()


def test_an_answer_from_events_alone_claims_no_accepted_drafts(folder: Path, recording: Recording) -> None:
    asked, taken = (
        generate(pair_of(folder, calibrated(bias)), recording, QUESTION, "skip-encode", max_new_tokens=16)
        for bias in (-20.0, 20.0)
    )
    said = taken.as_json()["speculation"]
    assert (said["tau"], said["rounds"], said["accepted"]) == (None, 0, 0)
    assert "not verified" in taken.summary()
    assert asked.as_json()["speculation"]["tau"] >= 1
    assert any("events were not enough, the target was asked" in note for note in asked.trace.notes)


def test_a_session_of_what_was_said_says_it_again() -> None:
    session = SaidSession([7, 8, 9], 12)
    chain = Proposal.chain([7, 8])
    assert session.score(chain).logits.argmax(1).tolist() == [7, 8, 9]
    assert session.score(Proposal.empty()).logits.argmax(1).tolist() == [7]
    assert session.room == 3
    assert session.fresh_copy().score(Proposal.empty()).logits.argmax(1).tolist() == [7]
