"""What a comparison says in words: the verdict, which methods belong together, and how far the figures can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eventspec.errors import several
from eventspec.experiments.names import ALL_CORES, BASE
from eventspec.experiments.statistics import ENOUGH, FEWEST

Figures = Mapping[str, Any]
CROWDED = 0.7
"""Of the baseline on all cores against that on one: it can be slower only where other work takes the cores."""
SECTIONS = ("", "controls: they do not see this recording", "lossy: other answers than the target's, no ceiling holds")


def grouped(methods: Mapping[str, Figures]) -> list[tuple[str, list[str]]]:
    """Names of methods, each group under its title: lossless ones, controls, lossy ones. Groups without any are left out."""
    places = {name: 2 if not own["lossless"] else int(own["control"]) for name, own in methods.items()}
    groups = [(title, [name for name in methods if places[name] == place]) for place, title in enumerate(SECTIONS)]
    return [(title, names) for title, names in groups if names]


def verdict(methods: Mapping[str, Figures], questions: int) -> str:
    """Whether the answers were the target's, and what that was worth, in one sentence."""
    measured = {name: own for name, own in methods.items() if own["lossless"] and own.get("speedup") is not None}
    if not measured:
        return f"no speedups: they take the baseline too, --method {BASE}"
    apart = [f"{name} {own['identical']}" for name, own in measured.items() if own["identical"] < questions]
    same = f"identical {questions} of {questions}" if not apart else f"NOT identical, of {questions}: {', '.join(apart)}"
    drafted = {name: own for name, own in measured.items() if not own["control"] and name.split(",")[0] != BASE}
    if not drafted:
        return same
    name = next((name for name in drafted if name.split(",")[0] == "auto"), None)
    best = name or max(drafted, key=lambda name: drafted[name]["speedup"])
    own = drafted[best]
    gain = f"{same}; {'' if name else 'fastest: '}{best} {own['speedup']:.2f}x, of {own['ceiling']:.2f}x possible"
    rivals = {name: rest["speedup"] for name, rest in measured.items() if rest["control"] or name.split(",")[0] == BASE}
    other = max(rivals, key=lambda name: rivals[name], default=None)
    if rivals.get(ALL_CORES, 1.0) < CROWDED:
        gain += f"; but the cores were busy with something else: {ALL_CORES} {rivals[ALL_CORES]:.2f}x"
    if other is None or rivals[other] <= own["speedup"]:
        return gain
    return f"{gain}; but {'the control ' if measured[other]['control'] else ''}{other}: {rivals[other]:.2f}x"


def remarks(found: Figures) -> list[str]:
    """Sentences about how far the figures can be trusted: n, what the intervals are, what is above a ceiling and why."""
    from eventspec.lanes.workers import described_placement  # imports torch

    methods, where = found["methods"], found["environment"]
    n = f"n = {several(found['n'], 'question')} about {several(found['recordings'], 'recording')}"
    about = f"{n}, {described_placement(where['device_plan'], 'devices' in where)}."
    if where.get("load"):
        about += f" Load average {where['load'][0]:.1f} on {where['cores']} cores."
    some = [own["speedup_ci95"] for own in methods.values() if "speedup_ci95" in own]
    if some and all(None in interval for interval in some):
        about += f" Too few recordings for intervals: n = {found['recordings']}, at least {FEWEST} are needed."
    elif some:
        about += f" Intervals: 95 %, studentized bootstrap over recordings, n = {found['recordings']}."
        if found["recordings"] < ENOUGH:
            about += f" With fewer than {ENOUGH} they are too narrow: in simulations they hold the truth in about 90 of 100."
    words = [about]
    if known := found.get("learned_from"):
        others = "" if where.get("held_out") else "; --held-out asks about those alone that trainings keep back"
        share, parts = f"{known['questions']} of {several(found['n'], 'question')}", ", ".join(known["parts"])
        words.append(f"In-sample: {share} are about recordings that parts of this pair learned from: {parts}{others}.")
    for name, own in methods.items():
        if not own["lossless"] or own.get("speedup") is None or own["speedup"] <= own["ceiling"]:
            continue
        why = "can only be noise: ask more questions, on a quieter machine"
        if "auto" not in (own["device_plan"], where["device_plan"]) and own["device_plan"] != where["device_plan"]:
            why = f"is that of the target on device plan {where['device_plan']}, this ran on plan {own['device_plan']}"
        words.append(f"{name} is above the ceiling of {own['ceiling']:.2f}x, which {why}.")
    ties = {name: own["ties"] for name, own in methods.items() if own.get("ties")}
    words += [f"{name}: {count} of the differences are near ties of rounding." for name, count in ties.items()]
    return words
