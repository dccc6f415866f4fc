"""How far what an event model computes lies from what its target computes, layer by layer, before and after adapters, each
beside the control: another clip's events. The states are of `train features`, the definitions in `align.gaps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.align import gaps
from eventspec.align.adapters import Adapter, AdapterConfig, Output
from eventspec.core import BadInput
from eventspec.errors import several
from eventspec.experiments.charts import Value, panels
from eventspec.experiments.statistics import ENOUGH, FEWEST, jackknife_interval, ratio_interval
from eventspec.files import write_whole
from eventspec.pairs.names import folder_named
from eventspec.pairs.pair_file import NAME, PairFile
from eventspec.pairs.trained import load_adapter_between
from eventspec.train.features import beside
from eventspec.train.states import LAYERS, VISUAL, States

MOST_RECORDINGS = 100
"""Recordings that are measured, evenly taken; all of their rows count where rows are compared pair by pair."""
MOST_ROWS = 1000
"""Rows of each model, evenly taken of those, where sets of rows are compared."""
MATCHED = 500
"""Of these, for the exact Wasserstein distance: matching takes their number to the third power."""
WRITES: dict[str, Output] = {"rows": "rows", "last": "features"}
"""Layers after an adapter, by what it writes."""
BY_SET = ("mmd", "sliced_wasserstein", "wasserstein")
PANELS = {
    "cosine": "cosine",
    "share above cosine 0.8": "above 0.8",
    "L2": "l2",
    "linear CKA": "linear_cka",
    "MMD": "mmd",
    "sliced Wasserstein": "sliced_wasserstein",
    "Wasserstein": "wasserstein",
    "classifier: share right": "classifier",
}
"""Of the figure, and what each shows."""
SHARES = tuple(f"{share:g}" for share in gaps.SHARES)
Array = np.ndarray[Any, Any]
Row = dict[str, Any]
Report = Callable[[float], None]
"""Is given the share that is done."""


@dataclass(frozen=True)
class Sides:
    """What is compared: rows of both models, float32 [N, C] and [N, D], evenly taken, and the recording of each pair; of all
    rows the sums of `gaps.by_row` by recording (none where widths differ), how many there are, and what it is called."""

    ours: Array
    theirs: Array
    groups: list[str]
    sums: dict[str, list[float]]
    counts: list[int]
    of: list[str]


def adapters_of(states: States, named: Sequence[str]) -> dict[str, Adapter]:
    """The adapters that are `named`, by a pair's name or as folders; without any, all that the pair has. BadInput for one that
    is not there, BadCheckpoint for one of other models."""
    folder = Path(states.about["pair_folder"])
    known = PairFile.read(folder).places("adapters") if (folder / NAME).is_file() else {}
    chosen = {name: folder_named("adapter", name, known) for name in named} or known
    return {name: load_adapter_between(place, states.about["fingerprints"]) for name, place in chosen.items()}


def measure(states: States, adapters: Mapping[str, Adapter], held_out: bool, report: Report = lambda share: None) -> Row:
    """The figures of all layers, as docs/schemas/bench-gaps.json has them. held_out: of recordings alone that trainings on the
    same questions keep back. BadInput for fewer than two, and where none is apart from one."""
    chosen = [place for place, one in enumerate(states.recordings) if one.held_out or not held_out]
    if len(chosen) < 2:
        kept = " that trainings keep back" if held_out else ""
        raise BadInput(f"{states.folder} holds {several(len(chosen), 'recording')}{kept}: two are needed, one is the control")
    places = [chosen[at] for at in np.linspace(0, len(chosen) - 1, min(len(chosen), MOST_RECORDINGS)).astype(int)]
    arms = [(layer, *arm) for layer in LAYERS for arm in _arms(layer, adapters)]
    others = beside([(states.recordings[place].name, states.recordings[place].window) for place in places])
    control_of = {place: places[other] for place, other in zip(places, others, strict=True)}
    rows, layers = list[Row](), dict[str, Row]()
    for done, (layer, name, control) in enumerate(arms):
        report(done / len(arms))
        read = _reader(states, layer, None if name is None else adapters[name], control_of if control else None)
        sides = _sides(states, layer, places, read)
        rows.append({"layer": layer, "adapter": name, "control": control, **_figures(sides)})
        if layer not in layers:
            layers[layer] = _about(states, layer, sides)
    report(1.0)
    recordings = {states.recordings[place].name for place in places}
    about = {"features": str(states.folder), "pair": states.about["pair"], "recordings": len(recordings)}
    notes = _notes(states, places, adapters, held_out)
    return {**about, "windows": len(places), "held_out": held_out, "layers": layers, "rows": rows, "notes": notes}


def _arms(layer: str, adapters: Mapping[str, Adapter]) -> Iterator[tuple[str | None, bool]]:
    """Adapters to a layer by name, None before any; and whether the events are another clip's. Of adapters that read several
    layers of a language model not all states are there."""
    fit = [name for name, one in adapters.items() if WRITES.get(layer) == one.config.output and _inputs(one.config, "")]
    for name in (None, *fit):
        yield from ((name, False), (name, True))


def _inputs(config: AdapterConfig, role: str) -> list[str]:
    """The names of the states that an adapter reads, of an event model with its own events or another clip's; none where one of
    them is not kept."""
    if config.output == "rows":
        return [*(f"tower_{number}.drafter" for number in config.layers[:-1]), "tower.drafter"]
    if config.taps:
        return [f"penultimate.{role}"] if len(config.layers) == 1 else []
    return [{1: f"last.{role}", 2: "read.drafter"}[number] for number in config.layers]


def _reader(states: States, layer: str, adapter: Adapter | None, beside: Mapping[int, int] | None) -> Callable[[int], Array]:
    """What gives the event model's side of a layer, float32 [N, C] for a recording; `beside`: with the events of another one,
    in visual layers of this one, in those of text as they were read with the same text."""
    role = "drafter" if beside is None else "control"
    if adapter is None:
        names = [f"{layer}.drafter" if layer in VISUAL else f"{layer}.{role}"]
    else:
        names = _inputs(adapter.config, role)
    for name in names:
        if adapter is not None and states.width(name) != adapter.config.reads:
            raise BadInput(f"{states.folder} has no {name} of width {adapter.config.reads}, which the adapter reads")

    @torch.no_grad()
    def read(place: int) -> Array:
        at = place if beside is None or layer not in VISUAL else beside[place]
        found = [states.rows(at, name) for name in names]
        if adapter is None:
            return found[0]
        written: Array = adapter([torch.from_numpy(rows)[None] for rows in found])[0].numpy()
        return written

    return read


def _sides(states: States, layer: str, places: Sequence[int], read: Callable[[int], Array]) -> Sides:
    """Both sides of a layer over recordings."""
    target = f"{layer}.target"
    counts = [states.recordings[place].rows(target) for place in places]
    total = sum(counts)
    picked, ends = np.linspace(0, total - 1, min(total, MOST_ROWS)).astype(int), np.cumsum([0, *counts])
    ours, theirs, groups, sums = list[Array](), list[Array](), list[str](), dict[str, list[float]]()
    for place, begin, end in zip(places, ends[:-1], ends[1:], strict=True):
        x, y = read(place), states.rows(place, target)
        here = picked[(picked >= begin) & (picked < end)] - begin
        ours.append(x[here])
        theirs.append(y[here])
        groups += [states.recordings[place].name] * len(here)
        if x.shape == y.shape:
            for name, values in gaps.by_row(x, y).items():
                sums.setdefault(name, []).append(float(values.sum()))
    of = [states.recordings[place].name for place in places]
    return Sides(np.concatenate(ours), np.concatenate(theirs), groups, sums, counts, of)


def _figures(sides: Sides) -> Row:
    """Every gap with its interval; None, and why, where it does not exist."""
    found: Row = {"cosine": None, "l2": None, "above": dict.fromkeys(SHARES), **dict.fromkeys(BY_SET)}
    ends: Row = {**found, "above": dict.fromkeys(SHARES)}
    missing = dict[str, str]()
    for name, sums in sides.sums.items():
        kind, _, share = name.partition(" ")
        value, interval = sum(sums) / sum(sides.counts), ratio_interval(sums, sides.counts, sides.of)
        if share:
            found[kind][share], ends[kind][share] = value, _within(interval)
        else:
            found[kind], ends[kind] = value, interval
    for name, statistic in _statistics(sides).items():
        found[name], ends[name] = statistic(np.ones(len(sides.groups), bool)), jackknife_interval(statistic, sides.groups)
    ends["linear_cka"] = _within(ends["linear_cka"])
    if not sides.sums:
        widths = f"the event model's rows have {sides.ours.shape[1]} columns, the target's {sides.theirs.shape[1]}"
        why = f"{widths}: they have no space in common but through an adapter"
        missing |= dict.fromkeys(("cosine", "l2", "above", *BY_SET, "classifier"), why)
    found["classifier"] = ends["classifier"] = None
    if sides.sums and len(set(sides.groups)) > 1:
        right = gaps.classified(sides.ours, sides.theirs, sides.groups)
        found["classifier"] = float(right.mean())
        ends["classifier"] = _within(ratio_interval(right.tolist(), [1.0] * len(right), sides.groups * 2))
    elif sides.sums:
        missing["classifier"] = "all windows are of one recording: there is no other one to judge it by"
    if len(set(sides.of)) < FEWEST:
        missing["intervals"] = f"{several(len(set(sides.of)), 'recording')}: an interval takes {FEWEST} at least"
    return {**found, "intervals": ends, "missing": missing}


def _within(interval: list[float] | None) -> list[float] | None:
    """The interval of what lies in [0, 1]."""
    return None if interval is None else [min(1.0, max(0.0, end)) for end in interval]


def _statistics(sides: Sides) -> dict[str, Callable[[Array], float]]:
    """What gives a gap between sets of the pairs of rows that a mask keeps, by its name."""
    x, y, width = sides.ours, sides.theirs, _ruler(sides)
    found: dict[str, Callable[[Array], float]] = {"linear_cka": lambda kept: gaps.linear_cka(x[kept], y[kept])}
    if sides.sums:
        # Fewer rows lie further apart along any direction: as many as the floor has.
        half = _halves(sides)[1]
        sliced, matched = (_evenly(len(x), most) for most in (half or len(x), min(half or len(x), MATCHED)))
        found["mmd"] = lambda kept: gaps.mmd(x[kept], y[kept], width)
        found["sliced_wasserstein"] = lambda kept: gaps.sliced_wasserstein(x[kept & sliced], y[kept & sliced])
        found["wasserstein"] = lambda kept: gaps.wasserstein(x[kept & matched], y[kept & matched])
    return found


def _ruler(sides: Sides) -> float | None:
    """The bandwidth of a layer: that of the target's rows, for all arms and the floor. None where they are all the same."""
    return gaps.median_distance(sides.theirs, sides.theirs) or None


