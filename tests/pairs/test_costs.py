"""Costs are measured once for a pair and a machine, kept in a file, and measured anew when either changes or the file is
damaged."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import pytest

from eventspec.ask.generation import generate
from eventspec.core import Request, Trace
from eventspec.engine.workers import Workers
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, costs, load_pair, warming
from eventspec.pairs.costs import SELDOM, CostsFile, MethodCosts, cache_folder, fitted, guessed, place_of
from eventspec.pairs.warming import beside_pays
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
        return CostsFile(tmp_path / "unused", {"eagle": MethodCosts(1.5, 0.5, 0.25, 0.002, True, 64)}).followed(pair)

    monkeypatch.setattr(costs, "warm_up", measure)
    return times


def test_costs_are_measured_once(pair: Pair, measured: list[int]) -> None:
    first, second = fitted(pair), fitted(pair)
    assert len(measured) == 1
    policy = first.method("eagle").policy
    assert (policy.node_cost, policy.level_cost, policy.step_seconds, policy.tail) == (0.5, 0.25, 0.002, 64)
    assert {name: m.policy for name, m in first.methods.items()} == {name: m.policy for name, m in second.methods.items()}
    assert policy.max_nodes == pair.method("eagle").policy.max_nodes, "only what is measured changes"


def row(**wrong: object) -> bytes:
    good = {"verify_cost": 1, "node_cost": 0.1, "level_cost": 0.1, "step_seconds": 0.1, "beside": True, "tail": 32}
    return json.dumps({"eagle": good | wrong}).encode()


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
        row(verify_cost=-1),
        *(row(step_seconds=wrong) for wrong in (-1, 0, "x", None)),
        row(tail=-1),
        row(tail=[]),
        b'{"eagle": {"node_cost": 0.1, "level_cost": 0.1, "step_seconds": 0.1}}',
    ],
)
def test_a_damaged_file_is_measured_anew(content: bytes, pair: Pair, measured: list[int]) -> None:
    fitted(pair)
    place_of(pair).write_bytes(content)
    fitted(pair)
    assert len(measured) == 2
    assert json.loads(place_of(pair).read_text())["eagle"]["node_cost"] == 0.5


def test_what_is_measured_is_read_again(pair: Pair, measured: list[int]) -> None:
    fitted(pair)
    place_of(pair).write_bytes(row(tail=7))
    assert fitted(pair).method("eagle").policy.tail == 7
    assert len(measured) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_not_missed(pair: Pair, measured: list[int], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert fitted(pair).method("eagle").policy.node_cost == 0.5


def test_another_head_keeps_what_was_measured(pair: Pair, measured: list[int]) -> None:
    found = fitted(pair)
    with_another = {name: method.policy for name, method in found.with_head("eagle3").methods.items()}
    for name in ("eagle", "hybrid"):
        policy = found.method(name).policy
        assert with_another[name].costing_as(policy) == with_another[name]


def test_a_cache_that_is_a_file_is_not_missed(pair: Pair, measured: list[int]) -> None:
    cache_folder().write_text("no folder")
    assert fitted(pair).method("eagle").policy.node_cost == 0.5
    assert cache_folder().read_text() == "no folder"


def test_another_machine_or_pair_has_other_costs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(pair)
    assert place_of(pair) == place
    assert place_of(pair.on("two")) != place
    assert place_of(pair.with_method("mine", pair.method("prior"))) != place
    monkeypatch.setattr(costs, "machine", lambda: {"processor": "another"})
    assert place_of(pair) != place


@pytest.mark.long
def test_what_is_measured_are_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pair: Pair) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = fitted(pair.with_policy(tail=7))
    assert found.method("hybrid").policy.tail == 7, "where nobody drafts beside the target, it is nothing to measure"
    steps = {name: method.policy.step_seconds for name, method in found.methods.items()}
    assert all(1e-5 < seconds < 1 for seconds in steps.values()), steps
    assert 0 < found.method("eagle").policy.node_cost < 2
    assert 0 < found.method("eagle").policy.level_cost < 3


class Answers:
    """In place of `Generation`: what it takes with the drafter beside the target, and before it."""

    took: ClassVar[dict[bool, float]] = {}

    def __init__(self, pair: Pair, request: Request, name: str) -> None:
        self.trace = Trace(marks={"end": self.took[pair.method(name).policy.beside]})

    def result(self) -> Answers:
        return self


@pytest.mark.parametrize(("beside", "before"), [(1.0, 2.0), (2.0, 1.0)])
def test_drafters_work_beside_the_target_where_that_is_sooner(
    beside: float, before: float, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "Generation", Answers)
    monkeypatch.setattr(Answers, "took", {True: beside, False: before})
    workers = Workers("auto")
    monkeypatch.setattr(workers._load, "taken", lambda: 0)
    assert beside_pays(replace(pair, workers=workers), 2) == (beside < before and workers.free > 1)
    monkeypatch.setattr(workers._load, "taken", lambda: 99)
    assert not beside_pays(replace(pair, workers=workers), 2), "somebody else has the core"
    assert beside_pays(pair, 2), "nothing to choose where both share a device"


def test_where_drafters_work_is_kept_with_the_costs(pair: Pair, tmp_path: Path) -> None:
    for beside in (True, False):
        there = MethodCosts.of(pair.with_policy(beside=beside).method("hybrid").policy)
        assert MethodCosts.read(asdict(there)).beside is beside
        assert CostsFile(tmp_path / "costs.json", {"hybrid": there}).followed(pair).method("hybrid").policy.beside is beside


WRONG = MethodCosts(1.0, 0.5, 0.25, 1.0, True, 64)
"""A step of a second."""


def asked_often(pair: Pair, method: str = "eagle", times: int = 4) -> Pair:
    """The pair, after some answers."""
    for seed in range(times):
        generate(
            pair, Recording.open("example:street"), "Describe the scene.", method, seed=seed, temperature=1, max_new_tokens=24
        )
    return pair


def test_costs_follow_what_rounds_take(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "costs/costs.json"
    file = CostsFile(path, {"eagle": WRONG, "prior": WRONG})
    found = asked_often(file.followed(pair)).method("eagle")
    assert found.policy.step_seconds == 1.0, "what was measured stays, and what was learnt is another thing"
    assert found.costed.step_seconds < 0.2
    on_file = {name: MethodCosts.read(row) for name, row in json.loads(path.read_text()).items()}
    assert on_file["eagle"].step_seconds < 0.8, "the next process knows better"
    assert on_file["prior"] == WRONG, "nobody asked it"


def test_a_cost_that_is_given_stays(pair: Pair, tmp_path: Path) -> None:
    followed = CostsFile(tmp_path / "costs.json", {"eagle": WRONG}).followed(pair)
    assert asked_often(followed.with_policy(("eagle",), node_cost=0.3)).method("eagle").costed.node_cost == 0.3
    other = asked_often(followed.with_policy(max_nodes=20)).method("eagle")
    assert other.costed.max_nodes == 20 and other.costed.step_seconds < 0.2
    asked = asked_often(followed.with_policy(node_cost=0.3, learn=True)).method("eagle")
    assert asked.policy.node_cost == 0.3 != asked.costed.node_cost


def test_who_learnt_on_another_placement_learns_anew(pair: Pair, tmp_path: Path) -> None:
    followed = asked_often(CostsFile(tmp_path / "costs.json", {"eagle": WRONG}).followed(pair))
    with followed.on("two") as elsewhere:
        assert elsewhere.method("eagle").costed.step_seconds == 1.0
    assert followed.with_head("eagle3").method("eagle").costed.step_seconds == 1.0


def test_a_file_is_written_seldom_and_for_a_reason(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(costs.time, "monotonic", lambda: now[0])
    path, policy = tmp_path / "costs.json", pair.method("eagle").policy
    file = CostsFile(path, {"eagle": MethodCosts.of(policy)})
    file.learnt("eagle", replace(policy, node_cost=policy.node_cost * 1.1))
    assert not path.exists(), "near enough"
    file.learnt("eagle", replace(policy, node_cost=policy.node_cost * 2))
    assert json.loads(path.read_text())["eagle"]["node_cost"] == policy.node_cost * 2
    for later, expected in ((0.0, 2), (SELDOM + 1, 4)):
        now[0] += later
        file.learnt("eagle", replace(policy, node_cost=policy.node_cost * 4))
        assert json.loads(path.read_text())["eagle"]["node_cost"] == policy.node_cost * expected


def test_checkpoints_begin_with_a_guess(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    how = LoadOptions()
    guess = guessed(pair, None, how).method("eagle")
    assert guess.costed == guess.policy == pair.method("eagle").policy
    CostsFile(place_of(pair, None, how), {"eagle": WRONG}).write()
    assert guessed(pair, None, how).method("eagle").costed.step_seconds == 1.0
    assert guessed(pair, None, replace(how, frames=4)).method("eagle").costed == guess.policy, "loaded otherwise"
