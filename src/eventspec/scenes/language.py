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


NUMBERS = ("no", "one", "two", "three", "four")


def _thing(user: RoadUser) -> str:
    return f"{user.colour} {user.kind}" if user.colour else user.kind


def _place(user: RoadUser) -> str:
    metres = f"{user.distance_m} m"
    return f"{metres} ahead" if user.side == "ahead" else f"{metres} away on the {user.side}"


def _doing(user: RoadUser) -> str:
    if user.action == "leading":
        return "riding ahead of us" if user.kind == "cyclist" else "driving ahead of us"
    words = {
        "parked": "parked",
        "standing": "standing still",
        "oncoming": "coming toward us",
        "crossing left": "crossing to the left",
        "crossing right": "crossing to the right",
    }
    return words[user.action]


def _crossing(facts: Facts) -> RoadUser | None:
    return next((u for u in facts.users if u.action.startswith("crossing")), None)


# ------------------------------------------------------------------------------------------------------------ short answers
LIGHT = {"day": "by day", "dusk": "at dusk", "night": "at night"}
EGO_DOES = {
    "stopped": "we stand still",
    "slow": "we roll slowly along",
    "fast": "we drive fast",
    "turning left": "we turn left",
    "turning right": "we turn right",
}


def _ego(facts: Facts) -> str:
    moving = {"stopped": "Standing still", "slow": "Driving slowly", "fast": "Driving fast"}
    doing = moving.get(facts.ego, facts.ego.capitalize())
    return f"{doing} {LIGHT[facts.light]}."


def _light(facts: Facts) -> str:
    words = {"day": "Bright day", "dusk": "Dusk", "night": "Night"}
    return f"{words[facts.light]}, {EGO_DOES[facts.ego]}."


def _signal(facts: Facts) -> str:
    if facts.signal == "none":
        return "A zebra crossing, but no light." if facts.junction else "No light."
    return f"{facts.signal.capitalize()}, before a zebra crossing." if facts.junction else f"{facts.signal.capitalize()}."


def _count(facts: Facts) -> str:
    if not facts.users:
        return "None."
    kinds = [user.kind for user in facts.users]
    if len(kinds) <= 2:
        return f"{NUMBERS[len(kinds)].capitalize()}: {', '.join(kinds)}."
    return f"{NUMBERS[len(kinds)].capitalize()}, first a {kinds[0]}."


def _colour(facts: Facts) -> str:
    car = next((user for user in facts.users if user.kind == "car"), None)
    return f"{str(car.colour).capitalize()}." if car else "No car."


def _side(facts: Facts) -> str:
    return f"{facts.users[0].side.capitalize()}, a {facts.users[0].kind}." if facts.users else "Nowhere."


def _distance(facts: Facts) -> str:
    if not facts.users:
        return "Nobody is here."
    return f"{facts.users[0].distance_m} m."


def _nearest(facts: Facts) -> str:
    if not facts.users:
        return "Nobody."
    user = facts.users[0]
    return f"A {_thing(user)} {_place(user)}, {_doing(user)}."


def _is_crossing(facts: Facts) -> str:
    user = _crossing(facts)
    if user is None:
        return "No, nobody."
    return f"Yes, a {_thing(user)} {_place(user)} goes {user.action.split()[-1]}."


def _safe(facts: Facts) -> str:
    user = _crossing(facts)
    if user is not None and user.distance_m <= 10:
        return f"No, a {user.kind} is crossing {user.distance_m} m from us."
    if facts.signal == "red":
        return "No, red light."
    close = next((u for u in facts.users if u.side == "ahead" and u.distance_m <= 10), None)
    if close is not None:
        return f"With care, {close.kind} {_place(close)}."
    return "Yes."


# ------------------------------------------------------------------------------------------------------------- long answers
def _opening(facts: Facts) -> str:
    return f"{LIGHT[facts.light].capitalize()} {EGO_DOES[facts.ego]}"


def _caption(facts: Facts) -> str:
    """Order and articles follow the scene: the nearest in a sentence of its own, a repeated kind as `another`."""
    parts = [_opening(facts) + (" toward a zebra crossing" if facts.junction else "")]
    parts[0] += f", the light is {facts.signal}." if facts.signal != "none" else "."
    if not facts.users:
        parts.append("The street is empty.")
    seen: set[str] = set()
    for user in facts.users:
        article = "Another" if user.kind in seen else "A"
        seen.add(user.kind)
        if user.action in ("parked", "standing"):
            parts.append(f"{_place(user).capitalize()} {article.lower()} {_thing(user)} is {_doing(user)}.")
        else:
            parts.append(f"{article} {_thing(user)} is {_doing(user)}, {_place(user)}.")
    return " ".join(parts)


