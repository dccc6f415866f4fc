"""The page about a pair of one's own: all of its lines, one after the other, as they are written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.pages import command_lines

from eventspec.cli import run
from eventspec.scenes.writer import write_scenes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/own-pair.md"
GOLDENS = ROOT.parent / "shared/goldens"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not GOLDENS.exists(), reason="the goldens are not beside this checkout"),
]
HERE = {"cuda": "cpu", "1s": "400ms"}
"""Instead of what the page says: no GPU, and a clip that is short."""
OURS = {"adapter", "packer"}
"""Trainings that stand between layers of a target of ours."""


def prepared(folder: Path, target: Path) -> None:
    """What the page takes for granted, by the names that it uses."""
    shutil.copytree(target, folder / "Video-LLaVA-7B-hf")
    shutil.copytree(GOLDENS / "eventgpt/checkpoint", folder / "EventGPT-7b")
    shutil.copytree(GOLDENS / "eventgpt/clip", folder / "clip")
    write_scenes(folder / "scenes", 2, "test", 5)
    for number, name in enumerate(("day", "night")):
        (folder / f"scenes/clip_{number:06d}").rename(folder / f"{name}.aedat4")
    (folder / "questions.txt").write_text("What is ahead?\nDescribe the scene.\nIs anybody crossing the road?\nIs it dark?\n")


def lines() -> list[list[str]]:
    return [[HERE.get(word, word) for word in words] for words in command_lines(PAGE.read_text())]


def done(words: list[str]) -> int:
    """The exit code of a line of the page."""
    if words[0] != "cat":
        return run(words[1:])
    *files, arrow, out = words[1:]
    assert arrow == ">"
    Path(out).write_text("".join(Path(file).read_text() for file in files))
    return 0


def test_every_line_runs_on_the_published_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path, GOLDENS / "video_llava/checkpoint")
    for words in lines():
        assert done(words) == 0, " ".join(words)


def test_every_line_that_a_target_of_transformers_can_do(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it cannot do is refused in words, and the next line goes on from the pair that the line before left."""
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path, checkpoint("qwen"))
    refused, instead = set[str](), dict[str, str]()
    for words in lines():
        given = [instead.get(word, word) for word in words[1:]]
        code, error = done([words[0], *given]), capsys.readouterr().err
        if given[0] == "train" and given[1] in OURS:
            assert code == 2
            assert "transformers opened this one" in error
            refused.add(given[1])
            instead[f"{given[given.index('--out') + 1]}/pair"] = given[given.index("--pair") + 1]
        else:
            assert code == 0, f"{' '.join(given)}: {error}"
    assert refused == OURS
