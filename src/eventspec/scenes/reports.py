"""Long reports on a street clip: every road user in turn, in whole sentences, with what is seen of it and what to do about it.

They are dense, as all answers of the street: order, form and advice differ with side, distance, motion and our own speed.
"""

from __future__ import annotations

from eventspec.scenes.facts import Facts, RoadUser

NUMBERS = ("Nobody", "One", "Two", "Three", "Four")
LIGHT = {"day": "by day", "dusk": "at dusk", "night": "at night"}


def thing(user: RoadUser) -> str:
    return f"{user.colour} {user.kind}" if user.colour else user.kind


def place(user: RoadUser) -> str:
    return f"{user.distance_m} m ahead" if user.side == "ahead" else f"{user.distance_m} m to the {user.side}"


_NEAR_M = 10
_PEOPLE = ("pedestrian", "cyclist")
_CROSS = ("crossing left", "crossing right")
_DOES = {"parked": "is parked", "standing": "stands", "oncoming": "approaches", "leading": "leads us"}
_DOING = {"parked": "parked", "standing": "standing", "oncoming": "approaching", "leading": "leading us"}
_DID = {"parked": "was parked", "standing": "stood", "oncoming": "approached", "leading": "led us"}
for _forms, _verb in ((_DOES, "crosses"), (_DOING, "crossing"), (_DID, "crossed")):
    _forms |= {action: f"{_verb} {action.removeprefix('crossing ')}" for action in _CROSS}
_PACE = {
    ("oncoming", "closer"): " slowly",
    ("oncoming", "much closer"): " fast",
    ("leading", "closer"): " slower than we drive",
    ("leading", "much closer"): " much slower than we drive",
    ("leading", "farther"): " faster than we drive",
}
_THERE = {"left": "on the left", "ahead": "in the middle", "right": "on the right"}


def _leaves(user: RoadUser) -> bool:
    """Whether one that crosses has left the middle already."""
    return user.side == user.action.removeprefix("crossing ")


def _pace(user: RoadUser) -> str:
    """How fast the gap to one that shares our way changes; it follows the verb."""
    return _PACE.get((user.action, user.trend), "")


def _deed(user: RoadUser) -> str:
    """What to do about a road user, whose name follows."""
    near = user.distance_m <= _NEAR_M
    if user.crosses:
        if _leaves(user):
            return "drive on behind" if near else "do not wait for"
        if user.side == "ahead":
            return "stop for" if near else "slow down for"
        return "be ready for" if near else "watch"
    if user.action == "oncoming":
        return {"left": "leave room for", "ahead": "keep right of", "right": "give way to"}[user.side]
    if user.action == "leading":
        return "brake behind" if user.trend.endswith("closer") else "follow"
    if user.action == "standing":
        return "mind" if near else "watch"
    return {"left": "pass right of", "ahead": "steer around", "right": "pass left of"}[user.side] if near else "pass"


# ---------------------------------------------------------------------------------------------------------------- in detail
def detail(facts: Facts) -> str:
    """All road users from near to far: who, motion, where, where before, and what to do; then the light and the zebra."""
    parts = [f"{NUMBERS[len(facts.users)]} on the street {LIGHT[facts.light]}."]
    for user in facts.users:
        if user.moves:
            said = f"A {thing(user)} {_DOES[user.action]}{_pace(user)} {place(user)}"
        else:
            said = f"{place(user)} a {thing(user)} {_DOES[user.action]}"
        them = "them" if user.kind in _PEOPLE else "it"
        parts.append(f"{said}, first {_THERE[user.side_first]} at {user.first_m} m: {_deed(user)} {them}.")
    return " ".join([*parts, _lights(facts)])


def _lights(facts: Facts) -> str:
    zebra = {"red": ", stop at the zebra", "green": ", go over the zebra"}
    if facts.signal in zebra:
        return f"The light is {facts.signal}{zebra[facts.signal] if facts.junction else ''}."
    return "A zebra without a light." if facts.junction else "No light and no zebra."


# ------------------------------------------------------------------------------------------------------------- what changed
_WE = {
    "stopped": "We stood still",
    "slow": "We drove slowly",
    "fast": "We drove fast",
    "turning left": "We turned left",
    "turning right": "We turned right",
}


def change(facts: Facts) -> str:
    """Our own motion; then who moved, from far to near, then who did not: from where to where, across the picture and in
    depth; then how many moved."""
    parts = [f"{_WE[facts.ego]} {LIGHT[facts.light]}."]
    moved = [user for user in facts.users if user.moves]
    for user in [*moved[::-1], *(user for user in facts.users if not user.moves)]:
        parts.append(f"A {thing(user)} {_DID[user.action]}, {_path(user)}.")
    if not facts.users:
        parts.append("Nobody was on the street.")
    elif 0 < len(moved) < len(facts.users):
        parts.append(f"{NUMBERS[len(moved)]} of {NUMBERS[len(facts.users)].lower()} moved.")
    else:
        parts.append("All moved." if moved else "None moved.")
    return " ".join(parts)


def _path(user: RoadUser) -> str:
    across = f"always {_THERE[user.side_first]}"
    if user.side_first != user.side_last:
        across = f"first {_THERE[user.side_first]}, then {_THERE[user.side_last]}"
    if user.trend == "passed":
        return f"{across}, from {user.first_m} m to behind us"
    depth = f"at {user.first_m} m" if user.first_m == user.last_m else f"from {user.first_m} to {user.last_m} m"
    return f"{across}, {depth}"


# ------------------------------------------------------------------------------------------------------------------- advice
_STEPS = ("First", "Then", "Next", "Last")


def advice(facts: Facts) -> str:
    """Steps by urgency: what to do about whom, and where that one will be at the end; then our speed."""
    parts = []
    for step, user in zip(_STEPS, sorted(facts.users, key=_urgency), strict=False):
        soon = "behind us" if user.trend == "passed" else f"{user.last_m} m away {_THERE[user.side_last]}"
        parts.append(f"{step} {_deed(user)} a {thing(user)} {_DOING[user.action]}{_pace(user)} {place(user)}, soon {soon}.")
    return " ".join([*parts, _speed(facts)])


def _urgency(user: RoadUser) -> int:
    """0 for who is in our way, 5 for who concerns us least; the nearer first among equals, as the facts have them."""
    if user.crosses:
        return 4 if _leaves(user) else 0 if user.side == "ahead" else 1
    return {"leading": 2, "oncoming": 3, "standing": 3, "parked": 5}[user.action]


def _speed(facts: Facts) -> str:
    """What to do with our speed, and until when."""
    blocked = any(u.crosses and not _leaves(u) and u.distance_m <= _NEAR_M for u in facts.users)
    still = facts.ego == "stopped"
    if blocked or facts.signal == "red":
        return f"{'Stay here' if still else 'Stop'} until {'the way is free' if blocked else 'the light changes'}."
    if still:
        return "Start slowly, for it is night." if facts.light == "night" else "Start slowly."
    if facts.ego == "slow" or (facts.ego == "fast" and not facts.users and facts.light != "night"):
        return "Keep this speed."
    if facts.ego == "fast":
        return "Slow down, for it is night." if facts.light == "night" else "Slow down."
    return f"Finish the turn to the {facts.ego.removeprefix('turning ')}."
