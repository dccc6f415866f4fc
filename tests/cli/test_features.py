"""``train features`` and ``bench gaps``: what is refused, and how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eventspec.cli import run
from eventspec.pairs import bundled
from eventspec.pairs.pair_file import DATA, PairFile

SCENE = DATA / "clips/street_scene"


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must be refused; its one line."""
    code = run([str(word) for word in words])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1, said.err
    return said.err


def asking(path: Path, *recordings: Path) -> Path:
    """A qa.jsonl about recordings."""
    rows = [{"recording": str(recording), "question": "What is ahead?"} for recording in recordings]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_features_refuse_what_they_cannot_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, nano = tmp_path / "out", bundled()["nano"]
    PairFile.of_checkpoints(tmp_path / "mine", nano / "target", nano / "drafter", "mine", {}).folder.mkdir()
    PairFile.of_checkpoints(tmp_path / "mine", nano / "target", nano / "drafter", "mine", {}).write()
    one, two = asking(tmp_path / "one.jsonl", SCENE), tmp_path / "two.jsonl"
    shutil.copytree(SCENE, tmp_path / "scene")
    asking(two, SCENE, tmp_path / "scene")
    features, mine = ("train", "features", "--out", out), ("--pair", tmp_path / "mine")
    assert "no pair 'nobody'" in refused(capsys, *features, "--pair", "nobody")
    assert "one recording is too few" in refused(capsys, *features, "--limit", 1)
    assert "one recording is too few" in refused(capsys, *features, *mine, "--questions", one)
    assert "does not exist" in refused(capsys, *features, *mine, "--questions", tmp_path / "none.jsonl")
    assert "--max-new-tokens is for --questions" in refused(capsys, *features, "--max-new-tokens", 20)
    assert "would change" in refused(capsys, "train", "features", "--out", tmp_path / "scene/f", *mine, "--questions", two)
    assert "holds no run that --resume" in refused(capsys, *features, "--resume")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    assert "not an empty folder" in refused(capsys, "train", "features", "--out", tmp_path / "full")
    assert "is no folder" in refused(capsys, *features, "--work", tmp_path / "full/x")
    assert not out.exists()


def test_gaps_refuse_what_they_cannot_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "holds no states: `eventspec train features` writes one" in refused(capsys, "bench", "gaps", tmp_path)
    assert "neither a .png nor a .svg" in refused(capsys, "bench", "gaps", tmp_path, "--out", tmp_path / "figure.gif")
    assert "would change" in refused(capsys, "bench", "gaps", tmp_path, "--out", tmp_path / "figure.png")


def test_questions_go_with_a_pair_of_checkpoints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(SCENE, tmp_path / "scene")
    asked = asking(tmp_path / "qa.jsonl", SCENE, tmp_path / "scene")
    assert run(["train", "features", "--out", str(tmp_path / "out"), "--questions", str(asked)]) == 2
    assert "pair nano learns from rendered clips: leave --questions out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
