"""`bench compare` from the command line: killed, interrupted and gone on with, refused in time, with checkpoint folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventspec.cli import run
from eventspec.experiments import arms
from eventspec.experiments.figures import Row
from eventspec.pairs.pair_file import DATA, PairFile

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

ASKED = ("What is ahead?", "Describe the scene.", "How many road users are visible?", "Why?", "Who is there?", "Where?")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A comparison of two methods on a pair that is loaded quickly."""
    monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair, only=(): pair)
    clip = str(DATA / "clips/street_scene")
    asked = [json.dumps({"recording": clip, "question": text, "answer": "?"}) for text in ASKED]
    (tmp_path / "qa.jsonl").write_text("\n".join(asked))
    methods = ["--method", "autoregressive", "--method", "prior", "--max-new-tokens", "12", "--device-plan", "one"]
    places = ["--questions", str(tmp_path / "qa.jsonl"), "--out", str(tmp_path / "rows.jsonl")]
    return ["bench", "compare", "--pair", "nano", *methods, *places]


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C behind five rows."""
    measured, done = arms._timed, list[Row]()

    def few(*about: Any) -> Row:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(measured(*about))
        return done[-1]

    monkeypatch.setattr(arms, "_timed", few)


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_keeps_and_tells_what_there_is(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    assert run([*words, "--plot", str(tmp_path / "speeds.svg")]) == 130
    told = capsys.readouterr()
    assert f"stopped: {out} keeps 5 of 12 rows, --resume goes on with it\neventspec: interrupted\n" in told.err
    assert told.out.startswith("identical 2 of 2") and f"rows: {out}, " in told.out and "; picture: " in told.out
    assert len(rows(out)) == 5
    assert "n = 2 questions" in (tmp_path / "speeds.svg").read_text()


@pytest.mark.long
@pytest.mark.parametrize("behind", [1, 7])
def test_a_killed_comparison_keeps_its_rows_and_is_gone_on_with(
    behind: int, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-m", "eventspec", *words], stderr=subprocess.PIPE, env=env)
    until = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < until and (not out.exists() or out.read_bytes().count(b"\n") < behind):
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    kept = out.read_text().split("\n")[:-1]
    assert behind <= len(kept) < 12
    assert run([*words, "--resume"]) == 0
    assert capsys.readouterr().out.startswith("identical 6 of 6")
    assert set(kept) <= set(out.read_text().split("\n"))
    found = [(row["method"], row["question_id"]) for row in rows(out)]
    assert found == [(method, f"{n:06d}") for n in range(1, 7) for method in ("autoregressive", "prior")]
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_what_cannot_be_written_is_refused_before_models_are_loaded(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventspec.pairs.load_pair", lambda *about, **more: pytest.fail("loaded"))
    (tmp_path / "file").write_text("x")
    (tmp_path / "held.jsonl").write_text('{"text": "", "method": "prior", "question_id": "1"}\n')
    for more, says in (
        (["--out", tmp_path / "file/rows.jsonl"], "cannot be written"),
        (["--out", tmp_path], "is a folder"),
        (["--out", os.devnull], "is no ordinary file"),
        (["--out", tmp_path / "held.jsonl"], "holds rows already: go on with them by --resume, or name another file"),
        (["--out", tmp_path / "file"], "file holds no rows of a comparison"),
        (["--plot", tmp_path / "speeds.txt"], "neither a .png nor a .svg"),
        (["--plot", tmp_path / "file/speeds.png"], "cannot be written"),
        (["--dtype", "bfloat16"], "give --target FOLDER"),
    ):
        assert run([*words, *map(str, more)]) == 2
        told = capsys.readouterr()
        assert says in told.err and told.err.count("\n") == 1 and not told.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "held.jsonl", "qa.jsonl"]


def test_held_out_asks_only_about_what_trainings_keep_back(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = DATA / "clips/street_scene"
    assert run([*words, "--held-out"]) == 2
    assert "asks about one recording only, of which trainings keep nothing back" in capsys.readouterr().err
    for name in "ab":
        shutil.copytree(clip, tmp_path / name)
    rows = [{"recording": name, "question": text} for name in "ab" for text in ASKED[:2]]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run([*words, "--held-out", "--limit", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["recordings"], found["environment"]["held_out"]) == (2, 1, True)
    assert "learned_from" not in found


def test_checkpoint_folders_are_compared_as_generate_asks_them(
    folders: Folders, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--target", str(folders.video_llava), "--drafter", str(folders.eventgpt), "--limit", "2"]
    assert words[2:4] == ["--pair", "nano"]  # the checkpoints answer instead
    asked = ["cross-modal" if word == "prior" else word for word in (*words[:2], *words[4:])]
    assert run([*asked, *models, "--drafter", f"{folders.eventgpt}:intersect", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own = f"cross-modal, {folders.eventgpt}:intersect"
    assert set(found["methods"]) == {"autoregressive", "cross-modal", own}
    assert all(figures["identical"] == 2 for figures in found["methods"].values())
    assert found["environment"]["target"] == str(folders.video_llava) and found["environment"]["dtype"] == "float32"
    assert run([*asked, *models, "--resume", "--dtype", "bfloat16"]) == 2
    assert "was measured with dtype float32, not bfloat16" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").unlink()
    assert run([*asked, *models[:2]]) == 2
    assert "add --drafter FOLDER" in capsys.readouterr().err
    assert run([*["autoregressive" if word == "cross-modal" else word for word in asked], *models]) == 2
    assert "--drafter is not used by method autoregressive: it is for --method cross-modal" in capsys.readouterr().err


def test_rows_of_a_pair_of_checkpoints_go_on_as_they_were_measured(
    folders: Folders, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = tmp_path / "pair"
    pair.mkdir()
    PairFile.of_checkpoints(pair, folders.video_llava, None, "mine", {"frames": 2}).write()
    asked = [str(pair) if word == "nano" else "ngram" if word == "prior" else word for word in (*words, "--limit", "2")]
    assert run([*asked, "--frames", "1"]) == 0
    assert all(row["settings"]["frames"] == 1 for row in rows(tmp_path / "rows.jsonl"))
    for other, says in (
        (["--frames", "2"], "frames 1, not None"),
        ([], "frames 1, not None"),
        (["--frames", "1", "--dtype", "bfloat16"], "dtype None, not bfloat16"),
    ):
        assert run([*asked, "--resume", *other]) == 2
        assert says in capsys.readouterr().err
    assert run([*asked, "--resume", "--frames", "1"]) == 0
