"""Questions about a street clip and their one right answer: a deterministic function of the wording and the facts.

Answers are dense on purpose: what is said, in which order and in which words depends on the scene, so that a reader who
has not seen it cannot continue them. One wording may ask for another form or order than the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from eventspec.scenes.facts import SIDES, Facts, RoadUser
from eventspec.scenes.reports import LIGHT, NUMBERS, advice, change, detail, place, thing

NONE = f"{NUMBERS[0]}."
EGO = {
    "stopped": "standing still",
    "slow": "driving slowly",
    "fast": "driving fast",
    "turning left": "turning left",
    "turning right": "turning right",
}
DOING = {
    "parked": "parked",
    "standing": "standing",
    "oncoming": "coming toward us",
    "leading": "going our way",
    "crossing left": "crossing to the left",
    "crossing right": "crossing to the right",
}


class QA(NamedTuple):
    """One question of a kind, and the right answer."""

    kind: str
    question: str
    answer: str


def described(user: RoadUser) -> str:
    """Who does what where."""
    return f"{thing(user)} {DOING[user.action]} {place(user)}"


def first_crossing(facts: Facts) -> RoadUser | None:
    """The nearest road user that crosses; None when no one does."""
    return next((u for u in facts.users if u.crosses), None)


def signal_and_zebra(facts: Facts) -> str:
    """The traffic light and the zebra, present or not."""
    return f"{'no' if facts.signal == 'none' else facts.signal} light, {'zebra' if facts.junction else 'no zebra'}"


# ------------------------------------------------------------------------------------------------------------ short answers
def _ego(facts: Facts) -> str:
    return f"{EGO[facts.ego].capitalize()} {LIGHT[facts.light]}"


def _count(facts: Facts) -> str:
    return f"{NUMBERS[len(facts.users)]}: {', '.join(u.kind for u in facts.users)}." if facts.users else NONE


def _colour(facts: Facts) -> str:
    car = next((user for user in facts.users if user.kind == "car"), None)
    return f"{str(car.colour).capitalize()}, {DOING[car.action]} {place(car)}." if car else "No car."


def _nearest(phrase: Callable[[RoadUser], str]) -> Callable[[Facts], str]:
    return lambda facts: f"{phrase(facts.users[0])}." if facts.users else NONE


def _is_crossing(facts: Facts) -> str:
    """Who crosses and where; if no one does, who is nearest and what that one does instead."""
    user = first_crossing(facts)
    if user is not None:
        return f"Yes, a {thing(user)} {place(user)}."
    return f"No, a {described(facts.users[0])}." if facts.users else "No, nobody."


def _safe(facts: Facts) -> str:
    user = first_crossing(facts)
    if user is not None and user.distance_m <= 10:
        return f"No, a {described(user)}."
    if facts.signal == "red":
        return "No, red light."
    return f"Yes, a {described(facts.users[0])}." if facts.users else "Yes, nobody."


# ------------------------------------------------------------------------------------------------------------- long answers
def _list(order: Callable[[tuple[RoadUser, ...]], list[RoadUser]]) -> Callable[[Facts], str]:
    return lambda facts: "; ".join(map(described, order(facts.users))).capitalize() + "." if facts.users else NONE


def _caption(facts: Facts) -> str:
    """Order and articles follow the scene: of who stands the place comes first, a repeated kind is `another`."""
    parts = [f"{_ego(facts)}, {signal_and_zebra(facts)}."]
    seen: set[str] = set()
    for user in facts.users:
        article = "another" if user.kind in seen else "a"
        seen.add(user.kind)
        if not user.moves:
            parts.append(f"{place(user).capitalize()} {article} {thing(user)} is {DOING[user.action]}.")
        else:
            parts.append(f"{article.capitalize()} {thing(user)} is {DOING[user.action]}, {place(user)}.")
    return " ".join(parts) if facts.users else f"{parts[0]} The street is empty."


def _summary(facts: Facts) -> str:
    if not facts.users:
        return f"{_ego(facts)} on an empty street, {signal_and_zebra(facts)}."
    near = facts.users[0]
    others = "".join(f", a {thing(u)} {DOING[u.action]}" for u in facts.users[1:])
    return f"{_ego(facts)} near a {described(near)}{others}, {signal_and_zebra(facts)}."


def _hazard(facts: Facts) -> str:
    """What to do about the nearest in our way; then what else there is, the nearest first."""
    first = first_crossing(facts) or next(iter(facts.users), None)
    if first is None:
        return f"{'Wait at the red light' if facts.signal == 'red' else 'Drive on'}, {EGO[facts.ego]} {LIGHT[facts.light]}."
    if first.crosses:
        deed = "Brake for"
    elif facts.signal == "red":
        deed = "Stop behind" if first.action == "leading" else "Stop, mind"
    else:
        deed = {"leading": "Follow", "oncoming": "Let by", "parked": "Pass", "standing": "Mind"}[first.action]
    others = [u for u in facts.users if u is not first]
    return f"{deed} the {described(first)}" + "".join(f"; mind a {described(u)}" for u in others) + f"; {_ego(facts).lower()}."


def _dispatch(facts: Facts) -> str:
    """A radio call in few words: every road user, then our own state."""
    seen = "".join(f"; {thing(u)} {u.action} {u.distance_m} m {u.side}" for u in facts.users)
    return f"{NUMBERS[len(facts.users)]} seen{seen}; {signal_and_zebra(facts)}; {_ego(facts).lower()}."


def _statement(facts: Facts) -> str:
    """A witness's statement, in the past tense, our own state first and the farthest road user next."""
    seen = (f"A {thing(user)} was {DOING[user.action]} {place(user)}." for user in facts.users[::-1])
    return " ".join([f"We were {EGO[facts.ego]} {LIGHT[facts.light]}.", *seen, f"{signal_and_zebra(facts).capitalize()}."])


