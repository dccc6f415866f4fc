"""The file of a comparison's rows: what it takes for rows, what it refuses to go on with, and who may write it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventspec.core import BadInput
from eventspec.experiments.rows import RowFile, beside
from eventspec.recordings.qa import Question

ARMS = {"plain": {"events": "real", "context": "cold"}}
ASKED = [
    Question("000001", Path("street/clip_0"), "How many?", "2"),
    Question("000002", Path("street/clip_1"), "How many?", "2"),
]
SETTINGS = {"pair": "nano"}


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    where = {"method": "plain", "events": "real", "context": "cold", "recording": f"clip_{number - 1}"}
    asked = {"question_id": f"{number:06d}", "question": "How many?", "answer": "2"}
    return {"text": "2", **where, **asked, "settings": SETTINGS, **changes}


def kept(path: Path, *rows: dict[str, Any], end: str = "\n") -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows)[: -1 or None] + end if rows else end)
    return path


def test_what_was_cut_off_is_left_out_and_written_over(tmp_path: Path) -> None:
    for cut in ('{"te', '{"text": "2", "meth', '{"text": "2"}\n'):
        path = kept(tmp_path / "rows.jsonl", row(1), end="\n" + cut)
        found = RowFile(path, resume=True)
        assert len(found.rows) == 1
        found.add(row(2))
        found.close()
        assert [json.loads(line)["question_id"] for line in path.read_text().splitlines()] == ["000001", "000002"]


@pytest.mark.parametrize("text", ['{"n": 200}\n', '{"n": 200}', "a letter without an end", '[{"text": 1}]\n'])
def test_a_file_without_rows_is_not_taken_for_one_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="holds no rows of a comparison"):
        RowFile(path, resume=True)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"events": "blank"}, "was measured with events blank, not real"),
        ({"context": "warm"}, "was measured with context warm, not cold"),
        ({"recording": "clip_7"}, "holds question 000001, which is not asked"),
        ({"settings": {"pair": "other"}}, "was measured with pair other, not nano"),
    ],
)
def test_rows_of_another_comparison_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    RowFile(kept(tmp_path / "rows.jsonl", row()), resume=True).check(ARMS, ASKED, SETTINGS)
    with pytest.raises(BadInput, match=said):
        RowFile(kept(tmp_path / "rows.jsonl", row(**change)), resume=True).check(ARMS, ASKED, SETTINGS)


def test_what_stands_beside_the_rows_is_no_file_of_somebody_else(tmp_path: Path) -> None:
    assert beside(tmp_path / "a.jsonl").name == "a.vision.jsonl"
    assert beside(tmp_path / "a.json") != beside(tmp_path / "a.jsonl")
    for theirs in ('{"recording": "a", "question": "b", "answer": "c"}\n', json.dumps(row()) + "\n"):
        (tmp_path / "a.vision.jsonl").write_text(theirs)
        with pytest.raises(BadInput):
            beside(tmp_path / "a.jsonl")
    (tmp_path / "a.vision.jsonl").write_text('{"question_id": "1", "method": "a", "vision": null, "note": null}\n')
    beside(tmp_path / "a.jsonl")


def test_nobody_writes_over_the_rows_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    late, own = RowFile(path), RowFile(path)
    own.add(row(1))
    with pytest.raises(BadInput, match="another process"):
        late.add(row(2))
    own.close()
    with pytest.raises(BadInput, match="another process"):  # it grew meanwhile
        late.add(row(2))
    assert len(RowFile(path, resume=True).rows) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_the_lock_holds_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    own = RowFile(path)
    own.add(row(1))
    code = (
        "import sys; from pathlib import Path; from eventspec.experiments.rows import RowFile\n"
        "RowFile(Path(sys.argv[1]), resume=True).add({'method': 'plain', 'question_id': '9'})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert "is written by another process" in done.stderr
    own.add(row(2))
    own.rewrite([row(1), row(2)])
    assert len(RowFile(path, resume=True).rows) == 2


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        ({"sampling": {"top_p": 0.9}}, {}, "sampling {'top_p': 0.9}, not None"),
        ({}, {"sampling": {"top_p": 0.9}}, "sampling None, not {'top_p': 0.9}"),
        ({"seed": 1}, {"seed": 2}, "seed 1, not 2"),
        ({"learn": True}, {}, "learn on, not off"),
        ({"learn": False}, {"learn": True}, "learn off, not on"),
    ],
)
def test_settings_that_differ_are_named_as_they_are_typed(
    theirs: dict[str, Any], ours: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = kept(tmp_path / "rows.jsonl", row(settings={**SETTINGS, **theirs}))
    with pytest.raises(BadInput, match=re.escape(f"was measured with {said}: give the same")):
        RowFile(path, resume=True).check(ARMS, ASKED, {**SETTINGS, **ours})
