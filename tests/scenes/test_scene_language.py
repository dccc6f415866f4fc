"""Questions and answers: functions of wording and facts only, and as dense as `scenes.language` promises."""

from __future__ import annotations

import numpy as np
import pytest

from eventspec.scenes.facts import (
    ACTIONS,
    COLOURS,
    DISTANCES_M,
    EGO,
    KINDS,
    LIGHTS,
    SIDES,
    SIGNALS,
    TRENDS,
    Facts,
    RoadUser,
)
from eventspec.scenes.language import FORMS, every_wording, questions


def drawn(seed: int) -> Facts:
    rng = np.random.default_rng(seed)

    def one(of: tuple[str, ...]) -> str:
        return of[int(rng.integers(len(of)))]

    users = []
    for distance in sorted(rng.choice(DISTANCES_M, int(rng.integers(5)))):
        kind = one(KINDS)
        colour = one(COLOURS) if kind == "car" else None
        far, near = (int(metres) for metres in rng.choice((5, 10, 15, 20, 25), 2))
        user = RoadUser(
            kind, one(ACTIONS), colour, int(distance), one(SIDES), 100, one(TRENDS), one(SIDES), one(SIDES), far, near
        )
        users.append(user)
    return Facts(one(EGO), one(LIGHTS), one(SIGNALS), bool(rng.integers(2)), tuple(users))


@pytest.mark.parametrize("seed", range(20))
def test_every_question_has_one_answer_that_depends_on_the_facts_only(seed: int) -> None:
    facts = drawn(seed)
    known = {(qa.kind, qa.question): qa.answer for qa in every_wording(facts)}
    assert len(known) == len(every_wording(facts))
    for order in range(3):
        asked = questions(facts, order)
        assert sorted(qa.kind for qa in asked) == sorted(FORMS)
        assert all(known[qa.kind, qa.question] == qa.answer for qa in asked)


@pytest.mark.parametrize("seed", range(40))
def test_an_answer_names_nothing_that_is_not_there(seed: int) -> None:
    facts = drawn(seed)
    seen = {word for user in facts.users for word in (user.kind, user.colour) if word}
    unseen = ({*KINDS, *COLOURS} - seen) - ({facts.signal} if facts.signal != "none" else set())
    for qa in every_wording(facts):
        words = set(qa.answer.lower().replace(".", " ").replace(",", " ").replace(";", " ").replace(":", " ").split())
        if qa.answer != "No car.":
            assert not words & unseen, qa


@pytest.mark.parametrize("seed", range(40))
def test_full_reports_tell_every_road_user(seed: int) -> None:
    facts = drawn(seed)
    for qa in every_wording(facts):
        if qa.kind in (
            "report",
            "order",
            "dispatch",
            "statement",
            "around",
            "explain",
            "hazard",
            "caption",
            "detail",
            "advice",
            "record",
        ):
            for user in facts.users:
                assert user.kind in qa.answer.lower(), qa
                assert f"{user.distance_m} m" in qa.answer.lower(), qa


@pytest.mark.parametrize("seed", range(40))
def test_what_changed_tells_where_everybody_came_from(seed: int) -> None:
    facts = drawn(seed)
    for qa in every_wording(facts):
        if qa.kind in ("change", "record"):
            for user in facts.users:
                assert user.kind in qa.answer, qa
                assert f" {user.first_m} " in qa.answer, qa
                assert ("behind us" if user.trend == "passed" else f"{user.last_m} m") in qa.answer, qa


def test_different_scenes_get_different_answers() -> None:
    scenes = [drawn(seed) for seed in range(60)]
    for form in ("report", "caption", "dispatch", "nearest", "detail", "change", "advice", "ego"):
        answers = {qa.answer for facts in scenes for qa in every_wording(facts) if qa.kind == form}
        assert len(answers) >= (10 if form == "ego" else 40), form


def test_order_follows_the_question() -> None:
    near, far = (
        RoadUser("bus", "oncoming", None, 5, "right", 100, "closer", "right", "right", 10, 5),
        RoadUser("truck", "parked", None, 20, "left", 100, "steady", "left", "left", 20, 20),
    )
    facts = Facts("slow", "day", "none", False, (near, far))
    answers = {qa.question: qa.answer for qa in every_wording(facts)}
    assert answers["List the road users from left to right."].startswith("Truck")
    assert answers["List the road users from far to near."].startswith("Truck")
    assert answers["List the road users from near to far."].startswith("Bus")
