"""``eventspec dataset``: what is there, what is missing, the expected tree, and questions that `bench compare` can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trees

from eventspec.cli import run
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.recordings.qa import read_questions

KINDS = sorted(trees.TREES)


def told(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with `code`."""
    assert run(["dataset", *map(str, words)]) == code
    found = capsys.readouterr()
    return found.out, found.err


def line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of a command that is refused."""
    out, err = told(capsys, *words, code=2)
    assert out == "" and err.count("\n") == 1 and err.startswith("eventspec: ")
    return err


@pytest.mark.parametrize("kind", KINDS)
def test_verify_tells_what_is_there_and_the_expected_tree(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    trees.TREES[kind](tmp_path / "data")
    report = json.loads(told(capsys, "verify", tmp_path / "data", "--json")[0])
    assert list(report) == ["kind", "path", "complete", "parts", "missing", "wrong", "expected"]
    assert report["kind"] == kind and report["parts"] and report["wrong"] == []
    assert report["complete"] == (not report["missing"]) == (kind in ("dsec", "mvsec"))
    page, notes = told(capsys, "verify", tmp_path / "data", "--kind", kind)
    assert notes == "" and report["parts"][0]["name"] in page and page.count("expected:") == 1
    assert all(f"  {row}" in page for row in report["expected"].splitlines())
    assert ("missing:" in page) == (not report["complete"])


def test_verify_shows_a_few_of_many_and_all_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = trees.eventgpt(tmp_path / "data")
    records = json.loads((root / "instructions.json").read_text())
    many = [{**records[0], "event_data": f"gone/{index:06d}.npy"} for index in range(15)]
    (root / "instructions.json").write_text(json.dumps(many))
    assert "  ... and 5 more (--json lists all)" in told(capsys, "verify", root)[0]
    assert len(json.loads(told(capsys, "verify", root, "--json")[0])["missing"]) == 15


def test_verify_of_something_else_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "readme.json").write_text('[{"some": "thing"}]')
    assert "is none of DSEC (dsec), MVSEC (mvsec), ActivityNet-QA (activitynet-qa)" in line(capsys, "verify", tmp_path)
    assert "no such file or folder" in line(capsys, "verify", tmp_path / "none", "--kind", "dsec")
    assert "kind 'coco' is unknown" in line(capsys, "verify", tmp_path, "--kind", "coco")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_which_nothing_is_there_still_shows_its_tree(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    page, error = told(capsys, "verify", tmp_path, "--kind", kind, code=2)
    assert "expected:" in page and error.count("\n") == 1 and "nothing of" in error
    report = json.loads(told(capsys, "verify", tmp_path, "--kind", kind, "--json", code=2)[0])
    assert not report["complete"] and report["parts"] == []


def test_verify_of_a_folder_of_recordings_tells_what_each_one_lacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.activitynet_qa(tmp_path / "qa")
    monkeypatch.chdir(tmp_path)
    words = ("verify", "qa", "--recordings", "made")
    assert "made: no such folder of recordings" in line(capsys, *words)
    trees.video(tmp_path / "made/v_abcdefghijk.mp4")
    assert run(["events", "simulate", "qa/all_test/v_v_underscor.mp4", "--out", "made/v_v_underscor"]) == 0
    capsys.readouterr()
    page = told(capsys, *words)[0].splitlines()
    assert page[page.index("missing:") + 1 : page.index("expected:")] == [
        "  v_-missing-01: no video of this name (test)",
        "  v_abcdefghijk.mp4: has no events",
    ]
    (tmp_path / "made/v_abcdefghijk.mp4").write_bytes(b"no video")
    found = json.loads(told(capsys, *words, "--json")[0])
    assert not found["complete"] and len(found["missing"]) == 1 and "v_abcdefghijk.mp4" in found["wrong"][0]
    assert [part["name"] for part in found["parts"]] == ["v_abcdefghijk.mp4", "v_v_underscor"]
    assert "DSEC has no questions" in line(capsys, "verify", trees.dsec(tmp_path / "dsec"), "--recordings", "made")


def test_questions_about_events_alone_are_refused_by_a_target_that_sees_frames(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair, only=(): pair)
    trees.eventgpt(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    told(capsys, "questions", "data", "--out", "qa.jsonl")
    assert run(["bench", "compare", "--questions", "qa.jsonl", "--method", "prior", "--out", "rows.jsonl"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "qa.jsonl, line 1: 000000 has no RGB frames" in said
    assert not (tmp_path / "rows.jsonl").exists()
    page = told(capsys, "verify", "data", "--recordings", "data")[0]
    assert page.count(": has no frames") == 2


@pytest.mark.parametrize(("kind", "questions", "recordings"), [("activitynet-qa", 4, 2), ("eventgpt", 3, 2), ("llava", 4, 3)])
def test_questions_are_rows_that_compare_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, questions: int, recordings: int
) -> None:
    trees.TREES[kind](tmp_path / "data")
    (tmp_path / "out").mkdir()
    out, notes = told(capsys, "questions", tmp_path / "data", "--out", tmp_path / "out/qa.jsonl")
    assert out == f"{tmp_path / 'out/qa.jsonl'}: {questions} questions about {recordings} recordings\n"
    assert notes.startswith("note: 1 recording is missing: their questions are left out\nnote: ")
    rows = [json.loads(row) for row in (tmp_path / "out/qa.jsonl").read_text().splitlines()]
    assert len(rows) == questions and all(list(row) == ["recording", "kind", "question", "answer", "id"] for row in rows)
    assert all(row["recording"].startswith("../data/") for row in rows)  # the two folders may move together
    asked = read_questions(tmp_path / "out/qa.jsonl", None)
    assert {Recording.open(question.recording).source_format for question in asked} <= {"video", "image", "eventgpt-npy"}
    assert "exists already" in line(capsys, "questions", tmp_path / "data", "--out", tmp_path / "out/qa.jsonl")


def test_questions_about_simulated_events_are_about_whole_recordings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way from videos to a comparison with events: simulate, then name the folder."""
    trees.activitynet_qa(tmp_path / "qa")
    monkeypatch.chdir(tmp_path)
    for name in ("v_abcdefghijk", "v_v_underscor"):
        assert run(["events", "simulate", f"qa/all_test/{name}.mp4", "--out", f"made/{name}"]) == 0
    capsys.readouterr()
    words = ("questions", "qa", "--recordings", "made", "--split", "test", "--out", "qa.jsonl", "--json")
    found: Any = json.loads(told(capsys, *words)[0])
    assert (found["kind"], found["questions"], found["recordings"], len(found["missing"])) == ("activitynet-qa", 4, 2, 1)
    recording = Recording.open(read_questions(Path("qa.jsonl"), None)[0].recording)
    assert recording.events is not None and recording.video is not None and len(recording.events) > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("dsec",), "DSEC has no questions: those with questions are activitynet-qa, eventgpt, llava"),
        (("activitynet-qa", "--split", "dev"), "has no dev_q.json: choose one of train, val, test"),
        (("activitynet-qa", "--recordings", "none"), "none: no such folder of recordings"),
        (("activitynet-qa", "--recordings", "empty"), "3 recordings are missing, first v_abcdefghijk"),
        (("eventgpt", "--kind", "activitynet-qa"), "no question: see `eventspec dataset verify`"),
    ],
)
def test_questions_that_cannot_be_written_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    trees.TREES[words[0]](tmp_path / words[0])
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert says in line(capsys, "questions", *words, "--out", "qa.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([words[0], "empty"])


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "compare", "--method", "prior", "--out", "rows.jsonl"),
        ("plan", "--tokens", "20"),
        ("train", "mixture", "--out", "mixed"),
        ("train", "heads", "--target", str(DATA / "pairs/nano/target"), "--out", "heads"),
    ],
    ids=" ".join,
)
def test_every_command_refuses_a_window_outside_its_recording_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"recording": "example:street", "question": "?", "answer": "-", "window": [10**12, None]}
    (tmp_path / "qa.jsonl").write_text(json.dumps({**row, "window": None}) + "\n" + json.dumps(row) + "\n")
    for loads in ("eventspec.pairs.load_pair", "eventspec.pairs.load_folders"):
        monkeypatch.setattr(loads, lambda *_, **__: pytest.fail("a model is loaded"))
    assert run([*words, "--questions", "qa.jsonl"]) == 2
    assert "qa.jsonl, line 2: street_scene: the window from 1000000000000 us on is outside" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["qa.jsonl"]


