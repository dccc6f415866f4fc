"""Words and phrases that the street's answers are made of."""

from __future__ import annotations

from eventspec.scenes.facts import Facts, RoadUser

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


def thing(user: RoadUser) -> str:
    return f"{user.colour} {user.kind}" if user.colour else user.kind


def place(user: RoadUser) -> str:
    return f"{user.distance_m} m ahead" if user.side == "ahead" else f"{user.distance_m} m to the {user.side}"


def described(user: RoadUser) -> str:
    """Who does what where."""
    return f"{thing(user)} {DOING[user.action]} {place(user)}"


def first_crossing(facts: Facts) -> RoadUser | None:
    """The nearest road user that crosses; None when no one does."""
    return next((u for u in facts.users if u.crosses), None)


def signal_and_zebra(facts: Facts) -> str:
    """The traffic light and the zebra, present or not."""
    return f"{'no' if facts.signal == 'none' else facts.signal} light, {'zebra' if facts.junction else 'no zebra'}"
