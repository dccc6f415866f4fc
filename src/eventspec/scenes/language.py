"""Questions about a street clip and their one right answer: a deterministic function of the wording and the facts.

Answers are dense on purpose: what is said, in which order and in which words depends on the scene, so that a reader who
has not seen it cannot continue them. One wording may ask for another form or order than the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eventspec.scenes.facts import SIDES, Facts, RoadUser


@dataclass(frozen=True)
class QA:
    """One question of a kind, and the right answer."""

    kind: str
    question: str
    answer: str


NUMBERS = ("Nobody", "One", "Two", "Three", "Four")
EGO = {
    "stopped": "standing still",
    "slow": "driving slowly",
    "fast": "driving fast",
    "turning left": "turning left",
    "turning right": "turning right",
}
LIGHT = {"day": "by day", "dusk": "at dusk", "night": "at night"}
DOING = {
    "parked": "parked",
    "standing": "standing",
    "oncoming": "coming toward us",
    "leading": "going our way",
    "crossing left": "crossing to the left",
    "crossing right": "crossing to the right",
}


def _thing(user: RoadUser) -> str:
    return f"{user.colour} {user.kind}" if user.colour else user.kind


def _place(user: RoadUser) -> str:
    return f"{user.distance_m} m ahead" if user.side == "ahead" else f"{user.distance_m} m to the {user.side}"


def _doing(user: RoadUser) -> str:
    return DOING[user.action]


def _user(user: RoadUser) -> str:
    return f"{_thing(user)} {_doing(user)} {_place(user)}"


def _terse(user: RoadUser) -> str:
    return f"{_thing(user)} {user.action} {user.distance_m} m {user.side}"


def _crossing(facts: Facts) -> RoadUser | None:
    return next((u for u in facts.users if u.action.startswith("crossing")), None)


def _signal_and_zebra(facts: Facts) -> str:
    return f"{'no' if facts.signal == 'none' else facts.signal} light, {'zebra' if facts.junction else 'no zebra'}"


# ------------------------------------------------------------------------------------------------------------ short answers
def _ego(facts: Facts) -> str:
    return f"{EGO[facts.ego].capitalize()} {LIGHT[facts.light]}"


def _moving(facts: Facts) -> str:
    return f"We are {EGO[facts.ego]} {LIGHT[facts.light]}."


def _signal(facts: Facts) -> str:
    return f"{_signal_and_zebra(facts).capitalize()}."


def _count(facts: Facts) -> str:
    return f"{NUMBERS[len(facts.users)]}: {', '.join(u.kind for u in facts.users)}." if facts.users else f"{NUMBERS[0]}."


def _colour(facts: Facts) -> str:
    car = next((user for user in facts.users if user.kind == "car"), None)
    return f"{str(car.colour).capitalize()}, {_doing(car)} {_place(car)}." if car else "No car."


def _side(facts: Facts) -> str:
    return f"{facts.users[0].side.capitalize()}, a {_thing(facts.users[0])}." if facts.users else f"{NUMBERS[0]}."


def _distance(facts: Facts) -> str:
    if not facts.users:
        return f"{NUMBERS[0]}."
    return f"{facts.users[0].distance_m} m, a {facts.users[0].kind} {_doing(facts.users[0])}."


def _nearest(facts: Facts) -> str:
    return f"A {_user(facts.users[0])}." if facts.users else f"{NUMBERS[0]}."


def _is_crossing(facts: Facts) -> str:
    """Who crosses and where; if nobody does, who is nearest and what that one does instead."""
    user = _crossing(facts)
    if user is not None:
        return f"Yes, a {_thing(user)} {_place(user)}."
    if facts.users:
        return f"No, a {_user(facts.users[0])}."
    return "No, nobody."


def _safe(facts: Facts) -> str:
    user = _crossing(facts)
    if user is not None and user.distance_m <= 10:
        return f"No, a {_user(user)}."
    if facts.signal == "red":
        return "No, red light."
    if facts.users:
        return f"Yes, a {_user(facts.users[0])}."
    return "Yes, nobody."


# ------------------------------------------------------------------------------------------------------------- long answers
def _list(users: tuple[RoadUser, ...]) -> str:
    return "; ".join(_user(u) for u in users) if users else NUMBERS[0].lower()


def _caption(facts: Facts) -> str:
    """Order and articles follow the scene: who stands is told place first, a repeated kind is `another`."""
    parts = [f"{_ego(facts)}, {_signal_and_zebra(facts)}."]
    seen: set[str] = set()
    for user in facts.users:
        article = "another" if user.kind in seen else "a"
        seen.add(user.kind)
        if user.action in ("parked", "standing"):
            parts.append(f"{_place(user).capitalize()} {article} {_thing(user)} is {_doing(user)}.")
        else:
            parts.append(f"{article.capitalize()} {_thing(user)} is {_doing(user)}, {_place(user)}.")
    return " ".join(parts) if facts.users else f"{parts[0]} The street is empty."


def _near_to_far(facts: Facts) -> str:
    return _list(facts.users).capitalize() + "."


def _left_to_right(facts: Facts) -> str:
    return _list(tuple(sorted(facts.users, key=lambda u: SIDES.index(u.side)))).capitalize() + "."


def _far_to_near(facts: Facts) -> str:
    return _list(facts.users[::-1]).capitalize() + "."


def _summary(facts: Facts) -> str:
    if not facts.users:
        return f"{_ego(facts)} on an empty street, {_signal_and_zebra(facts)}."
    near = facts.users[0]
    others = "".join(f", a {_thing(u)} {_doing(u)}" for u in facts.users[1:])
    return f"{_ego(facts)} near a {_user(near)}{others}, {_signal_and_zebra(facts)}."


def _hazard(facts: Facts) -> str:
    """What to do about whom; then what else there is, the nearest first."""
    first = _crossing(facts) or (facts.users[0] if facts.users else None)
    if first is None:
        return f"{'Wait at the red light' if facts.signal == 'red' else 'Drive on'}, {EGO[facts.ego]} {LIGHT[facts.light]}."
    if first.action.startswith("crossing"):
        deed = "Brake for"
    elif facts.signal == "red":
        deed = "Stop behind" if first.action == "leading" else "Stop, mind"
    else:
        deed = {"leading": "Follow", "oncoming": "Let by", "parked": "Pass", "standing": "Mind"}[first.action]
    others = [u for u in facts.users if u is not first]
    return f"{deed} the {_user(first)}" + "".join(f"; mind a {_user(u)}" for u in others) + f"; {_ego(facts).lower()}."


def _dispatch(facts: Facts) -> str:
    """A radio call in few words: everything about everybody, then our own state."""
    seen = "".join(f"; {_terse(u)}" for u in facts.users)
    return f"{NUMBERS[len(facts.users)]} seen{seen}; {_signal_and_zebra(facts)}; {_ego(facts).lower()}."


def _statement(facts: Facts) -> str:
    """A witness's statement, in the past tense, our own state first and the farthest road user next."""
    parts = [f"We were {EGO[facts.ego]} {LIGHT[facts.light]}."]
    for user in facts.users[::-1]:
        parts.append(f"A {_thing(user)} was {_doing(user)} {_place(user)}.")
    return " ".join([*parts, f"{_signal_and_zebra(facts).capitalize()}."])


