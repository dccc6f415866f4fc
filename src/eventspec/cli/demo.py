"""``eventspec demo``: the main job on a bundled scene and on a bundled real recording, with every control beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from rich.console import Console

    from eventspec.experiments.arms import Arm, Recordings
    from eventspec.experiments.figures import Row
    from eventspec.recordings.qa import Question

SCENE, REAL = "street_scene", "davis346_traffic_1s"
QUESTIONS = {SCENE: "Describe the scene.", REAL: "How many road users are visible?"}
REPEATS = 5


ARMS = (
    ("autoregressive", "autoregressive", "real"),
    ("cross-modal", "cross-modal", "real"),
    ("eagle", "eagle", "real"),
    ("specvlm", "specvlm", "real"),
    ("ngram", "ngram", "real"),
    ("prior", "prior", "real"),
    ("cross-modal, blank events", "cross-modal", "blank"),
    ("cross-modal, other clip's events", "cross-modal", "shuffled"),
    ("compressed-target (lossy)", "compressed-target", "real"),
)
"""Rows of the table: label, method, and whose events its drafter sees."""


def demo(
    out: Annotated[Path, typer.Option(parser=given_path, help="Where timeline.png and trace.json go.")] = Path("out"),
    device_plan: Annotated[str, typer.Option(help="auto, one or two devices (on a CPU: cores).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Answer a question about a bundled scene and a real recording with every method, and compare them."""
    from rich.console import Console

    from eventspec.cli.timeline import draw
    from eventspec.core import Sampling
    from eventspec.experiments.arms import Arm, Recordings, ask, interleaved
    from eventspec.pairs import load_pair, warm_up
    from eventspec.pairs.pair_file import DATA
    from eventspec.recordings.qa import Question

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=120)
    out.mkdir(parents=True, exist_ok=True)
    pair = warm_up(load_pair("embedded", device_plan, fit=False))
    arms = [Arm(label, method, pair, events) for label, method, events in ARMS if method in pair.methods]
    questions = [Question(name, DATA / "clips" / name, asked, "-") for name, asked in QUESTIONS.items()]
    recordings, runs, strips = Recordings(questions), [], []
    for question in questions:
        rows = [found for _, found in interleaved(arms, recordings, [question] * REPEATS, Sampling())]
        runs += [{**row, "label": label, "method": row["drafter"]} for label, row in rows[-1].items()]
        console.rule(f"{question.id}: {question.question}")
        show_growing(console, arms[1], recordings, question)
        console.print(table(rows))
        if question.id == SCENE:
            strips = [(arm.name, ask(arm, recordings, question, Sampling())) for arm in arms[:4]]
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


def show_growing(console: Console, arm: Arm, recordings: Recordings, question: Question) -> None:
    """The answer as it grew, slowed down so that an eye can follow."""
    from eventspec.cli.show import joined, record, replay
    from eventspec.core import Sampling
    from eventspec.experiments.arms import ask

    asking = ask(arm, recordings, question, Sampling())
    updates = record(asking)
    if not console.is_terminal:
        console.print(f"how {arm.name}'s answer grew:")
    if console.is_terminal:
        console.print("[dim]replayed 40 times slower; underlined = provisional, bold = committed, struck = retracted[/dim]")
    replay(console, updates if console.is_terminal else joined(updates), arm.pair.vocabulary.decode, slower=40.0)
    console.print(f"answer: {asking.result().text}", highlight=False, markup=False)


def table(rows: list[dict[str, Row]]) -> Any:
    """The comparison of rows by arm, the baseline first: milliseconds are means, speedup and ceiling ratios of sums."""
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
    arms = {label: [found[label] for found in rows] for label in rows[0]}
    base = next(iter(arms.values()))
    ceiling = summed(base, "total") / summed(base, "first_committed")
    for label, found in arms.items():
        early, spoken = found[0]["timing_ms"]["first_provisional"], found[0]["speculation"]
        same = all(row["token_ids"] == base[0]["token_ids"] for row in found)
        made.add_row(
            label,
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
