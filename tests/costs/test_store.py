"""Costs are measured once for a pair and a machine, kept in a file, and measured anew when either changes, the file is damaged
or rounds contradict it. They go on being learnt."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventspec.ask.generation import generate, generation
from eventspec.core import BadInput
from eventspec.costs import Costs, fit, fitted, learning, store, store_of
from eventspec.costs.store import with_costs
from eventspec.engine.policy import GUESSED
from eventspec.lanes.workers import Workers
from eventspec.machine import cache_folder
from eventspec.models.loading import LoadOptions
from eventspec.nn.cpu import native
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Every time that costs are measured; a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    times: list[int] = []

    def measure(pair: Pair, repeats: int) -> Pair:
        times.append(repeats)
        known: dict[str, Any] = dict.fromkeys(GUESSED, False)
        costs = {name: replace(Costs(**method.policy.measured), **known) for name, method in pair.methods.items()}
        return with_costs(pair, {**costs, "eagle": Costs(1.5, 0.5, 0.25, 0.75, 0.002, True, 64)})

    monkeypatch.setattr(store, "warm_up", measure)
    return times


def test_costs_are_measured_once(pair: Pair, measured: list[int]) -> None:
    first, second = fitted(pair), fitted(pair)
    assert len(measured) == 1
    policy = first.method("eagle").policy
    assert (policy.node_cost, policy.level_cost, policy.step_seconds, policy.tail) == (0.5, 0.25, 0.002, 64)
    assert {name: m.policy for name, m in first.methods.items()} == {name: m.policy for name, m in second.methods.items()}
    assert policy.max_nodes == pair.method("eagle").policy.max_nodes, "only what is measured changes"


def row(**wrong: object) -> bytes:
    costs = dict.fromkeys(("node_cost", "level_cost", "open_cost", "step_seconds"), 0.1)
    good = {"verify_cost": 1, **costs, "concurrent": True, "tail": 32}
    return json.dumps({"eagle": good | wrong}).encode()


def write_all(pair: Pair, **wrong: object) -> None:
    """A file that has a row for every method."""
    one = json.loads(row(**wrong))["eagle"]
    store_of(pair).write_text(json.dumps(dict.fromkeys(pair.methods, one)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"eagle": 3}',
        row(node_cost="NaN"),
        *(row(step_seconds=wrong) for wrong in (-1, 0, "x", None)),
        row(step_seconds=1e12),
        row(verify_cost=0),
        row(open_cost=-1),
        row(concurrent="false"),
        row(tail=0),
        row(tail=-1),
        row(tail=[]),
        b'{"eagle": {"node_cost": 0.1, "level_cost": 0.1, "step_seconds": 0.1}}',
    ],
)
def test_a_damaged_file_is_measured_anew(content: bytes, pair: Pair, measured: list[int]) -> None:
    fitted(pair)
    store_of(pair).write_bytes(content)
    fitted(pair)
    assert len(measured) == 2
    assert json.loads(store_of(pair).read_text())["eagle"]["node_cost"] == 0.5


def test_what_is_measured_is_read_again(pair: Pair, measured: list[int]) -> None:
    fitted(pair)
    write_all(pair, tail=7)
    assert fitted(pair).method("eagle").policy.tail == 7
    assert len(measured) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_not_missed(pair: Pair, measured: list[int], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert fitted(pair).method("eagle").policy.node_cost == 0.5


def test_another_head_keeps_what_was_measured(pair: Pair, measured: list[int]) -> None:
    found = fitted(pair)
    costs_of = {name: method.policy for name, method in found.with_head("eagle3").methods.items()}
    for name in ("eagle", "hybrid"):
        policy = found.method(name).policy
        assert costs_of[name].costing_as(policy) == costs_of[name]


def test_a_cache_that_is_a_file_is_not_missed(pair: Pair, measured: list[int]) -> None:
    cache_folder().write_text("no folder")
    assert fitted(pair).method("eagle").policy.node_cost == 0.5
    assert cache_folder().read_text() == "no folder"


def test_another_machine_or_pair_has_other_costs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    place = store_of(pair)
    assert store_of(pair) == place
    assert store_of(pair.on("two")) != place
    assert store_of(pair.with_method("mine", pair.method("prior"))) != place
    monkeypatch.setattr(store, "machine", lambda: {"processor": "another"})
    assert store_of(pair) != place


def test_other_code_has_other_costs(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {Path(store.__file__).resolve(), *native.SOURCES} <= {path.resolve() for path in store.own_code()}
    module = tmp_path / "kernel.py"
    module.write_text("slow = True")
    monkeypatch.setattr(store, "own_code", lambda: {module})
    place = store_of(pair)
    assert store_of(pair) == place
    module.write_text("slow = False")
    assert store_of(pair) != place


@pytest.mark.long
def test_what_is_measured_are_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pair: Pair) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = fitted(pair.with_policy(tail=7))
    assert found.method("hybrid").policy.tail == 7, "where nobody drafts beside the target, it is nothing to measure"
    steps = {name: method.policy.step_seconds for name, method in found.methods.items()}
    assert all(1e-5 < seconds < 1 for seconds in steps.values()), steps
    assert 0 < found.method("eagle").policy.node_cost < 2
    assert 0 < found.method("eagle").policy.level_cost < 3
    assert 0 < found.method("eagle").policy.open_cost < 50, "it reads the prompt"
    assert found.method("hybrid").policy.open_cost < found.method("eagle").policy.open_cost, "its head reads few rows"
    assert found.method("cross-modal").policy.open_cost == 0, "on a lane of its own, or before the target begins"


@pytest.mark.parametrize(("beside", "before"), [(1.0, 2.0), (2.0, 1.0)])
def test_drafters_work_beside_the_target_where_that_is_sooner(
    beside: float, before: float, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "_answering", lambda pair, method: beside if method.policy.concurrent else before)
    workers = Workers("auto")
    monkeypatch.setattr(workers._load, "taken", lambda: 0)
    assert fit.overlap_pays(replace(pair, workers=workers), 2) == (beside < before and workers.free > 1)
    monkeypatch.setattr(workers._load, "taken", lambda: 99)
    assert not fit.overlap_pays(replace(pair, workers=workers), 2), "somebody else has the core"
    assert fit.overlap_pays(pair, 2), "nothing to choose where both share a device"


def test_where_drafters_work_is_kept_with_the_costs(pair: Pair, tmp_path: Path) -> None:
    for beside in (True, False):
        known = pair.with_policy(concurrent=beside).method("hybrid").policy
        (tmp_path / "costs.json").write_text(json.dumps({"hybrid": known.measured}))
        assert store.read(tmp_path / "costs.json")["hybrid"].concurrent is beside
        assert with_costs(pair, {"hybrid": known}).method("hybrid").policy.concurrent is beside


WRONG = Costs(1.0, 0.5, 0.25, 0.0, 1.0, True, 64)
"""A step of a second."""


def asked_often(pair: Pair, method: str = "eagle", times: int = 4) -> Pair:
    """The pair, after some answers."""
    for seed in range(times):
        settings = {"seed": seed, "temperature": 1, "max_new_tokens": 24}
        generate(pair, Recording.open("example:street"), "Describe the scene.", method, **settings)
    return pair


@pytest.fixture
def wrong(pair: Pair, tmp_path: Path) -> Pair:
    """The pair, with costs that no round bears out."""
    return learning(with_costs(pair, {"eagle": WRONG}), tmp_path / "costs.json", warm=True)


def test_costs_follow_what_rounds_take(wrong: Pair) -> None:
    found = asked_often(wrong).method("eagle")
    assert found.policy.step_seconds == 1.0, "what was measured, and what was learnt, are two things"
    assert found.current_policy.step_seconds < 0.8
    assert generation(wrong, "example:street", "What?", "eagle").policy.step_seconds < 0.8


def test_a_cost_that_is_given_stays(wrong: Pair) -> None:
    given = asked_often(wrong.with_policy(("eagle",), node_cost=0.3)).method("eagle")
    assert given.current_policy == given.policy
    assert wrong.method("eagle").current_policy.step_seconds == 1.0, "the others learnt nothing of it"
    level = asked_often(wrong.with_policy(level_cost=0.1, max_nodes=20)).method("eagle").current_policy
    assert (level.level_cost, level.max_nodes) == (0.1, 20)
    assert level.step_seconds < 0.8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node_cost", -1),
        ("node_cost", "x"),
        ("verify_cost", 0),
        ("step_seconds", float("inf")),
        ("level_cost", True),
        ("worth", 0),
        ("worth", 10**400),
        ("patience", float("nan")),
        ("deadline", None),
        ("tail", 0),
        ("tail", 2.5),
        ("max_nodes", "x"),
        ("head_nodes", -1),
        ("concurrent", 1),
        ("settle", np.zeros(2)),
    ],
)
def test_what_a_policy_cannot_be_is_refused(field: str, value: object, pair: Pair) -> None:
    with pytest.raises(BadInput, match=f"{field} is .{{1,40}}: give"):
        pair.with_policy(**{field: value})


def test_numbers_of_numpy_are_numbers(pair: Pair) -> None:
    policy = pair.with_policy("eagle", tail=np.int64(3), node_cost=np.float32(0.5), patience=2).method("eagle").policy
    assert (policy.tail, policy.node_cost, policy.patience) == (3, 0.5, 2.0)
    assert {type(policy.tail), type(policy.node_cost)} == {int, float}


def test_who_chooses_among_other_methods_chooses_anew(pair: Pair) -> None:
    choice = pair.method("auto").choice
    assert pair.with_policy("hybrid", max_nodes=0).method("auto").choice is not choice
    assert pair.with_policy("ngram", max_nodes=0).method("auto").choice is choice


def test_a_drafter_of_ones_own_begins_with_the_costs_of_the_pair(pair: Pair) -> None:
    known = with_costs(pair, {"autoregressive": WRONG})
    drafter = pair.drafter("prior")
    assert drafter is not None
    policy = known.with_drafter("mine", drafter, max_nodes=5).method("mine").policy
    assert (policy.step_seconds, policy.node_cost, policy.max_nodes) == (1.0, 0.5, 5)
    assert policy.drafting_guessed, "nobody has timed its drafts: no guess declines them"
    assert policy.verifying_guessed == known.method("autoregressive").policy.verifying_guessed


def test_a_pipe_in_the_store_of_the_file_is_not_read(pair: Pair, measured: list[int]) -> None:
    store_of(pair).parent.mkdir(parents=True)
    os.mkfifo(store_of(pair))
    assert fitted(pair).method("eagle").policy.node_cost == 0.5


def test_a_file_without_some_of_the_methods_is_measured_anew(pair: Pair, measured: list[int]) -> None:
    fitted(pair)
    store_of(pair).write_text("{}")
    assert fitted(pair).method("eagle").policy.node_cost == 0.5
    assert len(measured) == 2


def test_what_was_learnt_is_not_of_another_head_target_or_place(wrong: Pair) -> None:
    asked_often(wrong)
    with wrong.on("two") as elsewhere:
        others = [elsewhere, wrong.with_head("eagle3"), wrong.with_target(wrong.target), wrong.with_policy(concurrent=False)]
        assert [other.method("eagle").current_policy.step_seconds for other in others] == [1.0] * 4
    assert wrong.method("eagle").current_policy.step_seconds < 0.8


def test_a_file_that_rounds_contradict_is_measured_anew(
    pair: Pair, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventspec.costs.rounds.SURE_ROUNDS", 12)
    first = fitted(pair)
    write_all(pair, step_seconds=1.0, tail=7)
    asked_often(fitted(pair), times=20)
    assert not store_of(pair).exists()
    assert fitted(first).method("eagle").policy.tail == 64
    assert len(measured) == 2


def test_how_checkpoints_are_loaded_is_part_of_their_costs(pair: Pair) -> None:
    how = LoadOptions()
    assert store_of(pair, None, how) == store_of(pair, None, LoadOptions())
    assert store_of(pair, None, how) != store_of(pair, None, replace(how, dtype=None))
