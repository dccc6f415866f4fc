"""``eventspec demo``: the main job on a bundled scene and on a bundled real recording, with every control beside it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from rich.console import Console

    from eventspec.ask import Generation
    from eventspec.pairs import Pair
    from eventspec.recordings import Recording

SCENE, REAL = "street_scene", "davis346_traffic_1s"
QUESTIONS = {SCENE: "Describe the scene.", REAL: "How many road users are visible?"}
REPEATS = 5


@dataclass(frozen=True)
class Arm:
    """One row of the table: a method, and whose events its drafter sees."""

    label: str
    method: str
    events: str = "real"


ARMS = (
    Arm("autoregressive", "autoregressive"),
    Arm("cross-modal", "cross-modal"),
    Arm("eagle", "eagle"),
    Arm("specvlm", "specvlm"),
    Arm("ngram", "ngram"),
    Arm("prior", "prior"),
    Arm("cross-modal, blank events", "cross-modal", "blank"),
    Arm("cross-modal, other clip's events", "cross-modal", "shuffled"),
    Arm("compressed-target (lossy)", "compressed-target"),
)


def demo(
    out: Annotated[Path, typer.Option(parser=given_path, help="Where timeline.png and trace.json go.")] = Path("out"),
    device_plan: Annotated[str, typer.Option(help="auto, one or two devices (on a CPU: cores).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Answer a question about a bundled scene and a real recording with every method, and compare them."""
    from rich.console import Console

    from eventspec.cli.timeline import draw
    from eventspec.pairs import load_pair, warm_up
    from eventspec.pairs.pair_file import DATA
    from eventspec.recordings import Recording

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=120)
    out.mkdir(parents=True, exist_ok=True)
    pair = warm_up(load_pair("embedded", device_plan))
    recordings = {name: Recording.open(DATA / "clips" / name) for name in QUESTIONS}
    runs, strips = [], []
    for name, recording in recordings.items():
        other = recordings[REAL if name == SCENE else SCENE]
        rows = measure(pair, recording, other, QUESTIONS[name])
        runs += [row for _, rows_of_arm in rows for row in rows_of_arm[-1:]]
        console.rule(f"{name}: {QUESTIONS[name]}")
        tell(console, pair, recording, QUESTIONS[name])
        console.print(table(rows))
        if name == SCENE:
            strips = [
                (arm.label, ask(pair, recording, other, QUESTIONS[name], arm)) for arm in ARMS[:4] if arm.method in pair.methods
            ]
            for _, asking in strips:
                asking.result()
    where = f"pair {pair.name}, {pair.workers.placement} device(s)"
    title = f'{SCENE}: "{QUESTIONS[SCENE]}"\n{where}; one run each, so times and speeds vary'
    draw([(label, asking.trace) for label, asking in strips], out / "timeline.png", title)
    strips[1][1].trace.save(out / "trace.json")
    if as_json:
        typer.echo(json.dumps({"runs": runs}))
        return
    console.print(
        f"pair {pair.name}, {pair.workers.placement} device(s), {REPEATS} interleaved repeats; times are means in ms."
    )
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > 0.75 * cores:
        console.print(f"Load average {load:.1f} on {cores} cores: something else runs here, so the times above say little.")
    console.print("The real clip is outside the pair's training world: its answer is worth little, but it is the target's own.")
    console.print(f"wrote {out / 'timeline.png'} and {out / 'trace.json'} (open it at ui.perfetto.dev)")


def ask(pair: Pair, recording: Recording, other: Recording, question: str, arm: Arm) -> Generation:
    """A question ready to run, with real events or a control's."""
    from eventspec.ask import generation
    from eventspec.core import Sampling
    from eventspec.events.disturb import blank

    if arm.events == "blank" and recording.events is not None:
        recording = replace(recording, events=blank(recording.events))
    if arm.events == "shuffled":
        recording = replace(recording, events=other.events)
    return generation(pair, recording, question, arm.method, None, Sampling(), events_may_lack=True)


def measure(pair: Pair, recording: Recording, other: Recording, question: str) -> list[tuple[Arm, list[dict[str, Any]]]]:
    """Every arm, interleaved, one warm-up and REPEATS timed runs: generate objects with recording and events named."""
    rows: list[tuple[Arm, list[dict[str, Any]]]] = [(arm, []) for arm in ARMS if arm.method in pair.methods]
    for repeat in range(REPEATS + 1):
        for arm, found in rows:
            result = ask(pair, recording, other, question, arm).result()
            if repeat:
                found.append({"recording": recording.name, "events": arm.events, "label": arm.label, **result.as_json()})
    return rows


def tell(console: Console, pair: Pair, recording: Recording, question: str) -> None:
    """The answer as it grew, slowed down so that an eye can follow."""
    from eventspec.cli.show import joined, record, replay

    asking = ask(pair, recording, recording, question, ARMS[1])
    updates = record(asking)
    if not console.is_terminal:
        console.print("how cross-modal's answer grew:")
    if console.is_terminal:
        console.print("[dim]replayed 40 times slower; underlined = provisional, bold = committed, struck = retracted[/dim]")
    replay(console, updates if console.is_terminal else joined(updates), pair.vocabulary.decode, slower=40.0)
    console.print(f"answer: {asking.result().text}", highlight=False, markup=False)


def table(rows: list[tuple[Arm, list[dict[str, Any]]]]) -> Any:
    """The comparison: milliseconds are means, speedup and ceiling ratios of sums."""
    from rich.table import Table

    def summed(found: list[dict[str, Any]], stage: str) -> float:
        return float(sum(row["timing_ms"][stage] or 0.0 for row in found))

    made = Table(box=None, header_style="bold", pad_edge=False)
    heads = (
        "method",
        "first provisional",
        "first committed",
        "total ms",
        "speedup",
        "ceiling",
        "tau",
        "accepted/nodes",
        "identical",
    )
    for number, head in enumerate(heads):
        made.add_column(head, justify="left" if number == 0 else "right", overflow="fold")
    base = rows[0][1]
    ceiling = summed(base, "total") / summed(base, "first_committed")
    for arm, found in rows:
        early, spoken = found[0]["timing_ms"]["first_provisional"], found[0]["speculation"]
        same = all(row["token_ids"] == base[0]["token_ids"] for row in found)
        made.add_row(
            arm.label,
            "-" if early is None else f"{summed(found, 'first_provisional') / len(found):.1f}",
            f"{summed(found, 'first_committed') / len(found):.1f}",
            f"{summed(found, 'total') / len(found):.1f}",
            f"{summed(base, 'total') / summed(found, 'total'):.2f}x",
            f"{ceiling:.2f}x",
            f"{spoken['tau']:.2f}",
            f"{spoken['accepted']}/{spoken['drafted']}",
            "yes" if same else "NO",
        )
    return made
