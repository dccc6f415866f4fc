"""What is true in one street clip, as the language and the training labels need it. It knows no pixels and no words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("car", "truck", "bus", "pedestrian", "cyclist")
ACTIONS = ("parked", "oncoming", "leading", "crossing left", "crossing right", "standing")
"""`leading` moves the way we face; `crossing left` moves from right to left. Only pedestrians stand; only vehicles park."""
COLOURS = ("red", "blue", "green", "yellow", "white", "black")
"""Of cars. Other kinds have no colour in the language."""
EGO = ("stopped", "slow", "fast", "turning left", "turning right")
LIGHTS = ("day", "dusk", "night")
SIGNALS = ("none", "red", "green")
SIDES = ("left", "ahead", "right")
DISTANCES_M = (5, 10, 15, 20)
"""Distances are given to the nearest 5 m; the world keeps road users away from the borders at 7.5, 12.5 and 17.5 m."""
TRENDS = ("closer", "much closer", "farther", "steady", "passed")
"""How the distance changes over the clip: by more than a metre, by more than five, or not; `passed` is beside or behind us at
its end."""


@dataclass(frozen=True)
class RoadUser:
    """One visible road user at mid-clip; the last five fields are about the whole clip, from first to last moment: sides, where
    out of the picture on the left is left, and distances to the nearest 5 m, 5 at least."""

    kind: str
    action: str
    colour: str | None
    distance_m: int
    side: str
    pixels: int
    trend: str
    side_first: str
    side_last: str
    first_m: int
    last_m: int

    @property
    def moves(self) -> bool:
        return self.action not in ("parked", "standing")

    @property
    def crosses(self) -> bool:
        return self.action.startswith("crossing")


@dataclass(frozen=True)
class Facts:
    """The whole clip: `users` are the visible ones, nearest first; `junction` means a crossing road with a zebra ahead."""

    ego: str
    light: str
    signal: str
    junction: bool
    users: tuple[RoadUser, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
