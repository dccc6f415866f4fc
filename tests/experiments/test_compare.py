"""`bench compare`: interleaved rows, one summary, figures by their one definition."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from eventspec.ask import generate
from eventspec.core import BadInput, Sampling, Window
from eventspec.engine.drafts import Drafts
from eventspec.experiments import arms
from eventspec.experiments.arms import Recordings
from eventspec.experiments.compare import Comparison, Interrupted, arms_of, compare
from eventspec.experiments.figures import Row, summary
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, load_folders, load_pair
from eventspec.pairs.auto import Chooser
from eventspec.pairs.pair_file import DATA
from eventspec.recordings.qa import Question, read_questions

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

CLIPS = DATA / "clips"


def row(method: str, total: float, first: float, ids: list[int], vision: list[int] | None = None) -> dict[str, object]:
    return {
        "method": method,
        "drafter": method,
        "events": "real",
        "context": "cold",
        "lossless": True,
        "device_plan": "one",
        "token_ids": ids,
        "text": "yes",
        "answer": "yes",
        "timing_ms": {
            "drafter_prefill": None,
            "total": total,
            "first_committed": first,
            "first_provisional": None,
            "decode": total - first,
        },
        "speculation": {
            "rounds": 2,
            "drafted_rounds": 1,
            "ready_rounds": 1,
            "accepted": len(ids) - 2,
            "drafted_levels": 4,
            "drafted": 9,
            "provisional": 5,
            "retracted": 1,
        },
        "recording": "clip",
        "rounds_ms": {"all": 10.0, "model": 9.0},
        "vision": vision,
        "first_difference": None,
    }


def test_speedups_and_ceilings_are_ratios_of_sums() -> None:
    base = [row("autoregressive", 100, 50, [1, 2]), row("autoregressive", 300, 50, [1, 2, 3, 4])]
    fast = [row("prior", 50, 50, [1, 2], [1, 2]), row("prior", 200, 50, [1, 2, 3, 4], [1, 1])]
    found = summary([*base, *fast], ["autoregressive", "prior"], {})["methods"]["prior"]
    assert found["speedup"] == pytest.approx(400 / 250)
    assert found["ceiling"] == pytest.approx(400 / 100)
    assert found["decode_speedup"] == pytest.approx(300 / 150)
    assert found["acceptance_nodes"] == pytest.approx(2 / 18)
    assert found["provisional_kept"] == pytest.approx(0.8)
    assert found["overhead_share"] == pytest.approx(0.1)
    assert found["tau"] == pytest.approx(6 / 4)
    assert found["acceptance"] == pytest.approx(2 / 8)
    assert found["acceptance_vision"] == pytest.approx(2 / 3)
    assert found["slower_share"] == 0


def test_an_interval_of_a_ratio_holds_the_ratio() -> None:
    above, below = [10.0, 20, 30, 40, 20], [5.0, 10, 20, 10, 10]
    assert ratio_interval(above[:4], below[:4], range(4)) is None, "too few"
    interval = ratio_interval(above, below, range(5))
    assert interval is not None
    ratio = ratio_of_sums(above, below)
    assert ratio is not None
    assert interval[0] <= ratio <= interval[1]
    assert ratio_of_sums([], []) is None


def test_samples_of_one_recording_do_not_make_an_interval_narrower() -> None:
    rng = np.random.default_rng(0)
    above, below = rng.uniform(1, 3, 40), np.ones(40)
    alone = ratio_interval(above, below, range(40))
    tenfold = ratio_interval(np.repeat(above, 10), np.repeat(below, 10), np.repeat(range(40), 10).tolist())
    assert alone == pytest.approx(tenfold)
    assert ratio_interval(above, below, ["one"] * 40) is None


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8])
def test_compare_writes_a_row_for_every_question_and_way(temperature: float, tmp_path: Path) -> None:
    pair = load_pair("embedded", "two")
    asked = [
        Question("1", CLIPS / "street_scene", "Describe the scene.", "?"),
        Question("2", CLIPS / "davis346_traffic_1s", "How many road users are visible?", "?"),
    ]
    methods = ["autoregressive", "cross-modal", "prior"]
    names = ["autoregressive", "cross-modal", "cross-modal, shuffled events", "cross-modal, blank events", "prior"]
    names.append("autoregressive, all cores")
    out = tmp_path / "rows.jsonl"
    sampling = Sampling(max_new_tokens=24, temperature=temperature)
    found = compare(Comparison(pair, asked, methods, sampling, ["real", "shuffled", "blank"]), out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["question_id"], r["method"]) for r in rows] == [(q.id, w) for q in asked for w in names]
    for arm in names:
        assert found["methods"][arm]["identical"] == 2
    assert set(found["methods"]["cross-modal"]["against"]) == {*names[2:5]}
    assert found["methods"]["autoregressive"]["acceptance_vision"] is None
    assert found["methods"]["prior"]["acceptance_vision"] == 0, "by definition: the prior is wrong where it is wrong"
    assert found["methods"]["autoregressive"]["speedup"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "rows.vision.jsonl"]


ASKED = [Question(f"{number}", CLIPS / "street_scene", text, "?") for number, text in enumerate(("What is ahead?", "Why?"))]
METHODS = ["autoregressive", "compressed-target", "auto"]
BRIEF = Sampling(max_new_tokens=8)


def unlooked(pair: Pair) -> Comparison:
    return Comparison(pair, ASKED, METHODS, BRIEF, look=False)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def nano() -> Pair:
    return load_pair("nano", "one", fit=False)


@pytest.fixture(scope="module")
def whole(nano: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of a comparison that nobody stopped."""
    out = tmp_path_factory.mktemp("whole") / "rows.jsonl"
    compare(unlooked(nano), out)
    return out


