"""The picture of a comparison: every speedup with its interval, the ceiling, and who stands apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventspec.core import BadInput
from eventspec.experiments.charts import draw

OWN: dict[str, Any] = {
    "lossless": True,
    "control": False,
    "device_plan": "one",
    "tau": 3.0,
    "ceiling": 1.5,
    "identical": 7,
    "ties": 0,
}
METHODS = {
    "autoregressive": {**OWN, "speedup": 1.0, "speedup_ci95": [1.0, 1.0]},
    "eagle": {**OWN, "speedup": 1.25, "speedup_ci95": [1.1, 1.375]},
    "prior": {**OWN, "control": True, "speedup": 1.125, "speedup_ci95": [None, None]},
    "compressed-target": {**OWN, "lossless": False, "identical": 2, "speedup": 2.5, "speedup_ci95": [2.25, 2.75]},
}
FOUND = {"n": 7, "recordings": 7, "environment": {"device_plan": "one"}, "methods": METHODS}


def test_speedups_intervals_and_groups_are_written_on_it(tmp_path: Path) -> None:
    draw(FOUND, tmp_path / "speeds.svg")
    words = (tmp_path / "speeds.svg").read_text()  # matplotlib writes each text beside the shapes of its letters
    for text in ("1.00x", "1.25x  (1.10 .. 1.38)", "1.12x", "2.50x  (2.25 .. 2.75)", *METHODS, "ceiling of lossless methods"):
        assert f"<!-- {text} -->" in words, text
    assert "identical 7 of 7; fastest: eagle 1.25x, of 1.50x possible" in words and "bootstrap over recordings, n = 7" in words
    assert words.index("<!-- controls: they") and words.index("<!-- lossy: other answers")
    assert [path.name for path in tmp_path.iterdir()] == ["speeds.svg"]


def test_a_comparison_without_a_baseline_has_a_picture_that_says_so(tmp_path: Path) -> None:
    alone = {name: value for name, value in OWN.items() if name not in ("ceiling", "identical")}
    draw({**FOUND, "methods": {"eagle": alone}}, tmp_path / "speeds.svg")
    assert "no speedups: they take the baseline too" in (tmp_path / "speeds.svg").read_text()


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        draw(FOUND, tmp_path / "no/speeds.png")
    assert not list(tmp_path.iterdir())
