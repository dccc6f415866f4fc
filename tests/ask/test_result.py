"""What a person at a prompt or in a notebook sees of an answer, and what may stand for a recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import eventspec as es
from eventspec.ask import Result
from eventspec.ask.result import ready_rounds
from eventspec.core import BadInput, Committed, Provisional, Retracted, Trace
from eventspec.pairs.pair_file import DATA
from eventspec.trace.record import Round

CLIP = DATA / "clips/street_scene"


@pytest.fixture(scope="module")
def pair() -> es.Pair:
    return es.load_pair("nano", "one", fit=False)


@pytest.fixture(scope="module")
def result(pair: es.Pair) -> Result:
    return es.generate(pair, CLIP, "Describe the scene.", method="prior")


def test_every_object_is_one_line(pair: es.Pair, result: Result) -> None:
    long = replace(result, text="word\n" * 1000)
    for shown in (
        result,
        long,
        result.trace,
        pair,
        pair.open(CLIP),
        Committed(tuple(range(50))),
        Provisional(()),
        Retracted(3),
    ):
        assert "\n" not in repr(shown) and len(repr(shown)) < 300
    assert result.text in repr(result) or result.text[:100] in repr(result)


def test_a_summary_tells_text_method_times_and_tau(result: Result) -> None:
    lines = result.summary().splitlines()
    assert lines[0] == result.text and len(lines) <= 6
    for words in ("prior, lossless", "first committed", f"tau {result.trace.tau:.2f}"):
        assert words in result.summary()
    assert "ceiling" not in result.summary(), "it is the baseline's"
    plain = replace(result, method="autoregressive", trace=Trace(marks={"first_committed": 0.1, "end": 0.15}))
    assert "ceiling: 1.50x" in plain.summary()
    lossy = replace(result, lossless=False, method="auto", trace=Trace()).summary()
    assert "auto (prior), LOSSY" in lossy and "not finished" in lossy and "ceiling" not in lossy


def test_what_a_notebook_shows_is_small_and_markup_in_it_is_text(result: Result) -> None:
    page = replace(result, text="<script>alert('x')</script> & more")._repr_html_()
    assert ElementTree.fromstring(page) is not None and "<script>" not in page and len(page) < 10_000


def test_a_trace_knows_the_question_and_what_every_round_said(result: Result) -> None:
    assert result.trace.question == "Describe the scene."
    assert "".join(made.text for made in result.trace.rounds) == result.text
    assert [token for made in result.trace.rounds for token in made.tokens] == result.token_ids


def test_a_path_stands_for_a_recording(pair: es.Pair, result: Result) -> None:
    assert pair.open(str(CLIP)).ask("Describe the scene.", method="prior").token_ids == result.token_ids
    updates = list(es.stream(pair, str(CLIP), "Describe the scene.", method="prior"))
    assert [token for made in updates if isinstance(made, Committed) for token in made.tokens] == result.token_ids
    with pytest.raises(BadInput, match=r"nowhere\.aedat4"):
        es.generate(pair, Path("nowhere.aedat4"), "What?")
    with pytest.raises(BadInput, match="the recording is a int: give a Recording, or the path of one"):
        es.generate(pair, 3, "What?")  # type: ignore[arg-type]


def test_settings_are_read_as_they_are_meant(pair: es.Pair, result: Result) -> None:
    word = result.text.split()[2]
    cut = es.generate(pair, CLIP, "Describe the scene.", method="prior", stop_strings=word)
    assert cut.text == result.text[: result.text.index(word)]
    with pytest.raises(BadInput, match="unknown setting 'max_tokens': did you mean max_new_tokens"):
        es.generate(pair, CLIP, "What?", max_tokens=3)


def test_rounds_that_begin_with_a_draft_are_those_nobody_waited_for() -> None:
    def made(proposed: int, waited: float) -> Round:
        return Round(proposed, 1, "eagle", False, model_seconds=1.0, draft_seconds=waited)

    trace = Trace()
    # Whether a round's draft was there is told by how long the round before waited for it.
    trace.rounds += [made(4, 0.5), made(4, 0.01), made(4, 0.2), made(0, 0.0), made(4, 0.0)]
    assert ready_rounds(trace) == {"drafted_rounds": 3, "ready_rounds": 2}
    assert ready_rounds(Trace()) == {"drafted_rounds": 0, "ready_rounds": 0}


EVENT_ROWS = 70
"""Of the bundled event drafter: five pictures, and 8 x 8 patches with CLS."""


@pytest.mark.parametrize("method", ["cross-modal", "hybrid", "cascade", "event-eagle", "aligned", "skip-encode"])
def test_usage_tells_the_drafters_rows_where_it_has_a_vision_of_its_own(pair: es.Pair, method: str) -> None:
    """And its encode time; for a second question the rows are there, and no time was spent on them."""
    context = pair.open(CLIP)
    first, second = (context.ask(question, method=method, max_new_tokens=8) for question in ("What is ahead?", "Is it dark?"))
    for found in (first, second):
        assert found.as_json()["usage"]["drafter_rows"] == found.drafter_rows == EVENT_ROWS
    times = first.as_json()["timing_ms"]
    assert 0 < times["drafter_projector"] < times["drafter_vision"]
    assert second.as_json()["timing_ms"]["drafter_vision"] is None


@pytest.mark.parametrize("method", ["autoregressive", "eagle", "hybrid-blind", "prior"])
def test_who_sees_nothing_of_its_own_has_no_rows(pair: es.Pair, method: str) -> None:
    """The control of the test above: a head reads the target's rows, a text none, and plain decoding has no drafter."""
    told = es.generate(pair, CLIP, "What is ahead?", method=method, max_new_tokens=8).as_json()
    assert told["usage"]["drafter_rows"] == (None if method == "autoregressive" else 0) and told["usage"]["visual_tokens"] > 0
    assert told["timing_ms"]["drafter_vision"] is None and told["timing_ms"]["drafter_projector"] is None


