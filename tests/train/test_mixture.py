"""The recipe of a mixture: which questions it is fitted on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventspec.pairs.pair_file import PairFile
from eventspec.recordings.qa import Question
from eventspec.train import mixture as recipe
from eventspec.train.names import Given


class Loaded:
    """A pair that is asked nothing."""

    def with_policy(self, **costs: float) -> Loaded:
        return self

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""


@pytest.fixture
def asked(further: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked about: recordings x, y and z with two questions each, a pair of checkpoints, and drafters of which one is
    right."""
    found, rng = list[str](), np.random.default_rng(0)
    for name in "xyz":
        (tmp_path / name).mkdir()
    rows = [{"recording": name, "question": text} for name in "xyz" for text in ("What?", "Where?")]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "target").mkdir()
    PairFile.of_checkpoints(tmp_path, tmp_path / "target", None, "mine", {}).write()

    def judged(pair: Any, asked: Iterator[tuple[Path, str]], report: Any, count: int) -> Iterator[recipe.Judged]:
        for number, (recording, _) in enumerate(islice(asked, count + further)):
            found.append(recording.name)
            yield recipe.Judged(("a", "b"), rng.normal(size=(600, 2, 4)), rng.random(600) < 0.5, number)

    monkeypatch.setattr(Question, "open", lambda question: question.recording)
    for name, made in (("load_pair", lambda *how, **more: Loaded()), ("judged", judged), ("rounds_of", lambda *what: {})):
        monkeypatch.setattr(recipe, name, made)
    return found


@pytest.mark.parametrize(("further", "places", "learned"), [(0, "xx", 0), (2, "xxyz", 2)])
def test_a_mixture_is_fitted_on_recordings_that_trainings_keep_back(
    places: str, learned: int, asked: list[str], tmp_path: Path
) -> None:
    """On others only where these are too few, and then the report says so."""
    given = Given(tmp_path / "qa.jsonl", tmp_path)
    out = tmp_path.with_name(f"{tmp_path.name}-out")
    recipe.train(str(tmp_path), "smoke", out, lambda *words: None, given=given)
    assert "".join(asked) == places
    report = json.loads((out / "mixture-report.json").read_text())
    assert (report["questions"], report["learned_from"]) == (2, learned)