def _around(facts: Facts) -> str:
    """Side by side from left to right, the nearest first; empty sides are left out."""

    def listing(side: str) -> str:
        return ", ".join(f"a {thing(u)} {DOING[u.action]} at {u.distance_m} m" for u in facts.users if u.side == side)

    sides = [f"{side.capitalize()}: {said}." for side in SIDES if (said := listing(side))] or [NONE]
    return " ".join([*sides, f"{signal_and_zebra(facts).capitalize()}."])


def _explain(facts: Facts) -> str:
    """A decision and its reasons: who crosses, the light, then all others."""
    crossing, others = ([u for u in facts.users if u.crosses is crosses] for crosses in (True, False))
    stop = facts.signal == "red" or any(u.distance_m <= 10 for u in crossing)
    light = [] if facts.signal == "none" else [f"the light is {facts.signal}"]
    reasons = [*(f"a {described(u)}" for u in crossing), *light, *(f"a {described(u)}" for u in others)]
    why = ", ".join(reasons) or "the street is empty"
    return f"{'Stop' if stop else 'Go on'}, {EGO[facts.ego]} {LIGHT[facts.light]}: {why}."


Answer = Callable[[Facts], str]


def _same(answer: Answer, *wordings: str) -> dict[str, Answer]:
    return dict.fromkeys(wordings, answer)


FORMS: dict[str, dict[str, Answer]] = {
    "ego": _same(
        lambda facts: f"We are {EGO[facts.ego]} {LIGHT[facts.light]}.", "What is our vehicle doing?", "How are we moving?"
    ),
    "signal": _same(
        lambda facts: f"{signal_and_zebra(facts).capitalize()}.",
        "What does the traffic light show?",
        "Is there a traffic light?",
    ),
    "count": _same(_count, "How many road users are visible?", "How many others are on the street?"),
    "colour": _same(_colour, "What colour is the closest car?", "Which colour has the nearest car?"),
    "side": _same(
        _nearest(lambda user: f"{user.side.capitalize()}, a {thing(user)}"),
        "On which side is the closest road user?",
        "Where is the nearest road user?",
    ),
    "distance": _same(
        _nearest(lambda user: f"{user.distance_m} m, a {user.kind} {DOING[user.action]}"),
        "How far away is the closest road user?",
        "How close is the nearest road user?",
    ),
    "nearest": _same(
        _nearest(lambda user: f"A {described(user)}"), "What is the closest road user?", "Describe the nearest road user."
    ),
    "crossing": _same(_is_crossing, "Is anybody crossing the road?", "Does someone cross our way?"),
    "safe": _same(_safe, "Is it safe to continue?", "Can we drive on?"),
    "hazard": _same(_hazard, "What should the driver do?", "What needs attention?"),
    "caption": _same(_caption, "Describe the scene.", "What do you see?"),
    "summary": _same(_summary, "Summarise the clip in one sentence.", "What happens, in short?"),
    "report": _same(_list(list), "List the road users from near to far.", "Who is there, from near to far?"),
    "order": {
        "List the road users from left to right.": _list(lambda users: sorted(users, key=lambda u: SIDES.index(u.side))),
        "List the road users from far to near.": _list(lambda users: list(users[::-1])),
    },
    "statement": _same(_statement, "Make a statement as a witness.", "What did you see?"),
    "around": _same(_around, "Who is on which side?", "What is around us?"),
    "explain": _same(_explain, "Explain what to do and why.", "Decide and give your reasons."),
    "detail": _same(detail, "Describe every road user in detail.", "Who is here, and what does each one mean for us?"),
    "change": _same(change, "What changed during the clip?", "What moved, and how?"),
    "record": _same(
        lambda facts: f"{change(facts)} {advice(facts)}", "Write a record of the clip.", "Record what happened and what to do."
    ),
    "advice": _same(advice, "Advise the driver step by step.", "What should we do, step by step, and why?"),
    "dispatch": _same(_dispatch, "Give a full report.", "Report to the control room."),
}
"""By the kind of question: the wordings, and how each is answered."""


KINDS = {wording: kind for kind, wordings in FORMS.items() for wording in wordings}
"""The kind of every wording."""


def questions(facts: Facts, seed: int) -> list[QA]:
    """One question of every kind about a clip, in an order and in wordings drawn from `seed`."""
    rng = np.random.default_rng((seed, 7))
    asked = []
    for kind, wordings in FORMS.items():
        question, answer = list(wordings.items())[int(rng.integers(len(wordings)))]
        asked.append(QA(kind, question, answer(facts)))
    return [asked[i] for i in rng.permutation(len(asked))]


def every_wording(facts: Facts) -> list[QA]:
    """Every question in every wording: the training text of the tokenizer and the prior."""
    return [QA(kind, question, answer(facts)) for kind, wordings in FORMS.items() for question, answer in wordings.items()]