def _around(facts: Facts) -> str:
    """Side by side from left to right, the nearest first; empty sides are left out."""
    parts: list[str] = []
    for side in SIDES:
        users = [u for u in facts.users if u.side == side]
        if users:
            listing = ", ".join(f"a {_thing(u)} {_doing(u)} at {u.distance_m} m" for u in users)
            parts.append(f"{side.capitalize()}: {listing}.")
    return " ".join([*(parts or [f"{NUMBERS[0]}."]), f"{_signal_and_zebra(facts).capitalize()}."])


def _explain(facts: Facts) -> str:
    """A decision and its reasons: who crosses, the light, then everybody else."""
    crossing = [u for u in facts.users if u.action.startswith("crossing")]
    others = [u for u in facts.users if not u.action.startswith("crossing")]
    stop = facts.signal == "red" or any(u.distance_m <= 10 for u in crossing)
    reasons = [f"a {_user(u)}" for u in crossing]
    if facts.signal != "none":
        reasons.append(f"the light is {facts.signal}")
    reasons += [f"a {_user(u)}" for u in others]
    if not reasons:
        reasons.append("the street is empty")
    return f"{'Stop' if stop else 'Go on'}, {EGO[facts.ego]} {LIGHT[facts.light]}: {', '.join(reasons)}."


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
