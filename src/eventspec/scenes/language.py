"""Questions about a street clip and their one right answer: a deterministic function of the wording and the facts.

Answers are dense on purpose: what is said, in which order and in which words depends on the scene, so that a reader who
has not seen it cannot continue them. One wording may ask for another form or order than the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eventspec.scenes.facts import SIDES, Facts, RoadUser
from eventspec.scenes.phrases import (
    EGO,
    LIGHT,
    NUMBERS,
    described,
    doing,
    first_crossing,
    place,
    signal_and_zebra,
    terse,
    thing,
)
from eventspec.scenes.reports import advice, change, detail


@dataclass(frozen=True)
class QA:
    """One question of a kind, and the right answer."""

    kind: str
    question: str
    answer: str


# ------------------------------------------------------------------------------------------------------------ short answers
def _ego(facts: Facts) -> str:
    return f"{EGO[facts.ego].capitalize()} {LIGHT[facts.light]}"


def _moving(facts: Facts) -> str:
    return f"We are {EGO[facts.ego]} {LIGHT[facts.light]}."


def _signal(facts: Facts) -> str:
    return f"{signal_and_zebra(facts).capitalize()}."


def _count(facts: Facts) -> str:
    return f"{NUMBERS[len(facts.users)]}: {', '.join(u.kind for u in facts.users)}." if facts.users else f"{NUMBERS[0]}."


def _colour(facts: Facts) -> str:
    car = next((user for user in facts.users if user.kind == "car"), None)
    return f"{str(car.colour).capitalize()}, {doing(car)} {place(car)}." if car else "No car."


def _side(facts: Facts) -> str:
    return f"{facts.users[0].side.capitalize()}, a {thing(facts.users[0])}." if facts.users else f"{NUMBERS[0]}."


def _distance(facts: Facts) -> str:
    if not facts.users:
        return f"{NUMBERS[0]}."
    return f"{facts.users[0].distance_m} m, a {facts.users[0].kind} {doing(facts.users[0])}."


def _nearest(facts: Facts) -> str:
    return f"A {described(facts.users[0])}." if facts.users else f"{NUMBERS[0]}."


def _is_crossing(facts: Facts) -> str:
    """Who crosses and where; if nobody does, who is nearest and what that one does instead."""
    user = first_crossing(facts)
    if user is not None:
        return f"Yes, a {thing(user)} {place(user)}."
    if facts.users:
        return f"No, a {described(facts.users[0])}."
    return "No, nobody."


def _safe(facts: Facts) -> str:
    user = first_crossing(facts)
    if user is not None and user.distance_m <= 10:
        return f"No, a {described(user)}."
    if facts.signal == "red":
        return "No, red light."
    if facts.users:
        return f"Yes, a {described(facts.users[0])}."
    return "Yes, nobody."


# ------------------------------------------------------------------------------------------------------------- long answers
def _list(users: tuple[RoadUser, ...]) -> str:
    return "; ".join(described(u) for u in users) if users else NUMBERS[0].lower()


def _caption(facts: Facts) -> str:
    """Order and articles follow the scene: who stands is told place first, a repeated kind is `another`."""
    parts = [f"{_ego(facts)}, {signal_and_zebra(facts)}."]
    seen: set[str] = set()
    for user in facts.users:
        article = "another" if user.kind in seen else "a"
        seen.add(user.kind)
        if user.action in ("parked", "standing"):
            parts.append(f"{place(user).capitalize()} {article} {thing(user)} is {doing(user)}.")
        else:
            parts.append(f"{article.capitalize()} {thing(user)} is {doing(user)}, {place(user)}.")
    return " ".join(parts) if facts.users else f"{parts[0]} The street is empty."


def _near_to_far(facts: Facts) -> str:
    return _list(facts.users).capitalize() + "."


def _left_to_right(facts: Facts) -> str:
    return _list(tuple(sorted(facts.users, key=lambda u: SIDES.index(u.side)))).capitalize() + "."


def _far_to_near(facts: Facts) -> str:
    return _list(facts.users[::-1]).capitalize() + "."


def _summary(facts: Facts) -> str:
    if not facts.users:
        return f"{_ego(facts)} on an empty street, {signal_and_zebra(facts)}."
    near = facts.users[0]
    others = "".join(f", a {thing(u)} {doing(u)}" for u in facts.users[1:])
    return f"{_ego(facts)} near a {described(near)}{others}, {signal_and_zebra(facts)}."


def _hazard(facts: Facts) -> str:
    """What to do about whom; then what else there is, the nearest first."""
    first = first_crossing(facts) or (facts.users[0] if facts.users else None)
    if first is None:
        return f"{'Wait at the red light' if facts.signal == 'red' else 'Drive on'}, {EGO[facts.ego]} {LIGHT[facts.light]}."
    if first.action.startswith("crossing"):
        deed = "Brake for"
    elif facts.signal == "red":
        deed = "Stop behind" if first.action == "leading" else "Stop, mind"
    else:
        deed = {"leading": "Follow", "oncoming": "Let by", "parked": "Pass", "standing": "Mind"}[first.action]
    others = [u for u in facts.users if u is not first]
    return f"{deed} the {described(first)}" + "".join(f"; mind a {described(u)}" for u in others) + f"; {_ego(facts).lower()}."


def _dispatch(facts: Facts) -> str:
    """A radio call in few words: everything about everybody, then our own state."""
    seen = "".join(f"; {terse(u)}" for u in facts.users)
    return f"{NUMBERS[len(facts.users)]} seen{seen}; {signal_and_zebra(facts)}; {_ego(facts).lower()}."


def _statement(facts: Facts) -> str:
    """A witness's statement, in the past tense, our own state first and the farthest road user next."""
    parts = [f"We were {EGO[facts.ego]} {LIGHT[facts.light]}."]
    for user in facts.users[::-1]:
        parts.append(f"A {thing(user)} was {doing(user)} {place(user)}.")
    return " ".join([*parts, f"{signal_and_zebra(facts).capitalize()}."])


