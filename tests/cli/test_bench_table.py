"""What ``bench compare`` prints for people: the verdict first, every name whole, nothing unbelievable without a word."""

from __future__ import annotations

from typing import Any

import pytest

from eventspec.cli.bench import lines

FIGURES: dict[str, Any] = {
    "lossless": True,
    "control": False,
    "context": "cold",
    "device_plan": "one",
    "tau": 4.2,
    "speedup": 1.3,
    "speedup_ci95": [1.25, 1.35],
    "ceiling": 1.5,
    "identical": 9,
    "ties": 0,
    "total_ms": 12345.6,
    "first_provisional_ms": None,
}
BASE = {**FIGURES, "tau": 1.0, "speedup": 1.0, "speedup_ci95": [1.0, 1.0]}
LOSSY = {**FIGURES, "lossless": False, "speedup": 2.5, "speedup_ci95": [2.4, 2.6], "identical": 2}
LONG = "cross-modal, somewhere/on/this/machine/drafter_fine:retokenize, warm"


def page(width: int = 80, recordings: int = 9, **methods: dict[str, Any]) -> list[str]:
    found = {"n": 9, "recordings": recordings, "environment": {"device_plan": "one"}, "methods": methods}
    return lines(found, width)


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_no_name_and_no_figure_is_cut(width: int) -> None:
    names = ("eagle", "specvlm", "ngram", "compressed-target", "cross-modal, drafter_fine:auto", LONG)
    told = page(width, autoregressive=BASE, **{name: dict(FIGURES) for name in names})
    assert all(any(line.startswith(name) for line in told) for name in names)
    assert "\n".join(told).count("1.25 .. 1.35") == len(names)
    assert max(map(len, told)) <= max(width, len(LONG))
    assert "provisional" not in told[2 + len(names)], "a column that nobody has"


def test_a_method_that_did_not_draft_says_why() -> None:
    told = page(autoregressive=BASE, eagle={**FIGURES, "tau": 1.0, "declined": 8})
    assert "drafts" in told[2] and next(line for line in told if line.startswith("eagle")).endswith("declined: cost, 8 of 9")
    assert "drafts" not in page(autoregressive=BASE, eagle={**FIGURES, "declined": 0})[2]


def test_the_verdict_stands_first() -> None:
    assert page(autoregressive=BASE, auto=FIGURES, eagle=FIGURES)[0] == "identical 9 of 9; auto 1.30x, of 1.50x possible"
    assert page(autoregressive=BASE, eagle=FIGURES)[0] == "identical 9 of 9; fastest: eagle 1.30x, of 1.50x possible"
    assert page(autoregressive=BASE)[0] == "identical 9 of 9"
    blind = " ".join(page(autoregressive=BASE, auto=FIGURES, prior={**FIGURES, "control": True, "speedup": 1.4})[:2])
    assert blind.startswith("identical 9 of 9; auto 1.30x, of 1.50x possible; but the control prior: 1.40x")
    assert page(autoregressive=BASE, eagle={**FIGURES, "identical": 8})[0].startswith("NOT identical, of 9: eagle 8;")
    alone = {name: value for name, value in FIGURES.items() if name not in ("speedup", "speedup_ci95", "ceiling", "identical")}
    assert page(eagle=alone)[0] == "no speedups: they take the baseline too, --method autoregressive"


def test_contention_stands_in_the_verdict() -> None:
    busy = {"autoregressive, all cores": {**BASE, "speedup": 0.08}}
    assert "busy with something else: autoregressive, all cores 0.08x" in " ".join(
        page(autoregressive=BASE, eagle=FIGURES, **busy)[:3]
    )


def test_controls_and_lossy_methods_stand_apart() -> None:
    told = page(lossy_one=LOSSY, prior={**FIGURES, "control": True}, autoregressive=BASE, eagle=FIGURES)
    heads = [line.split(":")[0] for line in told[2:10] if not line.startswith("method")]
    assert [head.split()[0] if head else "" for head in heads] == [
        "autoregressive",
        "eagle",
        "",
        "controls",
        "prior",
        "",
        "lossy",
    ]
    assert told[10].split() == ["lossy_one", "2.50x", "2.40", "..", "2.60", "-", "4.20", "2", "of", "9"]


@pytest.mark.parametrize(
    ("where", "says"), [({}, "; --held-out asks about those alone"), ({"held_out": True}, "prior, mixture.")]
)
def test_what_was_learned_from_is_told(where: dict[str, bool], says: str) -> None:
    found = {"n": 9, "recordings": 9, "environment": {"device_plan": "one", **where}, "methods": {"autoregressive": BASE}}
    told = " ".join(lines({**found, "learned_from": {"questions": 7, "parts": ["prior", "mixture"]}}, 400))
    assert "7 of 9 questions are about recordings that parts of this pair learned from: prior, mixture" in told
    assert says in told
    assert "In-sample" not in " ".join(lines(found, 400))


def test_an_interval_says_its_n_or_why_there_is_none() -> None:
    few = {**FIGURES, "speedup_ci95": [None, None]}
    told = " ".join(page(recordings=4, autoregressive=few, eagle=few))
    assert "Too few recordings for intervals: n = 4, at least 5 are needed." in told and ".." not in told
    some = " ".join(page(autoregressive=BASE, eagle=FIGURES))
    assert "95 %, studentized bootstrap over recordings, n = 9. With fewer than 20 they are too narrow: in simulations" in some


def test_nobody_is_above_the_ceiling_without_a_word() -> None:
    above = {**FIGURES, "speedup": 1.6}
    told = " ".join(page(400, autoregressive=BASE, eagle=above, lossy_one=LOSSY))
    assert "eagle is above the ceiling of 1.50x, which can only be noise" in told
    assert told.count("is above the ceiling") == 1, "a lossy one stands apart"
    told = " ".join(page(400, autoregressive=BASE, cores={**above, "device_plan": "two"}))
    assert "cores is above the ceiling of 1.50x, which is that of the target on device plan one, this ran on plan two" in told
    assert "eagle: 1 of the differences are near ties" in " ".join(page(autoregressive=BASE, eagle={**FIGURES, "ties": 1}))
