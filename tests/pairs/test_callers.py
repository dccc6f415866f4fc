"""Whoever asks never hangs and never loses: forks, interrupts, refused pinning, dropped pairs, settings of the wrong type."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eventspec.ask import generate, stream, stream_text
from eventspec.core import BadInput, Sampling
from eventspec.lanes import worker as worker_module
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.text import TokenSpace
from eventspec.video.clip import VideoClip

QUESTION = "Describe the scene."


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("embedded", "two")


@pytest.fixture(scope="module")
def scene() -> Recording:
    return Recording.open(DATA / "clips/street_scene")


def test_a_forked_child_of_a_warm_pair_answers() -> None:
    """In a process of its own: pytest's threads must not be forked."""
    program = f"""
import os, sys, eventspec as es
pair, scene = es.load_pair("embedded", "one"), es.Recording.open({str(DATA / "clips/street_scene")!r})
ask = lambda: es.generate(pair, scene, {QUESTION!r}, "cross-modal", max_new_tokens=6).token_ids
truth, begun = ask(), es.stream(pair, scene, {QUESTION!r}, "autoregressive", max_new_tokens=30)
next(begun)
child = os.fork()
if child == 0:
    try:
        list(begun)
        os._exit(1)
    except RuntimeError as error:
        os._exit(0 if "before a fork" in str(error) and ask() == truth else 2)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) or ask() != truth)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_cancels_what_runs(pair: Pair, scene: Recording) -> None:
    assert threading.current_thread() is threading.main_thread()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        generate(pair, scene, QUESTION, "autoregressive", max_new_tokens=480, banned_ids=(pair.eos_id,))
    waited = pair.workers.start("target", time.perf_counter).result(60)
    began = time.perf_counter()
    whole = generate(pair, scene, QUESTION, "autoregressive", max_new_tokens=1)
    assert waited < began
    assert len(whole.token_ids) == 1
    # 480 tokens take several seconds; an interrupted run keeps the lane for a round at most.
    assert time.perf_counter() - began < 60


def test_pinning_that_is_refused_is_noted(scene: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*parts: Any) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(worker_module.os, "sched_setaffinity", refused)
    with load_pair("embedded", "two") as fresh:
        result = generate(fresh, scene, QUESTION, "cross-modal", max_new_tokens=4)
    assert len(result.token_ids) == 4
    assert any(note.startswith("lane target is not pinned to core") for note in result.trace.notes)


def test_a_lane_that_cannot_start_fails_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module.torch, "set_num_threads", lambda count: 1 // 0)
    lane = worker_module.Worker("broken", threads=1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            lane.start(int).result(10)
    lane.close()


def test_a_pair_that_is_dropped_takes_its_threads_along(scene: Recording) -> None:
    def workers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("eventspec-")}

    others = workers()  # of other tests; they may end meanwhile
    for leave in ("dropped", "closed"):
        fresh: Pair | None = load_pair("embedded", "two")
        assert fresh is not None
        generate(fresh, scene, QUESTION, "cross-modal", max_new_tokens=4)
        assert len(workers() - others) == 2
        weights = weakref.ref(fresh.target)
        if leave == "closed":
            with fresh:
                pass
        fresh = None
        gc.collect()
        ends = time.monotonic() + 20
        while (workers() - others or weights() is not None) and time.monotonic() < ends:
            time.sleep(0.01)
            gc.collect()
        assert not workers() - others, leave
        assert weights() is None, leave


@pytest.mark.parametrize("method", ["prior", "eagle"])
def test_a_drafter_that_writes_into_the_request_changes_nothing(
    method: str, pair: Pair, scene: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scene.video is not None
    assert scene.events is not None
    frames = np.array(list(scene.video.frames))
    memory = replace(scene, video=VideoClip(frames, scene.video.times_us))
    plain, before = generate(pair, memory, QUESTION, "autoregressive", max_new_tokens=12).token_ids, frames.copy()
    tried: list[str] = []

    class Writing:
        name, taps, needs_target, concurrent = "writing", pair.drafter(method).taps, pair.drafter(method).needs_target, False

        def open(self, request: Any, target: Any, trace: Any) -> Any:
            def attempt(name: str, write: Any) -> None:
                try:
                    write()
                except (ValueError, TypeError, AttributeError):
                    tried.append(name)

            attempt("frames", lambda: request.media.frames.frames.__setitem__(..., 0))
            attempt("flags", lambda: request.media.frames.frames.setflags(write=True))
            attempt("times", lambda: request.media.frames.times_us.__setitem__(..., 0))
            attempt("events", lambda: request.media.events.x.__setitem__(..., 0))
            attempt("bias", lambda: request.sampling.logit_bias.update({plain[0]: -100.0}))
            attempt("seed", lambda: setattr(request.sampling, "seed", 7))
            if target is not None:
                target.prompt().rows.zero_()
                target.prompt().features.zero_()
            return pair.drafter(method).open(request, target, trace)

    hostile = pair.with_drafter(method, Writing())
    found = generate(hostile, memory, QUESTION, method, max_new_tokens=12, logit_bias={7: 0.0})
    assert tried == ["frames", "flags", "times", "events", "bias", "seed"]
    assert found.token_ids == plain
    assert np.array_equal(frames, before)
    assert generate(pair, memory, QUESTION, "autoregressive", max_new_tokens=12).token_ids == plain


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"seed": 1.5}, "seed is 1.5: it must be a whole number"),
        ({"seed": True}, "seed is True"),
        ({"max_new_tokens": "9"}, "max_new_tokens is '9': it must be a whole number"),
        ({"stop_ids": 5}, "stop_ids is 5: it must be a sequence of token ids"),
        ({"stop_ids": "ab"}, "stop_ids is 'ab'"),
        ({"stop_strings": 5}, "stop_strings is 5: it must be a text or a sequence of texts"),
        ({"stop_strings": [b"x"]}, "stop_strings is"),
        ({"temperature": "1"}, "temperature is '1': it must be a number"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"top_p": None}, "top_p is None: it must be a number"),
        ({"logit_bias": [1]}, r"logit_bias is \[1\]: it must be a mapping"),
        ({"logit_bias": {1: "x"}}, "logit_bias is 'x': it must be a number"),
        ({"bad_words": ("car",)}, "it must be sequences of token ids, as Pair.bad_words makes them"),
        ({"constraint": 3}, "constraint is 3: it must be a constraint"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty is 1e-320"),
        ({"max_tokens": 5}, "unknown setting 'max_tokens': did you mean max_new_tokens"),
        ({"quux": 5}, "unknown setting 'quux': choose from temperature"),
    ],
)
@pytest.mark.parametrize("ask", [generate, stream, stream_text])
def test_a_setting_of_the_wrong_type_is_named(
    ask: Any, settings: dict[str, Any], told: str, pair: Pair, scene: Recording
) -> None:
    with pytest.raises(BadInput, match=told):
        list(ask(pair, scene, QUESTION, "autoregressive", **settings))


def test_banning_everything_is_refused(pair: Pair, scene: Recording) -> None:
    size = pair.vocabulary.size
    with pytest.raises(BadInput, match=f"banned_ids leave no token: all {size} of the vocabulary are banned"):
        generate(pair, scene, QUESTION, "autoregressive", banned_ids=range(size))


def test_rows_of_a_model_behind_its_vocabulary_do_not_count_as_what_can_be_said(pair: Pair) -> None:
    spare = TokenSpace(pair.vocabulary, 2, banned_ids=tuple(range(8, 3 * pair.vocabulary.size)))
    assert spare.sampling(Sampling()).banned_ids == spare.banned_ids
    with pytest.raises(BadInput, match="leave no token"):
        spare.sampling(Sampling(banned_ids=tuple(range(8))))


def test_settings_may_come_as_numpy_and_as_lists() -> None:
    plain = Sampling(seed=3, temperature=0.5, stop_ids=(1, 2), stop_strings=("x",), bad_words=((1,),), logit_bias={4: 1.0})
    given = Sampling(
        seed=np.int64(3),  # type: ignore[arg-type]
        temperature=np.float64(0.5),
        stop_ids=np.array([1, 2]),  # type: ignore[arg-type]
        stop_strings="x",  # type: ignore[arg-type]
        bad_words=[[1]],  # type: ignore[arg-type]
        logit_bias={np.int64(4): 1},  # type: ignore[dict-item]
    )
    assert given == plain
    assert hash(given) == hash(plain)
