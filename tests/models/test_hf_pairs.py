"""A pair of checkpoints whose target transformers opens: what that can do, the pair has; the rest is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eventspec.cli import run
from eventspec.scenes.writer import write_scenes


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes, and what is asked about them."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, 2, "test", 5)
    return folder / "qa.jsonl"


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    code = run([str(word) for word in words])
    found = capsys.readouterr()
    assert code == 0, found.err
    made: dict[str, object] = json.loads(found.out)
    return made


@pytest.mark.long
@pytest.mark.parametrize("kind", ["qwen", "llava"])
def test_what_a_target_of_transformers_can_do_its_pair_has(
    kind: str,
    checkpoint: Callable[[str], Path],
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    told(capsys, "models", "pair", "--target", checkpoint(kind), "--out", "pair", "--json")
    learning = ("--questions", questions, "--work", "work", "--preset", "smoke", "--max-new-tokens", "12", "--json")
    told(capsys, "train", "prior", "--pair", "pair", "--out", "a", *learning)
    told(capsys, "train", "heads", "--pair", "a/pair", "--out", "b", "--head", "eagle", *learning)
    told(capsys, "train", "drafter", "--pair", "b/pair", "--out", "c", *learning)
    told(capsys, "train", "lora", "--pair", "c/pair", "--out", "d", *learning)
    asked = ("generate", "--pair", "d/pair", "--recording", questions.parent / "clip_000000", "--prompt", "What is ahead?")
    base = told(capsys, *asked, "--method", "autoregressive", "--max-new-tokens", "12", "--json")
    for method in ("prior", "eagle", "cross-modal", "hybrid", "ngram"):
        found = told(capsys, *asked, "--method", method, "--max-new-tokens", "12", "--draft", "always", "--json")
        assert (found["token_ids"], found["lossless"]) == (base["token_ids"], True), method
    for part in ("adapter", "packer"):
        assert run(["train", part, "--pair", "d/pair", "--out", "e", *map(str, learning)]) == 2
        error = capsys.readouterr().err
        assert "transformers opened this one" in error
        assert not Path("e").exists()
