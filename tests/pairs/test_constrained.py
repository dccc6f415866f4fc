"""Every method of the bundled pair gives the baseline's own tokens under every sampling feature, and text and reason agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import eventspec as es
from eventspec.ask import generate, generation
from eventspec.core import BadInput, Committed
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

LOSSLESS = ("cross-modal", "hybrid", "ngram", "prior")
QUESTION = "Describe the scene."
GREEDY = pytest.param(0.0, marks=pytest.mark.long)  # tests/engine/test_constraints.py has every feature at both temperatures
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "kind": {"enum": ["car", "bus", "pedestrian"]},
        "day": {"type": "boolean"},
    },
    "required": ["count", "kind", "day"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("embedded", "two")


@pytest.fixture(scope="module")
def street() -> Recording:
    return Recording.open(DATA / "clips/street_scene")


def same_with_every_method(pair: Pair, street: Recording, question: str = QUESTION, **settings: Any) -> Any:
    base = generate(pair, street, question, "autoregressive", **settings)
    for method in LOSSLESS:
        result = generate(pair, street, question, method, **settings)
        assert (result.token_ids, result.text, result.finish_reason) == (base.token_ids, base.text, base.finish_reason), method
    return base


@pytest.mark.parametrize("temperature", [GREEDY, 1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {"frequency_penalty": 0.8, "presence_penalty": 0.4},
        {"logit_bias": {431: 6.0, 17: -8.0}},
        {"bad_words": ("car", "a zebra crossing")},
        {"min_new_tokens": 30},
        {"stop_strings": ("ahead", " on the")},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_sampling_features(pair: Pair, street: Recording, settings: dict[str, Any], temperature: float) -> None:
    said = settings.get("bad_words", ())
    settings = {**settings, "bad_words": pair.bad_words(*said)} if said else settings
    base = same_with_every_method(pair, street, temperature=temperature, seed=3, max_new_tokens=40, **settings)
    assert not any(word in base.text.replace(".", " ").replace(",", " ").split() for word in said)
    assert len(base.token_ids) >= settings.get("min_new_tokens", 0)
    if stops := settings.get("stop_strings"):
        assert not any(stop in base.text for stop in stops)
        whole = pair.vocabulary.decode(base.token_ids)
        assert any(stop in whole for stop in stops) == (base.finish_reason == "stop" and base.token_ids[-1] != pair.eos_id)


@pytest.mark.parametrize("temperature", [GREEDY, 1.0])
def test_json_schema(pair: Pair, street: Recording, temperature: float) -> None:
    pytest.importorskip("llguidance")
    constraint = pair.json_schema(SCHEMA)
    for seed in range(2):
        base = same_with_every_method(pair, street, temperature=temperature, seed=seed, constraint=constraint)
        found = json.loads(base.text)
        assert sorted(found) == ["count", "day", "kind"]
        assert found["kind"] in SCHEMA["properties"]["kind"]["enum"]
        assert base.finish_reason == "stop"
        assert base.token_ids[-1] == pair.eos_id


@pytest.mark.parametrize("temperature", [GREEDY, 1.3])
def test_regex(pair: Pair, street: Recording, temperature: float) -> None:
    pytest.importorskip("llguidance")
    base = same_with_every_method(
        pair, street, "Is it day or night?", temperature=temperature, constraint=pair.regex("(day|night), [0-9]{2}")
    )
    assert base.text[:-4] in ("day", "night")
    free = pair.regex(r"(By day|At night)[a-z0-9 ,.]*")
    longer = same_with_every_method(pair, street, temperature=temperature, constraint=free, max_new_tokens=24)
    assert longer.text.startswith(("By day", "At night"))


def test_true_drafts_pass_the_grammar(pair: Pair, street: Recording) -> None:
    """Where the grammar allows what the drafter says, drafting pays as it does without."""
    pytest.importorskip("llguidance")
    patient = pair.with_policy(("cross-modal",), patience=10_000.0)  # beside other tests the drafter may be late
    free = pair.regex(r"[A-Za-z0-9 ,.]*")
    result = generate(patient, street, QUESTION, "cross-modal", constraint=free, max_new_tokens=48)
    assert result.token_ids == generate(pair, street, QUESTION, "autoregressive", max_new_tokens=48).token_ids
    assert result.trace.accepted > 0


def test_a_grammar_and_a_ban_that_contradict_are_told(pair: Pair, street: Recording) -> None:
    pytest.importorskip("llguidance")
    digits = tuple(i for i in range(pair.vocabulary.size) if any(c.isdigit() for c in pair.vocabulary.piece(i) or ""))
    for method in ("autoregressive", "prior"):
        with pytest.raises(BadInput, match="nothing may be said after"):
            generate(pair, street, QUESTION, method, constraint=pair.regex("[0-9]"), banned_ids=digits)


def test_a_constrained_answer_can_be_left(pair: Pair, street: Recording) -> None:
    pytest.importorskip("llguidance")
    whole = generate(pair, street, QUESTION, "autoregressive", constraint=pair.json_schema(SCHEMA)).token_ids
    asking = generation(pair, street, QUESTION, "cross-modal", sampling=es.Sampling(constraint=pair.json_schema(SCHEMA)))
    for update in asking.updates():
        if isinstance(update, Committed):
            asking.cancel()
    result = asking.result()
    assert result.finish_reason == "cancelled"
    assert 0 < len(result.token_ids) < len(whole)
    assert result.token_ids == whole[: len(result.token_ids)]


@pytest.mark.parametrize("method", ["autoregressive", "cross-modal"])
def test_streamed_text_is_the_answers_and_shows_no_stop_string(pair: Pair, street: Recording, method: str) -> None:
    plain = generate(pair, street, QUESTION, "autoregressive").text
    for stops in ((), (" the",), (plain[12:15], plain[20:22]), ("never said",)):
        whole = generate(pair, street, QUESTION, "autoregressive", stop_strings=stops)
        so_far = ""
        for piece in es.stream_text(pair, street, QUESTION, method, stop_strings=stops):
            so_far += piece.text
            assert whole.text.startswith(so_far)
            assert not any(stop in so_far + piece.provisional for stop in stops)
        assert so_far == whole.text == (plain if whole.token_ids[-1] == pair.eos_id else plain[: len(so_far)])


def test_leaving_streamed_text_cancels(pair: Pair, street: Recording) -> None:
    asking = generation(pair, street, QUESTION, "autoregressive")
    pieces = asking.pieces()
    while not next(pieces).text:
        pass
    pieces.close()  # type: ignore[attr-defined]
    assert asking.result().finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"logit_bias": {1 << 20: 1.0}}, f"logit_bias id {1 << 20}"),
        ({"bad_words": ((5, -1),)}, "bad_words is"),
    ],
)
def test_an_id_that_does_not_exist_is_refused_before_anything_runs(
    pair: Pair, street: Recording, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        generate(pair, street, QUESTION, "autoregressive", **settings)


def test_bad_words_cover_a_words_usual_spellings(pair: Pair, tmp_path: Path) -> None:
    spelled = pair.bad_words("bus")
    assert {pair.vocabulary.decode(ids) for ids in spelled} == {"bus", " bus"}
    with pytest.raises(BadInput, match="empty"):
        pair.bad_words("bus", "")
