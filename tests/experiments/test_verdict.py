"""The one sentence a comparison ends with names what a reader should not miss."""

from __future__ import annotations

from typing import Any

import pytest

from eventspec.experiments.verdict import grouped, verdict


def own(speedup: float, *, identical: int = 10, lossless: bool = True, control: bool = False) -> dict[str, Any]:
    return {"speedup": speedup, "ceiling": 1.6, "identical": identical, "lossless": lossless, "control": control}


BASELINE = {"autoregressive": own(1.0)}


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (BASELINE, "identical 10 of 10"),
        (BASELINE | {"eagle": own(1.2)}, "identical 10 of 10; fastest: eagle 1.20x, of 1.60x possible"),
        (BASELINE | {"eagle": own(1.3), "auto": own(1.2)}, "identical 10 of 10; auto 1.20x, of 1.60x possible"),
        (
            BASELINE | {"autoregressive, all cores": own(1.26), "eagle": own(1.2)},
            "identical 10 of 10; fastest: eagle 1.20x, of 1.60x possible; but autoregressive, all cores: 1.26x",
        ),
        (
            BASELINE | {"autoregressive, all cores": own(1.1), "eagle": own(1.2)},
            "identical 10 of 10; fastest: eagle 1.20x, of 1.60x possible",
        ),
        (
            BASELINE | {"eagle": own(0.8)},
            "identical 10 of 10; fastest: eagle 0.80x, of 1.60x possible; but autoregressive: 1.00x",
        ),
        (
            BASELINE | {"eagle": own(1.2, identical=9)},
            "NOT identical, of 10: eagle 9; fastest: eagle 1.20x, of 1.60x possible",
        ),
    ],
)
def test_the_verdict_names_the_gain_and_what_is_faster_without_a_draft(methods: dict[str, Any], words: str) -> None:
    assert verdict(methods, 10) == words


def test_a_control_or_a_lossy_method_is_never_the_fastest() -> None:
    methods = BASELINE | {"eagle": own(1.1), "prior": own(1.5, control=True), "skip": own(2.0, lossless=False)}
    assert "fastest: eagle 1.10x" in verdict(methods, 10)
    assert [names for _, names in grouped(methods)] == [["autoregressive", "eagle"], ["prior"], ["skip"]]
