"""Every experiment runs on its smallest sizes, keeps its parts as they come, and gives what the report reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from eventspec.cli import run as command
from eventspec.core import BadInput, Proposal
from eventspec.experiments import reports
from eventspec.experiments.measures import EXPERIMENTS, Experiment, known, run, trained, with_part
from eventspec.experiments.measures import deciding as deciding_measure
from eventspec.experiments.measures.gpu import GpuSetup, measure
from eventspec.experiments.measures.numerics import path_to
from eventspec.experiments.measures.reuse import encoded_by_events, sharing
from eventspec.experiments.measures.setup import Finding, Setup, scene, street
from eventspec.experiments.reports import alignment, deciding, heads, main_job, numerics
from eventspec.experiments.tables import filled
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.train import adapters

QUICK = Setup("nano", quick=True)


def test_every_experiment_has_results_that_a_page_reads() -> None:
    root = Path(__file__).resolve().parents[2]
    there = {path.stem for path in (root / reports.FOLDER).glob("*.json")}
    assert {one.results for one in EXPERIMENTS.values()} == there


def test_parts_are_kept_as_they_come_beside_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = tmp_path / "results.json", list[str]()
    out.write_text('{"other": {"kept": 1}}')

    def stopped(setup: Setup) -> Iterator[Finding]:
        seen.append(json.dumps(setup.known_at(["machine", "first"])))
        yield ("machine", "first"), {"n": 1}
        raise KeyboardInterrupt

    monkeypatch.setitem(EXPERIMENTS, "stopped", Experiment("is stopped", "results", stopped))
    for fresh in (False, False, True):
        with pytest.raises(KeyboardInterrupt):
            run("stopped", QUICK, out, fresh)
        assert json.loads(out.read_text()) == {"other": {"kept": 1}, "machine": {"first": {"n": 1}}}
    assert seen == ["{}", '{"n": 1}', "{}"]
    assert with_part({"a": 1, "b": 1}, (), {"b": 2}) == {"a": 1, "b": 2}
    out.write_text("[]")
    with pytest.raises(BadInput, match="holds no results"):
        known(out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["heeds"], "unknown experiment 'heeds': did you mean heads?"),
        (["heads", "--folder", "."], "heads reads no folders"),
        (["training"], "training reads folders (of `train adapter`): give each with --folder"),
        (["training", "--folder", "nowhere"], "nowhere is no folder"),
        (["heads", "reuse", "--out", "x.json"], "these experiments have results files of their own"),
        (["reuse"], "is in no checkout of eventspec"),
        (["reuse", "--pair", "nowhere", "--quick"], "nowhere"),
    ],
)
def test_calls_that_cannot_be_used_are_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["bench", "run", *words]) == 2
    told = capsys.readouterr().err
    assert says in told and len(told.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["bench", "run"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


def test_paths_of_a_tree_and_frames_that_are_shared() -> None:
    tree = Proposal(np.array([5, 6, 7]), np.array([-1, 0, -1]))
    assert [path_to(tree, node) for node in (-1, 0, 1, 2)] == [[], [5], [5, 6], [7]]
    opened = Recording.open(DATA / "clips/street_scene")
    assert opened.video is not None
    assert encoded_by_events(opened, 0.0) == list(range(len(opened.video)))
    assert encoded_by_events(opened, 1e9) == [0]
    shared = sharing(opened, [0]).video
    assert shared is not None and all(np.array_equal(frame, shared.frames[0]) for frame in shared.frames)


def note(run: Path, output: str, adapter: str) -> None:
    """A training's folder as `train adapter` leaves it, with one adapter and one phase."""
    (run / "pair" / trained.FIGURES).parent.mkdir(parents=True)
    about = {"output": output, "free_running": False, "phases": ["alignment"], "losses": ["cosine"]}
    (run / "run.json").write_text(json.dumps(about))
    right, gaps = {"tokens": 0.5, "leading": 2.0, "answers": 0.1}, dict.fromkeys(("cosine", "l2"), 0.5)
    lines = [{"phase": phase, "adapters": {adapter: right}, "gaps": {adapter: gaps}} for phase in ("", "alignment")]
    (run / "calibration.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (run / "pair" / trained.FIGURES).write_text(json.dumps({"calibration": {adapter: {"parameters": 9}}}))


def test_trainings_of_one_kind_are_told_as_one(tmp_path: Path) -> None:
    for name in ("linear", "blocks"):
        note(tmp_path / name, "rows", name)
    setup = Setup(folders=(tmp_path / "linear", tmp_path / "blocks"))
    found = run("training", setup, None)["training"]["runs"]
    assert len(found) == 1 and found[0]["parameters"] == {"linear": 9, "blocks": 9}
    assert [list(line["adapters"]) for line in found[0]["phases"]] == [["linear", "blocks"]] * 2
    lost = run("losses", setup, None)["losses"]["runs"][0]
    assert lost["cosine"][-1] == {
        "phase": "alignment",
        "adapters": {**lost["cosine"][0]["adapters"]},
        "gaps": {"cosine": 0.5, "l2": 0.5},
    }
    out = tmp_path / "results.json"
    out.write_text('{"losses": {"runs": [{"earlier": []}]}}')
    run("losses", setup, out)
    assert json.loads(out.read_text())["losses"]["runs"] == [{"earlier": []}, lost], "runs stay apart"


def test_a_folder_that_is_no_training_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"output": "rows", "free_running": false, "phases": []}')
    with pytest.raises(BadInput, match=r"calibration\.jsonl is missing: --folder names what `eventspec train` wrote"):
        run("training", Setup(folders=(tmp_path,)), None)


