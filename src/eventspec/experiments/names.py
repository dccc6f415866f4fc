"""Names of arms: the baseline, the controls, the kinds of events and contexts, and what an arm is called by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eventspec.errors import BadInput, check_known

BASE = "autoregressive"
ALL_CORES = f"{BASE}, all cores"
BLIND = ("prior", "ngram")
"""Methods that draft from text alone."""
CONTROLS = (*BLIND, "hybrid-blind")
EVENTS = ("real", "blank", "shuffled", "scattered")
"""A recording's own events; none; those of another recording; its own at random pixels."""
SEES_EVENTS = ("cross-modal", "aligned", "event-eagle", "skip-encode", "cascade", "hybrid", "auto")
CONTEXTS = ("cold", "warm", "live")


def check_arms(methods: Sequence[str], events: Sequence[str], contexts: Sequence[str]) -> None:
    """BadInput for contexts and kinds of events that do not exist, or that no method sees."""
    check_known("context", contexts, CONTEXTS)
    for kind in events:
        if kind not in EVENTS and (Path(kind).suffix or Path(kind).exists()):
            whose = f"--control (--events) says whose events drafters see ({', '.join(EVENTS)})"
            raise BadInput(f"{whose}, and {kind} is none: recordings are named by the lines of --questions")
    check_known("control", events, EVENTS)
    controls = [kind for kind in events if kind != EVENTS[0]]
    if controls and not set(methods) & set(SEES_EVENTS):
        unchanged = f"{' and '.join(controls)} events would change nothing"
        problem = f"none of the methods {', '.join(methods)} sees events, so {unchanged}"
        raise BadInput(f"{problem}: add the method {' or '.join(SEES_EVENTS)}, or leave --control out")


def with_events(arm: str, kind: str) -> str:
    """What an arm is called whose drafters see a kind of events."""
    return arm if kind == EVENTS[0] else f"{arm}, {kind} events"