def test_a_row_is_on_the_disk_as_soon_as_it_is_measured(nano: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, counted = tmp_path / "rows.jsonl", list[int]()
    measured = arms._timed

    def counting(*about: Any) -> Row:
        counted.append(len(lines(out)) if out.exists() else 0)
        return measured(*about)

    monkeypatch.setattr(arms, "_timed", counting)
    compare(unlooked(nano), out)
    assert counted == list(range(6))


@pytest.mark.parametrize("kept", [1, 5, 6, *(pytest.param(kept, marks=pytest.mark.long) for kept in (0, 3))])
def test_what_was_cut_off_is_gone_on_with(kept: int, nano: Pair, whole: Path, tmp_path: Path) -> None:
    out, all_rows = tmp_path / "rows.jsonl", lines(whole)
    out.write_text("\n".join([*all_rows[:kept], [*all_rows, all_rows[0]][kept][:40]]))
    found = compare(unlooked(nano), out, resume=True)
    assert lines(out)[:kept] == all_rows[:kept], "as they were"
    samples = [
        [(row["method"], row["question_id"], row["token_ids"]) for row in map(json.loads, lines(p))] for p in (out, whole)
    ]
    assert samples[0] == samples[1]
    tokens = {(method, question): ids for method, question, ids in samples[0]}
    same = sum(tokens["compressed-target", q.id] == tokens["autoregressive", q.id] for q in ASKED)
    assert found["n"] == 2 and found["methods"]["auto"]["identical"] == 2 > found["methods"]["compressed-target"]["identical"]
    assert found["methods"]["compressed-target"]["identical"] == same
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_what_auto_learnt_is_not_forgotten(nano: Pair, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught = list[str]()
    monkeypatch.setattr(Chooser, "learn", lambda self, name, asked, answered: taught.append(name))
    out = tmp_path / "rows.jsonl"
    out.write_bytes(whole.read_bytes())
    compare(unlooked(nano), out, resume=True)
    assert taught == [row["chosen"] for row in map(json.loads, lines(whole)) if row["method"] == "auto"]


def test_an_interrupt_keeps_what_there_is_and_tells_it(nano: Pair, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as told:
        compare(unlooked(nano), out, interrupted)
    assert (told.value.rows, told.value.wanted) == (3, 6)
    assert told.value.summary is not None and told.value.summary["n"] == 1
    assert len(lines(out)) == 3
    with pytest.raises(BadInput, match="holds rows already: go on with them by --resume"):
        compare(Comparison(nano, ASKED, METHODS, BRIEF), out)
    assert len(lines(out)) == 3


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"methods": ["autoregressive", "compressed-target"]}, "holds rows of 'auto'"),
        ({"methods": [*METHODS, "prior"]}, "measured without 'prior'"),
        ({"sampling": Sampling(max_new_tokens=9)}, "max_new_tokens 8, not 9"),
        ({"questions": ASKED[:1]}, "holds question 1"),
        ({"questions": [ASKED[0], Question("1", CLIPS / "street_scene", "Who?", "?")]}, "holds question 1"),
        ({"about": {"dtype": "bfloat16"}}, "dtype None, not bfloat16"),
    ],
)
def test_rows_of_another_comparison_are_not_gone_on_with(
    other: dict[str, Any], says: str, nano: Pair, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_bytes(whole.read_bytes())
    with pytest.raises(BadInput, match=says):
        compare(replace(Comparison(nano, ASKED, METHODS, BRIEF), **other), out, resume=True)
    assert out.read_bytes() == whole.read_bytes()


def test_rows_of_another_pair_and_files_that_hold_no_rows(nano: Pair, whole: Path, tmp_path: Path) -> None:
    out, first = tmp_path / "rows.jsonl", lines(whole)[0]
    asked = Comparison(nano, ASKED, METHODS, BRIEF)
    for text, says in (
        (first.replace('"weights": "', '"weights": "0'), "was measured with weights 0"),
        (json.dumps({**json.loads(first), "settings": None}), "does not say how its rows were measured"),
        (f"{first}\nnonsense\n{first}", "line 2 is no row"),
        (f"{first}\n{first}", "line 2 repeats question 0 of autoregressive"),
    ):
        out.write_text(text + "\n")
        with pytest.raises(BadInput, match=says):
            compare(asked, out, resume=True)
        assert out.read_text() == text + "\n"


def test_looks_are_kept_beside_the_rows_and_not_repeated(nano: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.jsonl"
    gone = {"question_id": "9", "method": "cross-modal", "vision": None, "note": "of rows that are gone"}
    (tmp_path / "rows.vision.jsonl").write_text(json.dumps(gone) + "\n")
    asked = Comparison(nano, ASKED, ["autoregressive", "cross-modal"], BRIEF)
    found = compare(asked, out)["methods"]["cross-modal"]
    assert len(lines(tmp_path / "rows.vision.jsonl")) == 2 and found["vision_tokens"] > 0
    monkeypatch.setattr("eventspec.experiments.compare.vision_acceptance", lambda *about: None)
    again = compare(asked, out, resume=True)["methods"]["cross-modal"]
    assert again == found


def test_what_several_drafters_name_first_is_what_their_merge_keeps(nano: Pair, tmp_path: Path) -> None:
    blind, seeing = nano.drafter("prior"), nano.drafter("cross-modal")
    assert blind is not None
    assert seeing is not None
    both = Drafts.by(blind, seeing, merge=lambda proposals, budget: proposals[-1])
    pair = nano.with_method("both", replace(nano.method("cross-modal"), drafts=both))
    methods = ["autoregressive", "cross-modal", "both", "prior"]
    found = compare(Comparison(pair, ASKED, methods, BRIEF), tmp_path / "rows.jsonl")["methods"]
    seen = {name: found[name]["acceptance_vision"] for name in methods[1:]}
    assert seen["both"] == seen["cross-modal"] > seen["prior"] == 0


def test_low_precision_is_compared_by_the_targets_own_gap(folders: Folders, tmp_path: Path) -> None:
    how = LoadOptions(dtype=torch.bfloat16, frames=2)
    pair = load_folders(folders.video_llava, folders.eventgpt, how=how, device_plan="one")
    asked = [Question(f"{i}", CLIPS / "davis346_traffic_1s", "is the car on the way" + " then" * i, "?") for i in range(3)]
    asking = Comparison(pair, asked, ["autoregressive", "cross-modal"], Sampling(max_new_tokens=16))
    found = compare(asking, tmp_path / "rows")
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert all("the target runs in bfloat16: identity is claimed in fp32 only" in r["notes"] for r in rows)
    apart = [r["first_difference"] for r in rows if r["first_difference"] is not None]
    assert all(0 <= r["gap"] < 0.5 for r in apart), "apart from near-ties the answers are the same"
    assert found["methods"]["cross-modal"]["identical"] == 3 - len(apart)
    assert found["methods"]["cross-modal"]["acceptance_vision"] is None, "folders bring no prior"


def test_shuffled_events_are_another_recordings_on_this_clock() -> None:
    asked = [Question(str(i), CLIPS / name, "?", "?") for i, name in enumerate(("street_scene", "davis346_traffic_1s"))]
    opened = Recordings(asked)
    for question in asked:
        mixed = opened.get(question, "shuffled")
        real = opened.real(question)
        assert mixed.events is not None
        assert real.events is not None
        assert len(mixed.events) != len(real.events)
        assert mixed.video is real.video
        foreign = opened.get(next(q for q in asked if q is not question))
        assert foreign.events is not None
        assert mixed.events.t[0] - real.span.start_us == foreign.events.t[0] - foreign.span.start_us
    spread, again = (opened.get(asked[0], "scattered").events for _ in range(2))
    own = opened.real(asked[0]).events
    assert own is not None
    assert spread is not None
    assert again is not None
    assert spread.t.tolist() == own.t.tolist()
    assert spread.x.tolist() != own.x.tolist()
    assert again.x.tolist() == spread.x.tolist(), "the same every time"
    silent = opened.get(asked[0], "blank")
    assert silent.events is not None
    assert len(silent.events) == 0


def test_unknown_controls_and_lonely_recordings_are_refused(nano: Pair) -> None:
    asked = [Question("1", CLIPS / "street_scene", "?", "?")]
    with pytest.raises(BadInput, match="unknown control 'loud': choose from real, blank"):
        arms_of(nano, ["prior"], ["loud"])
    for events in (["shuffled"], ["real", "blank"]):
        with pytest.raises(
            BadInput, match=r"none of the methods autoregressive, prior sees events, so .* add the method cross"
        ):
            arms_of(nano, ["autoregressive", "prior"], events)
    with pytest.raises(BadInput, match="two recordings"):
        Recordings(asked).get(asked[0], "shuffled")


def test_questions_are_spread_over_the_recordings(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    names = ["a", "a", "a", "b", "b", "c"]
    for name in names:
        (tmp_path / name).mkdir(exist_ok=True)
    lines = (json.dumps({"recording": name, "question": str(i), "answer": "?"}) for i, name in enumerate(names))
    path.write_text("\n".join(lines))
    assert [q.question for q in read_questions(path, 4)] == ["0", "3", "5", "1"]
    assert len(read_questions(path, None)) == len(read_questions(path, 0)) == len(names)


def test_question_files_name_the_line_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"recording": "a", "question": "b", "answer": "c"}\nnonsense\n')
    with pytest.raises(BadInput, match="line 2"):
        read_questions(path, None)


def test_questions_about_windows_are_answered_about_them_and_rows_say_so(nano: Pair, tmp_path: Path) -> None:
    asked = [
        Question("1", CLIPS / "street_scene", "Describe the scene.", "", window=(0, 300_000)),
        Question("2", CLIPS / "street_scene", "Describe the scene.", "", window=(600_000, None)),
    ]
    out, sampling = tmp_path / "rows.jsonl", Sampling(max_new_tokens=16)
    methods = ["autoregressive", "cross-modal"]
    wanted = Comparison(nano, asked, methods, sampling, ["real", "shuffled"], look=False)
    found = compare(wanted, out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["window"] for row in rows[::3]] == [[0, 300_000], [600_000, None]]
    assert found["methods"]["autoregressive"]["exact_match"] is None, "no right answer is known"
    assert (found["n"], found["recordings"]) == (2, 1)
    for row, window in ((rows[0], Window(0, 300_000)), (rows[3], Window(600_000, 1_000_000))):
        alone = generate(nano, CLIPS / "street_scene", row["question"], "autoregressive", window, sampling)
        assert row["token_ids"] == alone.token_ids
    with pytest.raises(BadInput, match="holds question 1, which is not asked"):
        compare(replace(wanted, questions=[replace(asked[0], window=(0, 310_000)), asked[1]]), out, resume=True)


@pytest.mark.parametrize("contexts", [pytest.param(["warm"], marks=pytest.mark.long), ["cold", "live"]])
def test_a_lossy_answer_is_told_in_every_context(contexts: list[str], tmp_path: Path) -> None:
    """What is compared is the baseline of the same question, whatever its arm is called."""
    pair, out = load_pair("nano", "one", fit=False), tmp_path / "rows.jsonl"
    texts = ("Describe the scene.", "What did you see?")
    questions = [Question(str(number), CLIPS / "street_scene", text, "-") for number, text in enumerate(texts)]
    methods, sampling = ["autoregressive", "prior", "compressed-target", "auto"], Sampling(max_new_tokens=24)
    found = compare(Comparison(pair, questions, methods, sampling, contexts=contexts, look=False), out)["methods"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["context"] for row in rows} == set(contexts)
    last = contexts[-1]
    assert found[f"prior, {last}"]["identical"] == found[f"auto, {last}"]["identical"] == 2
    assert found[f"compressed-target, {last}"]["identical"] < 2
    kept = [row for row in rows if row["context"] != "cold" and row["drafter"] == "autoregressive"]
    assert all(row["timing_ms"]["target_vision"] is None for row in kept), "read before the clock ran"
    if "cold" in contexts:
        first = {row["context"]: row["timing_ms"]["first_committed"] for row in rows if row["drafter"] == "autoregressive"}
        assert first["live"] < first["cold"]
        assert found["autoregressive, live"]["speedup"] == pytest.approx(1.0), "against its own context"
