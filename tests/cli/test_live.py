"""`chat` and `live`: several questions, and a recording as if it came just now."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from eventspec.cli import run
from eventspec.pairs.pair_file import DATA, PairFile

REAL = DATA / "clips/davis346_traffic_1s"
QUESTIONS = ("What is ahead?", "How many road users are visible?")


def test_chat_answers_line_by_line_what_generate_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTIONS[0]}\n\n   \n{QUESTIONS[1]}\n\n"))  # blank lines end nothing
    assert run(["chat", str(REAL), "--method", "prior", "--max-new-tokens", "16"]) == 0
    told = capsys.readouterr()
    single = []
    for question in QUESTIONS:
        assert run(["generate", "--recording", str(REAL), "--prompt", question, "--max-new-tokens", "16"]) == 0
        single.append(capsys.readouterr().out)
    assert told.out == "".join(single)
    assert told.err.count("tokens, the first after") == 2


def test_chat_goes_on_behind_a_question_that_cannot_be_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'What is that thing over there? ' * 200}\n{QUESTIONS[0]}\n"))
    assert run(["chat", str(REAL), "--method", "prior", "--max-new-tokens", "4"]) == 2
    told = capsys.readouterr()
    assert "exceed the context" in told.err
    assert told.out.count("\n") == 1


def test_chat_without_standard_input_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as in a process that was started with it closed
    assert run(["chat", str(REAL)]) == 2
    assert "no question came: give them on standard input" in capsys.readouterr().err


def test_live_reports_what_came_and_how_long_answers_took(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("live", "--recording", str(REAL), "--prompt", QUESTIONS[1], "--seconds", "4", "--every", "0.5", "--json")
    assert run([*words, "--max-new-tokens", "8", "--window-us", "400000"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["frames"]["arrived"] > 0
    assert sum(told["frames"][name] for name in ("encoded", "reused", "dropped", "waiting")) == told["frames"]["arrived"]
    assert told["events"] == {"arrived": told["events"]["arrived"], "dropped": 0}
    assert told["latency_ms"]["answer"]["n"] == len(told["answers"]) >= 1
    assert told["latency_ms"]["answer"]["p50"] <= told["latency_ms"]["answer"]["p99"]
    start, end = told["answers"][-1]["window_us"]
    asked = ("generate", "--recording", str(REAL), "--prompt", QUESTIONS[1], "--window", f"{start}:{end}", "--json")
    assert run([*asked, "--method", "autoregressive", "--max-new-tokens", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == told["answers"][-1]["token_ids"]


def test_a_window_that_the_recording_cannot_fill_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("live", "--recording", str(REAL), "--prompt", QUESTIONS[1], "--seconds", "0.5", "--max-new-tokens", "4", "--json")
    for window, told in (("3000000", True), ("1000000", False)):  # the clip is 63 us shorter than a second
        assert run([*words, "--window-us", window]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any(note.startswith("windows of 3 s are longer than the recording (") for note in notes) is told


def test_frames_that_share_features_make_the_answers_lossy(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("live", "--recording", str(REAL), "--prompt", QUESTIONS[1], "--seconds", "1", "--every", "0.5")
    assert run([*words, "--max-new-tokens", "4", "--reuse-below", "1000"]) == 0
    told = capsys.readouterr()
    assert "not, because hardly an event came since another (LOSSY)" in told.out


def test_a_window_may_be_named_in_seconds_from_the_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("generate", "--recording", "example:street", "--prompt", QUESTIONS[1], "--method", "autoregressive", "--json")
    texts = []
    for window in ("0.25s:0.75s", "250000:750000"):  # the street's clock begins at 0
        assert run([*asked, "--window", window, "--max-new-tokens", "8"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("live", "--recording", "REAL", "--prompt", "?", "--seconds", "0"), "both must be above 0, and at most 1e+07"),
        (("live", "--recording", "REAL", "--prompt", "?", "--seconds", "nan"), "both must be above 0, and at most 1e+07"),
        (("live", "--recording", "REAL", "--prompt", "?", "--seconds", "inf"), "both must be above 0, and at most 1e+07"),
        (("live", "--recording", "REAL", "--prompt", " "), "the prompt is empty"),
        (
            ("live", "--recording", "REAL", "--prompt", "?", "--windows", "round"),
            "of 'sliding', 'growing', 'triggered'",
        ),
        (("live", "--recording", "REAL", "--prompt", "?", "--share", "2"), "--share 2 --reuse-below 0: give a share above 0"),
        (("live", "--recording", "REAL", "--prompt", "?", "--hop-us", "0"), "'--hop-us': Input should be greater than"),
        (("live", "--recording", "REAL", "--prompt", "?", "--window-us", str(10**20)), "'--window-us'"),
        (("live", "--recording", "REAL", "--prompt", "?", "--method", "nobody"), "unknown method 'nobody'"),
        (("live", "--recording", "nowhere", "--prompt", "?"), "nowhere"),
        (("chat", "nowhere"), "nowhere"),
        (("chat", "REAL", "--method", "nobody"), "unknown method 'nobody'"),
        (("chat", "REAL", "--temperature", "-1"), "temperature"),
        (("live", "--recording", "REAL", "--prompt", "?", "--reuse-below", "-1"), "--share 0.5 --reuse-below -1: give a share"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--window", "5"), "give START:END"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--window", "0.2s:nans"), "give START:END"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--pair", "nope"), "no pair 'nope'"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--risk", "0.05"), "--risk is not used by method auto"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--method", "skip-encode", "--risk", "0"), "a risk of 0"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--method", "skip-encode", "--risk", "nan"), "a risk of nan"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--method", "aligned", "--adapter", "x"), "no adapter 'x'"),
        (("generate", "--recording", "REAL", "--prompt", "?", "--window", "a:b"), "give START:END"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(REAL) if word == "REAL" else word for word in words]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert not told.out


def test_a_pair_without_adapters_says_what_it_offers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA / "pairs/nano", tmp_path / "bare", ignore=shutil.ignore_patterns("adapters"))
    PairFile.read(tmp_path / "bare").with_table("adapters", {}).write()
    words = ["generate", "--pair", str(tmp_path / "bare"), "--recording", str(REAL), "--prompt", "?", "--method", "aligned"]
    assert run(words) == 2
    told = capsys.readouterr()
    assert "has no drafter for method aligned: it offers autoregressive, cross-modal, eagle" in told.err
    assert told.err.count("\n") == 1
