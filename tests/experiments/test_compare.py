"""`bench compare`: interleaved rows, one summary, figures by their one definition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventspec.core import BadInput, Sampling
from eventspec.experiments.compare import Question, Recordings, compare, read_questions, summary
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.pairs import load_pair
from eventspec.pairs.pair import DATA

CLIPS = DATA / "clips"


def row(method: str, total: float, first: float, ids: list[int], vision: list[int] | None = None) -> dict[str, object]:
    return {
        "method": method,
        "token_ids": ids,
        "text": "yes",
        "answer": "yes",
        "timing_ms": {"total": total, "first_committed": first, "first_provisional": None, "decode": total - first},
        "speculation": {"rounds": 2, "accepted": len(ids) - 2, "drafted_levels": 4, "drafted": 9},
        "overhead_share": 0.05,
        "vision": vision,
        "first_difference": None,
    }


def test_speedups_and_ceilings_are_ratios_of_sums() -> None:
    base = [row("autoregressive", 100, 50, [1, 2]), row("autoregressive", 300, 50, [1, 2, 3, 4])]
    fast = [row("prior", 50, 50, [1, 2], [1, 2]), row("prior", 200, 50, [1, 2, 3, 4], [1, 1])]
    found = summary([*base, *fast], ["autoregressive", "prior"], [], {})["methods"]["prior"]
    assert found["speedup"] == pytest.approx(400 / 250)
    assert found["ceiling"] == pytest.approx(400 / 100)
    assert found["decode_speedup"] == pytest.approx(300 / 150)
    assert found["tau"] == pytest.approx(6 / 4)
    assert found["acceptance"] == pytest.approx(2 / 8)
    assert found["acceptance_vision"] == pytest.approx(2 / 3)
    assert found["slower_share"] == 0


def test_an_interval_of_a_ratio_holds_the_ratio() -> None:
    above, below = [10.0, 20, 30, 40], [5.0, 10, 20, 10]
    interval = ratio_interval(above, below)
    assert interval is not None
    ratio = ratio_of_sums(above, below)
    assert ratio is not None
    assert interval[0] <= ratio <= interval[1]
    assert ratio_of_sums([], []) is None


def test_compare_writes_a_row_for_every_question_and_method(tmp_path: Path) -> None:
    pair = load_pair("embedded", "two")
    asked = [
        Question("1", CLIPS / "street_scene", "Describe the scene.", "?"),
        Question("2", CLIPS / "davis346_traffic_1s", "How many road users are visible?", "?"),
    ]
    methods = ["autoregressive", "cross-modal", "prior"]
    out = tmp_path / "rows.jsonl"
    found = compare(pair, asked, methods, Sampling(max_new_tokens=24), "real", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["question_id"], r["method"]) for r in rows] == [(q.id, m) for q in asked for m in methods]
    for method in methods:
        assert found["methods"][method]["identical"] == 2
    assert found["methods"]["autoregressive"]["acceptance_vision"] is None
    assert found["methods"]["prior"]["acceptance_vision"] == 0, "by definition: the prior is wrong where it is wrong"
    assert found["methods"]["autoregressive"]["speedup"] == 1
    assert found["autoregressive_all_cores"]["total_ms"] > 0
    assert list(tmp_path.iterdir()) == [out]


def test_shuffled_events_are_another_recordings_on_this_clock() -> None:
    asked = [Question(str(i), CLIPS / name, "?", "?") for i, name in enumerate(("street_scene", "davis346_traffic_1s"))]
    own, other = Recordings(asked, "real"), Recordings(asked, "shuffled")
    for question in asked:
        mixed = other.get(question.recording)
        real = other.real(question.recording)
        assert mixed.events is not None
        assert real.events is not None
        assert len(mixed.events) != len(real.events)
        assert mixed.video is real.video
        foreign = own.get(next(q.recording for q in asked if q is not question))
        assert foreign.events is not None
        assert mixed.events.t[0] - real.span.start_us == foreign.events.t[0] - foreign.span.start_us
    silent = Recordings(asked, "blank").get(asked[0].recording)
    assert silent.events is not None
    assert len(silent.events) == 0


def test_unknown_controls_and_lonely_recordings_are_refused() -> None:
    asked = [Question("1", CLIPS / "street_scene", "?", "?")]
    with pytest.raises(BadInput, match="real, blank or shuffled"):
        Recordings(asked, "loud")
    with pytest.raises(BadInput, match="two recordings"):
        Recordings(asked, "shuffled")


def test_question_files_name_the_line_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"recording": "a", "question": "b", "answer": "c"}\nnonsense\n')
    assert [q.question for q in read_questions(path, 1)] == ["b"]
    with pytest.raises(BadInput, match="line 2"):
        read_questions(path, None)
