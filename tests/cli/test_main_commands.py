"""The main commands end to end on the bundled pair: what they print for programs, and what they leave behind."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import h5py
import pytest
from PIL import Image

from eventspec.cli import run
from eventspec.core import BadInput, Window
from eventspec.events.formats import dsec_h5, text
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording, write_native

REAL = DATA / "clips/davis346_traffic_1s"
STAGES = {
    "drafter_vision", "drafter_projector", "drafter_prefill", "target_vision", "target_projector", "target_prefill", "transfer",
    "first_provisional", "first_committed", "decode", "postprocessing", "total",
}  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code = run([str(word) for word in words])
    found = capsys.readouterr()
    assert code == 0, found.err
    return json.loads(found.out)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison begins at once: what steps cost is measured by the comparison in tests/house/test_schemas.py."""
    monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair, only=(): pair)


def test_generate_tells_every_stage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("generate", "--recording", REAL, "--prompt", "What is around us?", "--json")
    base = told(capsys, *asked, "--method", "autoregressive")
    early = told(capsys, *asked, "--method", "cross-modal", "--trace", tmp_path / "trace.json")
    assert early["token_ids"] == base["token_ids"]
    assert early["lossless"] is True
    assert set(early["timing_ms"]) == STAGES
    assert base["timing_ms"]["drafter_vision"] is None
    assert base["timing_ms"]["first_provisional"] is None
    assert early["timing_ms"]["transfer"] is None, "on one device nothing is moved"
    assert early["usage"]["completion_tokens"] == len(early["token_ids"])
    spans = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"vision", "prefill", "draft"} <= {span["name"] for span in spans}