def _halves(sides: Sides) -> tuple[Array, int]:
    """Which rows are of every other recording, bool [N], and how many there are of both kinds: 0 for fewer than two."""
    names = list(dict.fromkeys(sides.groups))
    odd = np.array([names.index(group) % 2 == 1 for group in sides.groups])
    half = min(int(odd.sum()), int((~odd).sum()))
    return odd, half if half > 1 else 0


def _evenly(count: int, most: int) -> Array:
    """Which of so many rows are taken, bool [N]."""
    found = np.zeros(count, bool)
    found[np.linspace(0, count - 1, min(count, most)).astype(int)] = True
    return found


def _about(states: States, layer: str, sides: Sides) -> Row:
    """How many rows were compared, how wide they are, and the least that gaps between sets can be: those between the target's
    own rows of every other recording and of the rest."""
    odd, half = _halves(sides)
    one, other = (sides.theirs[kept][_evenly(int(kept.sum()), half)] for kept in (odd, ~odd))
    floor: dict[str, float] | None = None
    if half:
        matched = _evenly(half, MATCHED)
        floor = {"mmd": gaps.mmd(one, other, _ruler(sides)), "sliced_wasserstein": gaps.sliced_wasserstein(one, other)}
        floor["wasserstein"] = gaps.wasserstein(one[matched], other[matched])
    widths = {role: states.width(f"{layer}.{role}") for role in ("drafter", "target")}
    sampled = {
        "pairs": sum(sides.counts),
        "sets": len(sides.groups),
        "matched": min(half or len(sides.groups), MATCHED),
        "floor": half,
    }
    return {"widths": widths, "rows": sampled, "floor": floor}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the figures of `measure` as PNG or SVG, by the suffix; whole or not at all. BadInput where it cannot be written."""
    drawn = {title: [value for row in found["rows"] for value in _drawn(found, row, name)] for title, name in PANELS.items()}
    kinds = {"lossless": "with its own events", "control": "control: another clip's events"}
    n = several(found["recordings"], "recording")
    title = f"How far what the event model computes lies from the target's own: {found['pair']}, {n}"
    labels = list(dict.fromkeys(map(label, found["rows"])))
    figure = panels(title, drawn, labels, kinds, "between the target's own rows of different clips, or chance")
    write_whole(path, lambda part: figure.savefig(part, format=path.suffix[1:], dpi=130, facecolor="white"))


def label(row: Row) -> str:
    """Layer and adapter of a row."""
    return str(row["layer"]) if row["adapter"] is None else f"{row['layer']}, {row['adapter']}"


def _drawn(found: Mapping[str, Any], row: Row, name: str) -> list[Value]:
    """One value of a panel, or none."""
    kind, _, share = name.partition(" ")
    value, ends = (side[kind][share] if share else side[kind] for side in (row, row["intervals"]))
    limit = 0.5 if name == "classifier" else (found["layers"][row["layer"]]["floor"] or {}).get(name)
    kind = "control" if row["control"] else "lossless"
    return [] if value is None else [Value(label(row), value, ends or (), limit, kind)]


def _notes(states: States, places: Sequence[int], adapters: Mapping[str, Adapter], held_out: bool) -> list[str]:
    """What a reader has to know, in sentences."""
    recordings = len({states.recordings[place].name for place in places})
    notes = []
    if recordings < FEWEST:
        notes.append(f"too few recordings for intervals: n = {recordings}, at least {FEWEST} are needed")
    elif recordings < ENOUGH:
        notes.append(f"intervals of fewer than {ENOUGH} recordings are too narrow: n = {recordings}")
    if len(places) < len(states.recordings) and not held_out:
        notes.append(f"{len(places)} of {len(states.recordings)} recordings were measured, evenly taken")
    if left := [name for name, one in adapters.items() if one.config.output == "tower" or not _inputs(one.config, "")]:
        notes.append(f"no states are kept of what {', '.join(left)} read or write: left out")
    if adapters and not held_out and not all(states.recordings[place].held_out for place in places):
        notes.append("adapters may have learned from some of these recordings: --held-out leaves those out")
    if states.about["left_out"]:
        notes.append(f"{several(states.about['left_out'], 'recording')} more did not fit into the folder of states")
    worst = max(states.about["arrays"].values(), key=lambda own: own["error"])["error"]
    notes.append(f"states are stored as {states.about['stored']}: their error is {worst:.2g} of them at most, root mean square")
    return notes