def test_the_projector_is_a_part_of_the_vision_encoding(pair: es.Pair) -> None:
    found = es.generate(pair, CLIP, "What is ahead?", method="cross-modal")
    for lane in ("target", "drafter"):
        (whole,) = (span for span in found.trace.spans if (span.stage, span.lane) == ("vision", lane))
        (part,) = (span for span in found.trace.spans if (span.stage, span.lane) == ("projector", lane))
        assert whole.start < part.start < part.end <= whole.end


def test_post_processing_is_from_the_last_verdict_to_the_text(pair: es.Pair) -> None:
    """Of an answer that a stop string cuts, and of one that was followed as updates, too."""
    asking = es.ask.generation(pair, CLIP, "Describe the scene.", "prior", stop_strings="left")
    list(asking.updates())
    for found in (asking.result(), es.generate(pair, CLIP, "Describe the scene.", method="prior")):
        trace, times = found.trace, found.as_json()["timing_ms"]
        (span,) = (one for one in trace.spans if one.stage == "post-processing")
        last = max(one.end for one in trace.spans if one.round is not None)
        assert last <= span.start + 1e-3 and abs(last - span.start) < 1e-3 and span.end <= trace.marks["end"]
        assert 0 < times["postprocessing"] < times["decode"]
        assert "".join(made.text for made in trace.rounds) == found.text
    assert not found.text.startswith("left")


def test_on_a_gpu_the_projector_is_timed_by_events_in_its_queue(pair: es.Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With events that stand for CUDA's, 1 ms apart: times count back from the end that is waited for anyway."""

    class Event:
        count = 0

        def __init__(self) -> None:
            Event.count += 1
            self.at = float(Event.count)

        def elapsed_time(self, later: Event) -> float:
            return later.at - self.at

    monkeypatch.setattr("eventspec.models.prompt._moment", lambda like: Event())
    waits = list[object]()
    monkeypatch.setattr("eventspec.models.prompt.arrived", waits.append)
    trace = es.generate(pair, CLIP, "What is ahead?", method="autoregressive", max_new_tokens=2).trace
    (whole,) = (span for span in trace.spans if span.stage == "vision")
    (part,) = (span for span in trace.spans if span.stage == "projector")
    assert (part.start, part.end) == (pytest.approx(whole.end - 2e-3), pytest.approx(whole.end - 1e-3))
    assert len(waits) == 1, "the vision encoding's own"
