"""Names of arms: the baseline, the controls, the kinds of events and contexts, and what an arm is called by them."""

from __future__ import annotations

BASE = "autoregressive"
ALL_CORES = f"{BASE}, all cores"
BLIND = ("prior", "ngram")
"""Methods that draft from text alone."""
CONTROLS = (*BLIND, "hybrid-blind")
EVENTS = ("real", "blank", "shuffled", "scattered")
"""A recording's own events; none; those of another recording; its own at random pixels."""
SEES_EVENTS = ("cross-modal", "aligned", "event-eagle", "skip-encode", "cascade", "hybrid", "auto")
CONTEXTS = ("cold", "warm", "live")


def with_events(arm: str, kind: str) -> str:
    """What an arm is called whose drafters see a kind of events."""
    return arm if kind == EVENTS[0] else f"{arm}, {kind} events"