def results_of(folder: Path, *names: str) -> reports.Results:
    """What the smallest runs of experiments give, as the report reads it."""
    for name in names:
        run(name, Setup("nano", quick=True, work=folder), folder / reports.FOLDER / f"{EXPERIMENTS[name].results}.json")
    return reports.Results(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / reports.FOLDER).mkdir(parents=True)
    return tmp_path


def test_heads_answer_as_the_target_does(folder: Path) -> None:
    assert "2 of 2 heads and kinds of tree gave all 1 answers" in heads.identity(results_of(folder, "heads-identity"))


@pytest.mark.long
def test_rounding_and_identity_are_measured_and_reported(folder: Path) -> None:
    results = results_of(folder, "rounding", "identity")
    assert "| 32.0 |" in numerics.rounding(results)
    assert numerics.identity(results).count("| 0 |") == 2
    before = results["identity"]
    assert results_of(folder, "identity")["identity"] == before, "enough was compared"


@pytest.mark.long
def test_comparisons_are_measured_and_reported(folder: Path) -> None:
    results = results_of(folder, "main-job", "reuse", "heads", "trees", "bound", "learning")
    assert main_job.comparison(results).count("\n| cross-modal") == 3
    assert "| 2.0 |" in main_job.reuse(results)
    assert filled("{tau+tau_ci95:.2f}", results["heads"]["table"]["methods"]["eagle:whole"]) != "-"
    assert "eagle, wrong verdicts | " in heads.learning(results)
    assert "eagle | 8 | chain" in heads.trees(results) and "\n| eagle |" in heads.bound(results)


@pytest.mark.long
def test_adapters_and_their_risk_are_measured_and_reported(folder: Path) -> None:
    results = results_of(folder, "alignment", "risk")
    assert "cross-modal, shuffled events" in alignment.drafts(results)
    assert "| risk 0.2 |" in alignment.limits(results) and "predictor" in alignment.areas(results)


@pytest.mark.long
def test_adapters_of_trainings_are_measured_and_reported(folder: Path) -> None:
    runs = []
    for kind, output, reads in (("cached", "rows", "last"), ("autoregressive", "features", "penultimate")):
        runs.append(folder / kind)
        wanted = adapters.Wanted([kind], output, reads=reads)  # type: ignore[arg-type]
        adapters.train("nano", "smoke", wanted, runs[-1], lambda *words: None)
    setup = Setup("nano", quick=True, folders=tuple(runs), work=folder)
    run("adapters", setup, folder / reports.FOLDER / "alignment.json")
    told = alignment.of_trainings(reports.Results(folder))
    arms = [line.split("|")[1].strip() for line in told.splitlines() if line.startswith("| `")]
    assert {"`aligned, cached`", "`aligned, cached, warm`", "`aligned, warm`"} < set(arms)
    assert {"`event-eagle, autoregressive, penultimate`", "`event-eagle, autoregressive, penultimate, shuffled events`"} < set(
        arms
    )
    assert all("| 2 of 2 |" in line for line in told.splitlines() if line.startswith("| `")), "a draft changes no answer"


@pytest.mark.long
def test_rules_are_measured_and_reported(folder: Path) -> None:
    results = results_of(folder, "deciding")
    assert "before training" in deciding.cosines(results)
    assert "`entropy:kind`" in deciding.rules(results) and "| `score:kl` |" in deciding.rules(results)
    assert "skip-encode, predictor" in deciding.speeds(results)
    assert "about any two" in deciding.near(results)


def test_stages_of_a_pair_are_timed_part_by_part() -> None:
    seen = [set(found) for found in measure(GpuSetup("cpu", "float32", 1, 1))]
    assert all(one <= other for one, other in pairwise(seen))
    assert {"drafter_step_ms", "target_prefill_ms", "verify_ms", "tree_ms", "beside_ms"} <= seen[-1]
    with pytest.raises(BadInput, match="unknown --dtype 'int8'"):
        GpuSetup("cpu", "int8").check()


def test_a_share_of_none_or_all_has_the_exact_interval_of_as_many_scenes() -> None:
    """The control: of a share between, the bootstrap's."""
    scenes = [place // 2 for place in range(20)]
    assert deciding_measure.share([0.0] * 20, scenes) == pytest.approx([0.0, 0.0, 1 - 0.025**0.1])
    assert deciding_measure.share([1.0] * 20, scenes) == pytest.approx([1.0, 0.025**0.1, 1.0])
    assert deciding_measure.share([0.0] * 20, scenes, [1.0] * 4 + [0.0] * 16)[2] == pytest.approx(1 - 0.025**0.5)
    assert deciding_measure.share([0.0, 1.0] * 10, scenes) == pytest.approx([0.5, 0.5, 0.5])


def test_a_share_has_no_interval_where_a_draw_may_have_nothing_to_count() -> None:
    ones, scenes = [1.0, *[0.0] * 9], list(range(10))
    assert deciding_measure.share(ones, scenes, [1.0, 1.0, *[0.0] * 8]) == [0.5, None, None]
    value, low, high = deciding_measure.share(ones, scenes)
    assert value == 0.1 and low is not None and high is not None and 0 <= low < high <= 1


def test_a_street_has_questions_with_answers_of_so_many_words(tmp_path: Path) -> None:
    with street(Setup(work=tmp_path), "rows", 1, 1, 3, words=4) as (questions, rows):
        assert 0 < len(questions) <= 3 and all(len(q.answer.split()) >= 4 for q in questions)
    assert rows == tmp_path / "rows.jsonl"
    assert scene(1, 0)[0].name == "scene 0"