def test_event_files_are_asked_about_with_the_frames_of_their_sequences(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.dsec(tmp_path / "DSEC")
    trees.cut_of_dsec(tmp_path / "cut")
    monkeypatch.chdir(tmp_path)
    page = told(capsys, "verify", "cut", "--dsec", "DSEC")[0]
    assert "interlaken_00_c    event_files 3   joined 3" in page
    assert "thun_01_a          event_files 2   joined 1   not_found 1" in page
    assert "  thun_01_a/000001.npy: no window of its sequence holds these events" in page
    out, notes = told(capsys, "questions", "cut", "--dsec", "DSEC", "--out", "qa.jsonl")
    assert out == "qa.jsonl: 4 questions about 4 windows of 2 recordings\n"
    assert "note: 2 recordings are missing or not joined: their questions are left out\n" in notes
    assert "note: 4 of 6 event files are joined with their sequences; 1: no window" in notes
    first = json.loads((tmp_path / "qa.jsonl").read_text().splitlines()[0])
    begin = trees.START_US
    assert first["recording"] == "DSEC/train/interlaken_00_c"
    assert first["window"] == [begin, begin + trees.FRAME_US]
    (tmp_path / "ask.txt").write_text("What moves?\n")
    words = ("questions", "cut", "--dsec", "DSEC", "--ask", "ask.txt", "--out", "asked.jsonl", "--json")
    found = json.loads(told(capsys, *words)[0])
    assert (found["questions"], found["windows"], found["left_out"], len(found["missing"])) == (4, 4, 0, 2)


def test_a_recording_is_cut_into_windows_that_a_comparison_asks_about(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair, only=(): pair)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ask.txt").write_text("What is ahead?\n")
    words = ("questions", "example:street", "--ask", "ask.txt", "--window", "0.4s", "--stride", "200ms", "--out", "qa.jsonl")
    assert told(capsys, *words)[0] == "qa.jsonl: 3 questions about 3 windows of 1 recording\n"
    asked = read_questions(tmp_path / "qa.jsonl")
    starts = [question.window[0] for question in asked if question.window is not None and question.window[0] is not None]
    assert [start - starts[0] for start in starts] == [0, 200_000, 400_000]
    methods = ("--method", "autoregressive", "--method", "prior", "--max-new-tokens", "8")
    assert run(["bench", "compare", "--questions", "qa.jsonl", *methods, "--out", "rows.jsonl"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["window"] for row in rows[::2]] == [list(question.window or ()) for question in asked]
    assert {row["answer"] for row in rows} == {""}


def test_images_and_conversations_become_questions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = trees.llava(tmp_path / "data")
    page, notes = told(capsys, "questions", root, "--out", tmp_path / "qa.jsonl")
    assert page == f"{tmp_path / 'qa.jsonl'}: 4 questions about 3 recordings\n"
    assert "note: 1 recording is missing" in notes
    assert "note: 1 records are text alone" in notes
    assert "files 3   of 4" in told(capsys, "verify", root)[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((".", "--window", "1s"), "--window and --stride cut recordings that --ask asks about: give --ask"),
        ((".", "--stride", "1s"), "--window and --stride cut recordings that --ask asks about: give --ask"),
        (("example:street", "--ask", "ask.txt", "--stride", "1s"), "--stride is from one window to the next: give --window"),
        (
            ("example:street", "--ask", "ask.txt", "--window", "0"),
            "--window 0 is no length of time: give one such as 1s",
        ),
        (("example:street", "--ask", "ask.txt", "--window", "-1s"), "--window -1s is no length"),
        (("example:street", "--ask", "ask.txt", "--window", "nans"), "--window nans is no length"),
        (("example:street", "--ask", "ask.txt", "--window", "1s", "--stride", "1min"), "--stride 1min is no length"),
        (("example:street", "--ask", "ask.txt", "--window", "2s"), "less than one window of 2000000"),
        (("example:street", "--ask", "ask.txt", "--window", "9" * 40), "is no length of time"),
        (("example:street", "--ask", "ask.txt", "--split", "val"), "--split chooses the questions of a data set"),
        (("example:street", "--ask", "ask.txt", "--dsec", "dsec"), "is a recording, --recordings and --dsec are for data sets"),
        (("example:road", "--ask", "ask.txt"), "there is no example:road"),
        (("none", "--ask", "ask.txt"), "none: no such file"),
        (("example:street", "--ask", "none.txt"), "none.txt: no such file"),
        (("example:street", "--ask", "empty.txt"), "empty.txt: the file is empty"),
        (("dsec", "--ask", "ask.txt", "--recordings", "dsec"), "DSEC has its own recordings: leave --recordings out"),
        (("dsec", "--ask", "ask.txt", "--kind", "coco"), "kind 'coco' is unknown"),
        (("cut", "--dsec", "none"), "none: no such folder of DSEC sequences"),
        (("cut", "--dsec", "cut"), "cut: has no DSEC sequence"),
        (("cut", "--dsec", "dsec", "--ask", "ask.txt", "--window", "1s"), "--dsec finds the windows that event files are"),
        (("dsec", "--dsec", "dsec"), "is DSEC, --dsec is for event files of EventGPT's"),
    ],
)
def test_windows_and_joins_that_cannot_be_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    trees.dsec(tmp_path / "dsec")
    trees.cut_of_dsec(tmp_path / "cut")
    (tmp_path / "ask.txt").write_text("What is ahead?\n")
    (tmp_path / "empty.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert says in line(capsys, "questions", *words, "--out", "qa.jsonl")
    assert not (tmp_path / "qa.jsonl").exists()


def test_a_damaged_json_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    damaged = tmp_path / "instructions.json"
    damaged.write_text("{not json")
    for words in ((tmp_path,), (damaged,), (tmp_path, "--kind", "eventgpt")):
        for command in (("verify",), ("questions", "--out", tmp_path / "qa.jsonl")):
            assert f"{damaged}: is not readable JSON" in line(capsys, *command, *words)
    damaged.rename(tmp_path / "test_q.json")
    out, _ = told(capsys, "verify", tmp_path)
    assert f"{tmp_path / 'test_q.json'}: is not readable JSON" in out and "  test_a.json" in out