def _report(users: tuple[RoadUser, ...]) -> str:
    if not users:
        return "Nobody."
    return "; ".join(f"{_thing(u)} {u.distance_m} m {u.side}, {_doing(u)}" for u in users) + "."


def _near_to_far(facts: Facts) -> str:
    return _report(facts.users)


def _left_to_right(facts: Facts) -> str:
    return _report(tuple(sorted(facts.users, key=lambda u: SIDES.index(u.side))))


def _far_to_near(facts: Facts) -> str:
    return _report(facts.users[::-1])


def _summary(facts: Facts) -> str:
    if not facts.users:
        return f"{_opening(facts)} through an empty street."
    near = facts.users[0]
    if len(facts.users) == 1:
        return f"{_opening(facts)}, a {_thing(near)} is {_doing(near)}."
    others = ", ".join(f"{_thing(u)} {u.side}" for u in facts.users[1:])
    return f"{_opening(facts)} among {NUMBERS[len(facts.users)]}: a {_thing(near)} {_doing(near)}, {others}."


def _hazard(facts: Facts) -> str:
    crossing = _crossing(facts)
    if crossing is not None:
        return f"Brake for the {_thing(crossing)} {_place(crossing)}, it is {_doing(crossing)}."
    if facts.signal == "red":
        return "Stop at the red light."
    if not facts.users:
        return f"Nothing, {EGO_DOES[facts.ego]} on an empty street."
    near = facts.users[0]
    if near.action == "oncoming":
        return f"Keep right, a {_thing(near)} comes toward us {_place(near)}."
    return f"Mind the {_thing(near)} {_doing(near)} {_place(near)}."


def _dispatch(facts: Facts) -> str:
    """A radio call: everything about everybody, then our own state."""
    own = f"{facts.ego}, {facts.light}, light {facts.signal}, {'zebra' if facts.junction else 'no zebra'}"
    if not facts.users:
        return f"Street empty; {own}."
    return f"{NUMBERS[len(facts.users)].capitalize()} seen: {_report(facts.users)[:-1]}; {own}."


def _statement(facts: Facts) -> str:
    """A witness's statement, in the past tense, the farthest first."""
    light = {"day": "It was day", "dusk": "It was dusk", "night": "It was night"}[facts.light]
    ego = {
        "stopped": "we were standing still",
        "slow": "we were rolling slowly along",
        "fast": "we were driving fast",
        "turning left": "we were turning left",
        "turning right": "we were turning right",
    }[facts.ego]
    parts = [f"{light} and {ego}."]
    for user in facts.users[::-1]:
        parts.append(f"A {_thing(user)} was {_doing(user)} {_place(user)}.")
    if not facts.users:
        parts.append("Nobody was there.")
    parts.append("We saw no light." if facts.signal == "none" else f"The light was {facts.signal}.")
    return " ".join(parts)


def _around(facts: Facts) -> str:
    """Side by side, empty sides last."""
    parts: list[str] = []
    empty: list[str] = []
    for side, words in (("left", "On the left"), ("ahead", "Ahead of us"), ("right", "On the right")):
        users = [u for u in facts.users if u.side == side]
        if users:
            parts.append(f"{words}: " + ", ".join(f"a {_thing(u)} {_doing(u)} at {u.distance_m} m" for u in users) + ".")
        else:
            empty.append(side)
    return " ".join([*parts, f"Nobody is {', '.join(empty)}."] if empty else parts)


def _explain(facts: Facts) -> str:
    """A decision and its reasons, the strongest first."""
    reasons = [f"a {u.kind} is {_doing(u)} {_place(u)}" for u in facts.users if u.action.startswith("crossing")]
    stop = any(u.action.startswith("crossing") and u.distance_m <= 10 for u in facts.users) or facts.signal == "red"
    if facts.signal == "red":
        reasons.append("the light is red")
    reasons += [f"a {u.kind} is {_doing(u)} {_place(u)}" for u in facts.users if not u.action.startswith("crossing")]
    if facts.signal == "green":
        reasons.append("the light is green")
    if not facts.users:
        reasons.append("the street is empty")
    decision = "We have to stop" if stop else "We go on with care" if facts.users else "We go on"
    return f"{decision}: {', and '.join(reasons)}; now {EGO_DOES[facts.ego]} {LIGHT[facts.light]}."


@dataclass(frozen=True)
class _Form:
    kind: str
    wordings: tuple[tuple[str, Callable[[Facts], str]], ...]


def _same(answer: Callable[[Facts], str], *questions: str) -> tuple[tuple[str, Callable[[Facts], str]], ...]:
    return tuple((question, answer) for question in questions)


FORMS = (
    _Form("ego", _same(_ego, "What is our vehicle doing?", "How are we moving?")),
    _Form("light", _same(_light, "What time of day is it?", "How bright is it outside?")),
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
