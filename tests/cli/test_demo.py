"""What the demo says of its rows: the figures of every comparison, an interval once there are repeats enough."""

from __future__ import annotations

from typing import Any

import pytest

from eventspec.cli.demo import figures_of, table_rows, verdict, width

Repeats = list[dict[str, dict[str, Any]]]


def row(
    label: str, total: float, context: str = "cold", lossless: bool = True, ids: tuple[int, ...] = (5, 6, 2)
) -> dict[str, Any]:
    """One measured answer, as a comparison writes it."""
    method = label.split(",")[0]
    return {
        "method": label,
        "drafter": method,
        "chosen": "eagle",
        "events": "real",
        "context": context,
        "device_plan": "two",
        "lossless": lossless,
        "token_ids": list(ids),
        "answer": "-",
        "text": "A car.",
        "timing_ms": {
            "first_provisional": None,
            "drafter_prefill": None,
            "first_committed": 50.0,
            "total": total,
            "decode": 40.0,
        },
        "rounds_ms": {"model": 30.0, "all": 32.0},
        "speculation": {
            "rounds": 2,
            "drafted_rounds": 1,
            "ready_rounds": 0,
            "accepted": 1,
            "drafted": 4,
            "drafted_levels": 2,
            "provisional": 0,
            "retracted": 0,
            "tau": 1.5,
        },
    }


def repeats(own: list[float]) -> Repeats:
    """The target alone takes 100 ms, `auto` what is given."""
    return [
        {
            "autoregressive": row("autoregressive", 100.0),
            "auto": row("auto", total),
            "compressed-target": row("compressed-target", 80.0, lossless=False, ids=(7, 2)),
        }
        for total in own
    ]


def test_with_five_repeats_a_speedup_has_an_interval() -> None:
    says = verdict(repeats([80.0, 81.0, 79.0, 80.0, 80.0]))
    assert says[0] == "Identical to the target's own answer: 2 of 2 lossless rows."
    assert says[1].startswith("auto: 1.25x (1.2")
    assert "n = 5), of 2.00x possible" in says[1]
    assert "50% of its time. It chose eagle." in says[1]
    assert len(says) == 2


def test_with_fewer_it_has_none_and_nothing_is_claimed() -> None:
    says = verdict(repeats([80.0, 80.0]))
    assert "auto: 1.25x (n = 2, too few for an interval)" in says[1]
    assert says[2:] == ["So auto is not reliably faster than the target alone here."]
    assert width(figures_of(repeats([80.0] * 4))["auto"]) == 1.0


def test_what_is_known_badly_is_said() -> None:
    says = verdict(repeats([60.0, 140.0, 80.0, 130.0, 60.0]))
    assert "So auto is not reliably faster than the target alone here." in says
    assert says[-1].startswith("Something else runs on this machine")


def test_an_answer_that_differs_once_is_told() -> None:
    rows = repeats([80.0] * 5)
    rows[3]["auto"] = row("auto", 80.0, ids=(5, 9, 2))
    assert verdict(rows)[0] == "Identical to the target's own answer: 1 of 2 lossless rows."
    cells = {found[1]: found for found in table_rows(rows)}
    assert [cells[label][-1] for label in ("autoregressive", "auto", "compressed-target")] == ["yes", "NO", "NO"]
    assert cells["auto"][5:8] == ("1.25x", "2.00x", "1.50")
    assert cells["compressed-target"][6] == "-", "no ceiling holds for a lossy row"


@pytest.mark.parametrize("own", [[80.0, 81.0, 79.0, 80.0, 80.0]])
def test_the_width_is_that_of_the_interval(own: list[float]) -> None:
    low, high = figures_of(repeats(own))["auto"]["speedup_ci95"]
    assert width(figures_of(repeats(own))["auto"]) == pytest.approx((high - low) / high)


def test_the_second_placement_has_the_drafter_beside_the_encoding() -> None:
    from eventspec.cli.demo import BESIDE, QUESTIONS, SCENE, STRIPS, Bench
    from eventspec.experiments.arms import Arm, Recordings
    from eventspec.pairs import load_pair
    from eventspec.pairs.pair_file import DATA
    from eventspec.recordings.qa import Question

    question = Question(SCENE, DATA / "clips" / SCENE, QUESTIONS[SCENE], "-")
    with load_pair("nano", fit=False) as pair:
        arm = Arm("cross-modal", "cross-modal", pair)
        trace = Bench(pair, {"cross-modal": arm}, [question], Recordings([question])).beside(question)
    began = {lane: min(span.start for span in trace.spans if span.lane == lane) for lane in ("target", "drafter")}
    drafted = min(span.end for span in trace.spans if span.lane == "drafter" and span.stage == "draft")
    assert trace.device_plan == "two" and began["target"] < drafted and began["drafter"] < trace.marks["first_committed"]
    assert BESIDE.split(",")[0] in STRIPS