def _around(facts: Facts) -> str:
    """Side by side from left to right, the nearest first; empty sides are left out."""
    parts: list[str] = []
    for side in SIDES:
        users = [u for u in facts.users if u.side == side]
        if users:
            listing = ", ".join(f"a {thing(u)} {doing(u)} at {u.distance_m} m" for u in users)
            parts.append(f"{side.capitalize()}: {listing}.")
    return " ".join([*(parts or [f"{NUMBERS[0]}."]), f"{signal_and_zebra(facts).capitalize()}."])


def _explain(facts: Facts) -> str:
    """A decision and its reasons: who crosses, the light, then everybody else."""
    crossing = [u for u in facts.users if u.action.startswith("crossing")]
    others = [u for u in facts.users if not u.action.startswith("crossing")]
    stop = facts.signal == "red" or any(u.distance_m <= 10 for u in crossing)
    reasons = [f"a {described(u)}" for u in crossing]
    if facts.signal != "none":
        reasons.append(f"the light is {facts.signal}")
    reasons += [f"a {described(u)}" for u in others]
    if not reasons:
        reasons.append("the street is empty")
    return f"{'Stop' if stop else 'Go on'}, {EGO[facts.ego]} {LIGHT[facts.light]}: {', '.join(reasons)}."


def _record(facts: Facts) -> str:
    """The longest answer: what changed, and what to do."""
    return f"{change(facts)} {advice(facts)}"


@dataclass(frozen=True)
class _Form:
    kind: str
    wordings: tuple[tuple[str, Callable[[Facts], str]], ...]


def _same(answer: Callable[[Facts], str], *questions: str) -> tuple[tuple[str, Callable[[Facts], str]], ...]:
    return tuple((question, answer) for question in questions)


FORMS = (
    _Form("ego", _same(_moving, "What is our vehicle doing?", "How are we moving?")),
    _Form("signal", _same(_signal, "What does the traffic light show?", "Is there a traffic light?")),
    _Form("count", _same(_count, "How many road users are visible?", "How many others are on the street?")),
    _Form("colour", _same(_colour, "What colour is the closest car?", "Which colour has the nearest car?")),
    _Form("side", _same(_side, "On which side is the closest road user?", "Where is the nearest road user?")),
    _Form("distance", _same(_distance, "How far away is the closest road user?", "How close is the nearest road user?")),
    _Form("nearest", _same(_nearest, "What is the closest road user?", "Describe the nearest road user.")),
    _Form("crossing", _same(_is_crossing, "Is anybody crossing the road?", "Does someone cross our way?")),
    _Form("safe", _same(_safe, "Is it safe to continue?", "Can we drive on?")),
    _Form("hazard", _same(_hazard, "What should the driver do?", "What needs attention?")),
    _Form("caption", _same(_caption, "Describe the scene.", "What do you see?")),
    _Form("summary", _same(_summary, "Summarise the clip in one sentence.", "What happens, in short?")),
    _Form(
        "report",
        (
            ("List the road users from near to far.", _near_to_far),
            ("Who is there, from near to far?", _near_to_far),
        ),
    ),
    _Form(
        "order",
        (
            ("List the road users from left to right.", _left_to_right),
            ("List the road users from far to near.", _far_to_near),
        ),
    ),
    _Form("statement", _same(_statement, "Make a statement as a witness.", "What did you see?")),
    _Form("around", _same(_around, "Who is on which side?", "What is around us?")),
    _Form("explain", _same(_explain, "Explain what to do and why.", "Decide and give your reasons.")),
    _Form("detail", _same(detail, "Describe every road user in detail.", "Who is here, and what does each one mean for us?")),
    _Form("change", _same(change, "What changed during the clip?", "What moved, and how?")),
    _Form("record", _same(_record, "Write a record of the clip.", "Record what happened and what to do.")),
    _Form("advice", _same(advice, "Advise the driver step by step.", "What should we do, step by step, and why?")),
    _Form("dispatch", _same(_dispatch, "Give a full report.", "Report to the control room.")),
)
KINDS_OF_QUESTION = tuple(form.kind for form in FORMS)


def questions(facts: Facts, seed: int) -> list[QA]:
    """One question of every kind about a clip, in an order and in wordings drawn from `seed`."""
    rng = np.random.default_rng((seed, 7))
    asked = []
    for form in FORMS:
        question, answer = form.wordings[int(rng.integers(len(form.wordings)))]
        asked.append(QA(form.kind, question, answer(facts)))
    return [asked[i] for i in rng.permutation(len(asked))]


def every_wording(facts: Facts) -> list[QA]:
    """Every question in every wording: the training text of the tokenizer and the prior."""
    return [QA(form.kind, question, answer(facts)) for form in FORMS for question, answer in form.wordings]
