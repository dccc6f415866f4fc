"""Adapters that are there, calibrated again: which may be, on what, and that they stay as they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventspec.align.deciding import FITTED
from eventspec.core import BadInput
from eventspec.pairs import bundled
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import digest_of
from eventspec.train import adapters as recipe
from eventspec.train.material import Material, Models
from eventspec.train.recorded import Recorded

NANO = bundled()["nano"]


def test_only_adapters_that_are_there_are_calibrated_again(tmp_path: Path) -> None:
    material: Any = SimpleNamespace(file=PairFile.read(NANO))
    with pytest.raises(BadInput, match="unknown adapter to rows of this pair 'wide': choose from attention"):
        recipe.calibrate_again("nano", material, ["wide"], tmp_path / "out", lambda *said: None)
    assert not (tmp_path / "out").exists()


def test_what_adapters_learned_from_calibrates_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PairFile.read(NANO)
    clips = [tmp_path / "a", tmp_path / "b"]
    source = Recorded.__new__(Recorded)
    source.asked = [SimpleNamespace(resolved=clip) for clip in clips]  # type: ignore[assignment]
    material = Material(Models(file, None, None, None), [], None, SimpleNamespace(source=source))  # type: ignore[arg-type]
    for learned, known in ((clips[1:], True), ([tmp_path / "c"], False)):
        own = file.having_learned("adapters", learned)
        monkeypatch.setattr(recipe.PairFile, "read", classmethod(lambda cls, folder, own=own: own))
        monkeypatch.setattr(Material, "learned_from_judged", False)
        monkeypatch.setattr(recipe, "changed_pair", stopped)
        with pytest.raises(BadInput if known else InterruptedError, match=f"such as {clips[1]}: give" if known else "written"):
            recipe.calibrate_again("nano", material, ["attention"], tmp_path / "out", lambda *said: None)


def stopped(*given: Any) -> Any:
    raise InterruptedError("the pair would be written")


@pytest.mark.long
def test_a_calibration_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    folder = recipe.train("nano", "smoke", recipe.Wanted(["attention"], phases=("calibration",)), tmp_path, lambda *said: None)
    own, shipped = (PairFile.read(place).places("adapters")["attention"] for place in (folder, NANO))
    assert digest_of(own) == digest_of(shipped)
    assert {path.name for path in own.glob("acceptance*.json")} == {fitted.file for fitted in FITTED.values()}
