"""``eventspec dataset``: what is there, what is missing, the expected tree, and questions that `bench compare` can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trees

from eventspec.cli import run
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
    assert said.count("\n") == 1 and "2 of 2 recordings without RGB frames, first data" in said and "sees frames" in said
    assert not (tmp_path / "rows.jsonl").exists()
    page = told(capsys, "verify", "data", "--recordings", "data")[0]
    assert page.count(": has no frames") == 2


@pytest.mark.parametrize(("kind", "questions", "recordings"), [("activitynet-qa", 4, 2), ("eventgpt", 3, 2)])
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
    assert {Recording.open(question.recording).source_format for question in asked} <= {"video", "eventgpt-npy"}
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
        (("dsec",), "DSEC has no questions: those with questions are activitynet-qa, eventgpt"),
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


def test_a_damaged_json_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    damaged = tmp_path / "instructions.json"
    damaged.write_text("{not json")
    for words in ((tmp_path,), (damaged,), (tmp_path, "--kind", "eventgpt")):
        for command in (("verify",), ("questions", "--out", tmp_path / "qa.jsonl")):
            assert f"{damaged}: is not readable JSON" in line(capsys, *command, *words)
    damaged.rename(tmp_path / "test_q.json")
    out, _ = told(capsys, "verify", tmp_path)
    assert f"{tmp_path / 'test_q.json'}: is not readable JSON" in out and "  test_a.json" in out
