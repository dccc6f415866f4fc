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
