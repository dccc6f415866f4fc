"""A stream with the bundled pair: every answer is that of a fresh question about the window that it names."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from eventspec.ask import Live, generate
from eventspec.ask.replay import Replay
from eventspec.core import BadInput, Window
from eventspec.events.stream import EventStream
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.video.clip import VideoClip

QUESTION = "How many road users are visible?"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "two")


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/davis346_traffic_1s")


@contextmanager
def stream(pair: Pair, method: str = "cross-modal", **policy: Any) -> Iterator[Live]:
    policy = {"window_us": 400_000, "hop_us": 100_000, "share": 1.0, "waiting": 64, **policy}
    with pair.live(method, **policy) as live:
        yield live


def push(live: Live, recording: Recording, begin: float = 0.0, end: float = 1.0) -> None:
    """A part of the recording, as fast as it goes."""
    assert recording.video is not None
    assert recording.events is not None
    span = recording.span
    first, last = (span.start_us + int(part * (span.duration_us + 1)) for part in (begin, end))
    before = first
    for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
        if not first <= at < last:
            continue
        live.push_events(recording.events.slice(Window(before, at + 1)))
        live.push_frame(frame, at)
        before = at + 1


def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.005)


@pytest.mark.parametrize("windows", ["sliding", "growing", "triggered"])
def test_an_answer_is_the_one_of_its_window(windows: str, pair: Pair, recording: Recording) -> None:
    with stream(pair, windows=windows) as live:
        push(live, recording, 0, 0.6)
        wait(lambda: live.window)
        for method, settings in (("cross-modal", {}), ("autoregressive", {}), ("prior", {"temperature": 1.0, "seed": 3})):
            answer = live.ask(QUESTION, method, max_new_tokens=24, **settings)
            plain = generate(pair, recording, QUESTION, "autoregressive", answer.window, max_new_tokens=24, **settings)
            assert answer.token_ids == plain.token_ids
            assert answer.window.duration_us <= 400_000


def test_a_question_reads_its_own_rows_only(pair: Pair, recording: Recording) -> None:
    with stream(pair) as live:
        push(live, recording)
        wait(lambda: live.window and not live.counts.frames - live.counts.encoded - live.counts.dropped)
        trace = live.ask(QUESTION, max_new_tokens=4).result.trace
    assert not [span for span in trace.spans if span.stage == "vision"]
    assert trace.sizes["prompt"] > 500


def test_windows_go_on_and_every_frame_is_encoded_once(pair: Pair, recording: Recording) -> None:
    with stream(pair, "autoregressive") as live:
        push(live, recording, 0, 0.5)
        wait(lambda: live.window)
        first = live.window
        push(
            live, recording.slice(Window(recording.span.start_us + recording.span.duration_us // 2 + 1, recording.span.end_us))
        )
        wait(lambda: live.counts.encoded == live.counts.frames)
        wait(lambda: live.window != first)
        assert first is not None
        assert live.window is not None
        assert live.window.end_us > first.end_us
        assert live.counts.dropped == 0
        assert live.counts.windows >= 2


def test_frames_that_come_too_soon_are_dropped_from_what_is_encoded_ahead_and_still_seen(
    pair: Pair, recording: Recording
) -> None:
    with stream(pair, "autoregressive", waiting=1) as live:
        push(live, recording)
        assert live.counts.dropped > 0
        wait(lambda: live.window)
        answer = live.ask(QUESTION, max_new_tokens=16)
        plain = generate(pair, recording, QUESTION, "autoregressive", answer.window, max_new_tokens=16)
        assert answer.token_ids == plain.token_ids


def test_a_standing_question_is_answered_ahead(pair: Pair, recording: Recording) -> None:
    with stream(pair) as live:
        live.standing(QUESTION, max_new_tokens=16)
        push(live, recording)
        wait(lambda: live.ask(QUESTION, max_new_tokens=16).ahead)
        answer = live.ask(QUESTION, max_new_tokens=16)
        assert answer.token_ids == generate(pair, recording, QUESTION, "prior", answer.window, max_new_tokens=16).token_ids
        assert answer.seconds < 0.05
        assert not live.ask(QUESTION, max_new_tokens=15).ahead, "other settings, another answer"
        assert not live.ask("What is ahead?", max_new_tokens=4).ahead


def test_a_standing_question_with_other_settings_is_another_answer(pair: Pair, recording: Recording) -> None:
    with stream(pair) as live:
        live.standing(QUESTION, max_new_tokens=3)
        push(live, recording)
        wait(lambda: live.ask(QUESTION, max_new_tokens=3).ahead)
        live.standing(QUESTION, max_new_tokens=12)
        answer = live.ask(QUESTION, max_new_tokens=12)
        assert answer.token_ids == generate(pair, recording, QUESTION, "prior", answer.window, max_new_tokens=12).token_ids
        live.withdraw(QUESTION)
        live.withdraw("never asked")


def test_an_interrupt_while_asking_does_not_stop_the_reading(
    pair: Pair, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stream(pair, "autoregressive") as live:
        push(live, recording, 0, 0.4)
        wait(lambda: live.window)
        before = live.window

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(live, "_answered", interrupted)
            with pytest.raises(KeyboardInterrupt):
                live.ask(QUESTION)
        push(live, recording, 0.4)
        wait(lambda: live.window != before)


def test_a_stream_that_nobody_holds_ends(pair: Pair, recording: Recording) -> None:
    live = pair.live("autoregressive", window_us=400_000)
    push(live, recording, 0, 0.2)
    gone, thread = weakref.ref(live), live._thread
    del live
    wait(lambda: gone() is None and not thread.is_alive())


def test_closing_does_not_wait_for_a_standing_answer(pair: Pair, recording: Recording) -> None:
    live = pair.live("autoregressive", window_us=400_000, share=1.0)
    live.standing(QUESTION, max_new_tokens=400, banned_ids=(pair.eos_id,))
    push(live, recording)
    wait(lambda: live._behind is not None)
    began = time.monotonic()
    live.close()
    took = time.monotonic() - began
    whole = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=400, banned_ids=(pair.eos_id,))
    assert took < 0.5 * whole.trace.marks["end"]


def test_a_target_that_encodes_again_anyway_is_not_asked_to_ahead(pair: Pair, recording: Recording) -> None:
    with stream(pair, "compressed-target") as live:
        push(live, recording)
        wait(lambda: live.window)
        assert (live.counts.encoded, live.counts.dropped) == (0, 0)
        answer = live.ask(QUESTION, max_new_tokens=8)
        plain = generate(pair, recording, QUESTION, "compressed-target", answer.window, max_new_tokens=8)
        assert answer.token_ids == plain.token_ids


def test_a_still_scene_is_read_once_a_window_where_events_trigger(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    with stream(pair, "autoregressive", windows="triggered", window_us=10_000_000, hop_us=10_000) as live:
        live.push_events(EventStream.empty(346, 260))
        for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
            live.push_frame(frame, at)
            time.sleep(0.01)
        wait(lambda: live.window)
        assert live.counts.windows == 1


def test_several_threads_may_ask_while_frames_come(pair: Pair, recording: Recording) -> None:
    found = []
    with stream(pair) as live:
        push(live, recording, 0, 0.4)

        def ask() -> None:
            found.append(live.ask(QUESTION, max_new_tokens=12))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        push(
            live,
            recording.slice(Window(recording.span.start_us + int(0.4 * recording.span.duration_us) + 1, recording.span.end_us)),
        )
        for thread in threads:
            thread.join()
    for answer in found:
        assert answer.token_ids == generate(pair, recording, QUESTION, "prior", answer.window, max_new_tokens=12).token_ids
    assert len(found) == 4


def test_a_camera_without_events_can_be_asked_by_methods_that_need_none(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    with stream(pair) as live:
        for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
            live.push_frame(frame, at)
        with pytest.raises(BadInput, match="has no events: method cross-modal"):
            live.ask(QUESTION)
        assert live.ask(QUESTION, "prior", max_new_tokens=4).text
        wait(lambda: live.counts.notes)
        assert "no events" in live.counts.notes[0]


def test_a_still_scene_has_no_events_and_is_seen(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    with stream(pair) as live:
        live.push_events(EventStream.empty(346, 260))
        for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
            live.push_frame(frame, at)
        wait(lambda: live.window)
        assert live.ask(QUESTION, max_new_tokens=4).token_ids


def push_still(live: Live, frames: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """A second of frames, and an event camera that sees nothing."""
    live.push_events(EventStream.empty(346, 260))
    for number, frame in enumerate(frames):
        live.push_frame(frame, 1000 + 30_000 * number)


def encoded_all(live: Live) -> bool:
    counts = live.counts
    return counts.encoded + counts.reused == counts.frames


def test_frames_without_events_between_them_may_share_their_features_and_it_is_said(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    frames = np.stack(list(recording.video.frames))[:10]
    first = Recording.from_arrays(frames=np.repeat(frames[:1], len(frames), 0), times_us=1000 + 30_000 * np.arange(10))
    with stream(pair, "autoregressive", reuse_below=0.01) as live:
        push_still(live, frames)
        wait(lambda: encoded_all(live))
        assert (live.counts.encoded, live.counts.reused) == (1, 9)
        answer = live.ask(QUESTION, max_new_tokens=24)
        plain = generate(pair, first, QUESTION, "autoregressive", answer.window, max_new_tokens=24)
        assert answer.token_ids == plain.token_ids
        for method in ("autoregressive", "prior"):
            result = live.ask("What is ahead?", method, max_new_tokens=4).result
            assert not result.lossless
            assert any("fewer than 0.01 events a pixel" in note for note in result.trace.notes)


@pytest.mark.parametrize(("below", "reused"), [(0.0, 0), (1e-9, 0), (1e9, 9)])
def test_how_many_frames_share_features_is_asked_for(below: float, reused: int, pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    short = recording.slice(Window(recording.span.start_us, int(recording.video.times_us[9]) + 1))
    with stream(pair, "autoregressive", reuse_below=below, window_us=10_000_000) as live:
        push(live, short)
        wait(lambda: encoded_all(live))
        assert (live.counts.frames, live.counts.reused) == (10, reused)
        assert live.ask(QUESTION, max_new_tokens=4).result.lossless == (below == 0)


def test_features_are_shared_for_a_window_at_most(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    with stream(pair, "autoregressive", reuse_below=1.0, window_us=100_000) as live:
        push_still(live, np.stack(list(recording.video.frames))[:10])
        wait(lambda: encoded_all(live))
        assert live.counts.encoded == 3, "at 1, 121 and 241 ms"


def test_features_are_shared_by_frames_that_come_when_a_window_is_cut(
    pair: Pair, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recording.video is not None
    left, cut = list(recording.video.frames)[:10], Live._cut

    def cut_late(live: Live, *end: int) -> Any:
        if left:
            live.push_frame(left.pop(0), 1000 + 30_000 * (9 - len(left)))
        return cut(live, *end)

    monkeypatch.setattr(Live, "_cut", cut_late)
    with stream(pair, "autoregressive", reuse_below=1.0, window_us=100_000, hop_us=1) as live:
        push_still(live, np.stack([left.pop(0)]))
        wait(lambda: not left and encoded_all(live))
        assert live.counts.encoded == 3, "at 1, 121 and 241 ms: the window reads none of the others"


def test_features_are_never_shared_without_an_event_camera(pair: Pair, recording: Recording) -> None:
    assert recording.video is not None
    frames = np.stack(list(recording.video.frames))[:10]
    with stream(pair, "autoregressive", reuse_below=1.0) as live:
        for number, frame in enumerate(frames):
            live.push_frame(frame, 1000 + 30_000 * number)
        wait(lambda: encoded_all(live))
        assert live.counts.reused == 0


def test_what_cannot_be_is_refused(pair: Pair) -> None:
    for settings, message in (
        ({"windows": "round"}, "windows 'round' are unknown: choose sliding, growing, triggered"),
        ({"window_us": 0}, "window_us is 0"),
        ({"hop_us": 1.5}, "hop_us is 1.5"),
        ({"share": 0.0}, "share is 0.0"),
        ({"trigger": 0}, "trigger is 0"),
        ({"trigger": None}, "trigger is None: give a number"),
        ({"share": "x"}, "share is 'x': give a number"),
        ({"feature_bytes": -1}, "feature_bytes is -1"),
        ({"reuse_below": -0.1}, "reuse_below is -0.1"),
        ({"reuse_below": float("nan")}, "reuse_below is nan"),
        ({"method": "compressed-target", "reuse_below": 0.1}, "reuse_below is nothing to method compressed-target"),
        ({"widnow_us": 5}, "unknown setting of live 'widnow_us': did you mean window_us"),
    ):
        with pytest.raises(BadInput, match=message):
            pair.live(**settings)
    with pytest.raises(BadInput, match="unknown method"):
        pair.live("nobody")
    with pair.live() as live:
        with pytest.raises(BadInput, match="no frame has come yet"):
            live.ask(QUESTION)
        with pytest.raises(BadInput, match="the prompt is empty"):
            live.ask(" ")
    with pytest.raises(BadInput, match="closed"):
        live.push_frame(np.zeros((4, 4, 3), np.uint8), 1)


def test_a_replay_of_one_picture_ends_in_time(pair: Pair, recording: Recording) -> None:
    one = Recording("one", None, VideoClip(recording.video.frames[:1], recording.video.times_us[:1]))  # type: ignore[union-attr]
    with stream(pair, "autoregressive", window_us=200_000) as live:
        replay = Replay(live, one, 0.25)
        replay.start()
        replay.join(10)
        assert not replay.is_alive() and live.counts.frames == replay.turns == 3


def test_a_replay_repeats_a_short_recording_on_a_clock_that_goes_on(pair: Pair, recording: Recording) -> None:
    short = recording.slice(Window(recording.span.start_us, recording.span.start_us + 300_000))
    with stream(pair, "autoregressive", window_us=200_000) as live:
        replay = Replay(live, short, 1.0)
        replay.start()
        replay.join()
        assert "it was begun 4 times in 1 s" in replay.notes[-1]
        assert short.video is not None
        assert live.counts.frames > 2 * len(short.video)
        wait(lambda: live.window)
        answer = live.ask(QUESTION, max_new_tokens=12)
        window = replay.on_recording(answer.window)
        assert short.span.start_us - 200_000 <= window.start_us < window.end_us <= short.span.end_us
        plain = generate(pair, short, QUESTION, "autoregressive", window, max_new_tokens=12)
        assert answer.token_ids == plain.token_ids


def test_events_that_were_moved_before_0_are_replayed_all_the_same(pair: Pair) -> None:
    moved = Recording.open("example:street").with_event_offset(-50_000)
    with stream(pair, "autoregressive", window_us=200_000) as live:
        replay = Replay(live, moved, 0.5)
        replay.start()
        replay.join()
        wait(lambda: live.window)
        assert replay.lead_us == -moved.span.start_us > 0
        answer = live.ask(QUESTION, max_new_tokens=4)
        window = replay.on_recording(answer.window)
        assert window.start_us < 0 or answer.window.start_us - window.start_us == replay.lead_us
        assert moved.span.start_us <= window.end_us <= moved.span.end_us
        plain = generate(pair, moved, QUESTION, "autoregressive", window, max_new_tokens=4)
        assert answer.token_ids == plain.token_ids