def test_generate_moves_the_events_and_says_by_how_much(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("--prompt", "What is ahead?", "--method", "cross-modal", "--max-new-tokens", "4", "--json")
    street = Recording.open("example:street")
    write_native(tmp_path / "late", street.with_event_offset(150_000))
    none, given, found, put_right = (
        told(capsys, "generate", "--recording", place, *asked, *words)
        for place, words in (
            ("example:street", ()),
            ("example:street", ("--event-offset", "0")),
            ("example:street", ("--event-offset", "auto")),
            (tmp_path / "late", ("--event-offset", "auto")),
        )
    )
    assert (none["event_offset_us"], none["event_offset_error_us"]) == (None, None)
    assert (given["event_offset_us"], given["event_offset_error_us"], given["notes"]) == (0, None, none["notes"])
    assert abs(found["event_offset_us"]) <= 20_000 and found["event_offset_error_us"] > 0
    assert abs(put_right["event_offset_us"] + 150_000) <= put_right["event_offset_error_us"]
    assert none["token_ids"] == given["token_ids"] == found["token_ids"] == put_right["token_ids"], "whatever drafts"


def test_events_on_another_clock_are_noted_and_put_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_native(tmp_path / "late", Recording.open("example:street").with_event_offset(150_000))
    told(capsys, "events", "info", "example:street", "--json")
    assert run(["events", "info", str(tmp_path / "late")]) == 0
    assert "the event clock seems 152 ms (+-15) ahead of the frames'" in capsys.readouterr().err
    how = ["--event-offset", "auto", "--start-us", "0"]
    assert run(["events", "convert", str(tmp_path / "late"), str(tmp_path / "right"), *how]) == 0
    capsys.readouterr()
    assert run(["events", "info", str(tmp_path / "right")]) == 0
    right = capsys.readouterr().err
    assert "are moved by -152002 us" in right and "clock" not in right


def test_an_offset_that_cannot_be_estimated_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    street = Recording.open("example:street")
    write_native(tmp_path / "two", street.slice(Window(0, 200_000)))
    assert run(["generate", "--recording", str(tmp_path / "two"), "--prompt", "hi", "--event-offset", "auto"]) == 2
    assert "too few to estimate the event offset" in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_costs_no_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(trace: object, path: Path) -> None:
        raise BadInput(f"{path} cannot be written (No space left on device): choose another place")

    monkeypatch.setattr("eventspec.trace.record.Trace.save", full)
    words = ("generate", "--recording", REAL, "--prompt", "x", "--method", "autoregressive", "--max-new-tokens", "4")
    for more in ((), ("--json",)):
        assert run([*map(str, words), "--trace", str(tmp_path / "t.json"), *more]) == 2
        found = capsys.readouterr()
        assert found.out.strip() and "t.json cannot be written" in found.err.splitlines()[-1]
        assert not more or json.loads(found.out).get("trace") is None


def test_generate_joins_events_and_frames_of_two_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same answer as from one recording, also when the events do not know their sensor."""
    recording = Recording.open(REAL)
    assert recording.events is not None and recording.video is not None
    text.write(tmp_path / "e.csv", recording.events)
    sized, *lines = (tmp_path / "e.csv").read_text().splitlines(keepends=True)
    assert sized == "# sensor 346x260\n"
    (tmp_path / "e.csv").write_text("".join(lines))
    write_native(tmp_path / "seen", Recording("seen", None, recording.video))
    asked = ("generate", "--prompt", "What is around us?", "--json")
    both = ("--video", tmp_path / "seen", "--events", tmp_path / "e.csv")
    whole, parts = told(capsys, *asked, "--recording", REAL), told(capsys, *asked, *both, "--sensor", "davis346")
    same = ("token_ids", "usage")  # not the speculation: on two lanes it depends on time
    assert [parts[name] for name in same] == [whole[name] for name in same]
    for words, says in (
        (both, "--sensor 640x480"),
        (both[:2], "--video PATH and --events PATH"),
        ((), "give --recording PATH"),
    ):
        assert run([*map(str, (*asked, *words))]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.usefixtures("unmeasured")
def test_bench_compare_opens_files_that_do_not_state_their_sensor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recording = Recording.open(REAL)
    assert recording.video is not None and recording.events is not None
    images = tmp_path / "seq/images/left/rectified"
    images.mkdir(parents=True)
    times = recording.video.times_us
    for number in range(len(times)):
        Image.fromarray(recording.video.frames[number]).save(images / f"{number:06d}.png", compress_level=0)
    (tmp_path / "seq/images/timestamps.txt").write_text("".join(f"{time}\n" for time in times))
    (tmp_path / "seq/events/left").mkdir(parents=True)
    dsec_h5.write(tmp_path / "seq/events/left/events.h5", recording.events)
    with h5py.File(tmp_path / "seq/events/left/events.h5", "r+") as file:
        for name in ("width", "height"):
            del file["events"].attrs[name]
    (tmp_path / "qa.jsonl").write_text(json.dumps({"recording": "seq", "question": "What?", "answer": "?"}))
    words = ("bench", "compare", "--method", "cross-modal", "--questions", tmp_path / "qa.jsonl", "--max-new-tokens", 4)
    assert told(capsys, *words, "--out", tmp_path / "r.jsonl", "--json", "--sensor", "davis346")["n"] == 1
    # The size is believed: events that do not fit another one are refused.
    assert run([*map(str, (*words, "--out", tmp_path / "s.jsonl", "--sensor", "nmnist"))]) == 2
    assert "outside the sensor" in capsys.readouterr().err


def test_generate_shows_provisional_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("generate", "--recording", REAL, "--prompt", "What is around us?")
    assert run([str(w) for w in (*words, "--method", "autoregressive")]) == 0
    plain = capsys.readouterr().out.strip()
    assert run([str(w) for w in (*words, "--provisional")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == plain, "through a pipe the whole answer stands on the last line"
    lines = [line.split(maxsplit=3) for line in shown[:-1]]
    kinds = [line[2] for line in lines if len(line) > 2 and line[1] == "ms"]
    assert "committed" in kinds
    committed = " ".join(line[3] for line in lines if len(line) > 3 and line[2] == "committed")
    assert "".join(committed.split()) == "".join(plain.split())


@pytest.mark.usefixtures("unmeasured")
def test_bench_compare_writes_rows_and_a_summary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told(capsys, "scenes", "make", "--clips", 2, "--split", "test", "--seed", 5, "--out", tmp_path / "made", "--json")
    methods = ("autoregressive", "cross-modal", "ngram", "prior")
    chosen = [word for method in methods for word in ("--method", method)]
    rows = tmp_path / "rows.jsonl"
    words = ("bench", "compare", "--questions", tmp_path / "made/qa.jsonl", "--limit", 4, "--out", rows, "--json")
    found = told(capsys, *words, "--device-plan", "two", *chosen)
    assert found["n"] == 4
    assert set(found["methods"]) == {*methods, "autoregressive, all cores"}
    assert all(found["methods"][method]["identical"] == 4 for method in methods)
    assert len(rows.read_text().splitlines()) == 20


def for_people(lines: list[str], page: Path) -> None:
    """What the demo prints, and the page that it writes."""
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert any("Identical to the target's own answer: 12 of 12 lossless rows." in line for line in lines)
    head = next(line for line in lines if line.startswith("method"))
    assert head.split() == ["method", "guess", "token", "answer", "speedup", "ceiling", "tau", "same"]
    lossy = next(line for line in lines if line.startswith("compressed-target"))
    assert lossy.split()[5] == "-", "no ceiling holds for a lossy row"
    written = page.read_text()
    drawings = [base64.b64decode(data).decode() for data in re.findall(r'data:image/svg\+xml;base64,([^"]+)', written)]
    assert [drawing.count("data:image/png") for drawing in drawings] == [2, 2, 0], "two moving pictures, and the timeline"
    assert "http" not in re.sub(r'base64,[^"]+', "", written), "the page loads nothing"


@pytest.mark.parametrize("repeats", [1, pytest.param(2, marks=pytest.mark.long)])
def test_demo_compares_every_method_on_both_recordings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eventspec.cli.demo.MOST_REPEATS", repeats)
    if repeats == 1:  # what auto learns and what steps cost here are the long run's
        monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair: pair)
        monkeypatch.setattr("eventspec.cli.demo.rehearse", lambda *_: None)
        monkeypatch.setattr("eventspec.cli.demo.LIVE_SECONDS", 3.0)
    assert run(["demo", "--json", "--html", "demo.html"]) == 0  # for people on standard error
    shown = capsys.readouterr()
    assert "loading" in shown.err.splitlines()[0], "something is said before the first measurement ends"
    for_people([line for line in shown.err.splitlines() if " ways to answer, " not in line], tmp_path / "demo.html")
    found = json.loads(shown.out)
    runs = found["runs"]
    assert len(runs) == 26
    assert found["live"]["frames"]["arrived"] > 50
    assert found["live"]["events"]["dropped"] == 0
    assert {run["method"] for run in runs if not run["lossless"]} == {"compressed-target"}
    assert {run["recording"] for run in runs} == {"street_scene", "davis346_traffic_1s"}
    for recording in ("street_scene", "davis346_traffic_1s"):
        answers = {tuple(run["token_ids"]) for run in runs if run["recording"] == recording and run["lossless"]}
        assert len(answers) == 1
    assert (tmp_path / "out/timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out/trace.json").read_text())["traceEvents"]
    assert run(["demo", "--out", str(tmp_path), "--html", str(tmp_path / "no/demo.html")]) == 2


@pytest.mark.long
def test_demo_is_for_people_too(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.cli.demo.REPEATS", 1)
    monkeypatch.setattr("eventspec.cli.demo.MOST_REPEATS", 2)
    monkeypatch.setattr("eventspec.cli.demo.rehearse", lambda *_: None)  # what auto learns is another test's
    page = tmp_path / "demo.html"
    assert run(["demo", "--out", str(tmp_path), "--html", str(page)]) == 0
    shown = capsys.readouterr()
    for_people(shown.out.splitlines(), page)
    assert "loading" in shown.err, "something is said before the first measurement ends"


def test_models_and_doctor_speak_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nano" in json.dumps(told(capsys, "models", "list", "--json"))
    assert told(capsys, "models", "check", "nano", "--json")
    assert told(capsys, "doctor", "--json")["bundled_pairs"]
