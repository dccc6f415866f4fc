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
    from eventspec.pairs import Pair
    from eventspec.recordings import Recording
    from eventspec.recordings.qa import Question

SCENE, REAL = "street_scene", "davis346_traffic_1s"
QUESTIONS = {SCENE: "Describe the scene.", REAL: "How many road users are visible?"}
REPEATS, MOST_REPEATS = 5, 15
"""Every arm is run so often; more often where the times vary so much that the speedup of `auto` is not known."""
NARROW = 0.15
"""Width of its 95 % interval, as a share, that is good enough."""
LIVE_SECONDS = 6.0


ARMS = (
    ("autoregressive", "autoregressive", "real", "cold"),
    ("auto", "auto", "real", "cold"),
    ("cross-modal", "cross-modal", "real", "cold"),
    ("eagle", "eagle", "real", "cold"),
    ("specvlm", "specvlm", "real", "cold"),
    ("hybrid", "hybrid", "real", "cold"),
    ("ngram", "ngram", "real", "cold"),
    ("prior", "prior", "real", "cold"),
    ("cross-modal, blank events", "cross-modal", "blank", "cold"),
    ("cross-modal, other clip's events", "cross-modal", "shuffled", "cold"),
    ("second question, autoregressive", "autoregressive", "real", "warm"),
    ("second question, auto", "auto", "real", "warm"),
    ("compressed-target (lossy)", "compressed-target", "real", "cold"),
)
"""Rows of the table: label, method, whose events its drafter sees, and what was done before the question."""
STRIPS = ("autoregressive", "auto", "cross-modal", "eagle")
"""Of the picture."""


def demo(
    out: Annotated[Path, typer.Option(parser=given_path, help="Where timeline.png and trace.json go.")] = Path("out"),
    device_plan: Annotated[str, typer.Option(help="auto, one or two devices (on a CPU: cores).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Answer a question about a bundled scene and a real recording with every method, and compare them."""
    from rich.console import Console

    from eventspec.cli.live import show
    from eventspec.core import Sampling
    from eventspec.experiments.arms import Arm, Recordings, ask
    from eventspec.pairs import load_pair, warm_up
    from eventspec.pairs.pair_file import DATA
    from eventspec.recordings.qa import Question
    from eventspec.trace.timeline import draw

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=120)
    out.mkdir(parents=True, exist_ok=True)
    pair = warm_up(load_pair("embedded", device_plan, fit=False))
    own = {(name, before): pair.forgetful() for _, name, _, before in ARMS if name in pair.methods}
    arms = {row[0]: Arm(row[0], row[1], own[row[1], row[3]], *row[2:]) for row in ARMS if row[1] in pair.methods}
    questions = [Question(name, DATA / "clips" / name, asked, "-") for name, asked in QUESTIONS.items()]
    recordings, runs, picture = Recordings(questions), [], []
    for question in questions:
        rehearse(arms, recordings, question)
        rows = measured(list(arms.values()), recordings, question)
        runs += [{**row, "label": label, "method": row["drafter"]} for label, row in rows[-1].items()]
        console.rule(f"{question.id}: {question.question}")
        show_growing(console, arms["auto"], recordings, question)
        console.print(table(rows))
        console.print(*words_about(rows), sep="\n", highlight=False)
        if question.id == SCENE:
            picture = [(name, ask(arms[name], recordings, question, Sampling())) for name in STRIPS if name in arms]
            for _, asking in picture:
                asking.result()
    where = f"pair {pair.name}, {pair.workers.placement} device(s)"
    title = f'{SCENE}: "{QUESTIONS[SCENE]}"\n{where}; one run each, so times and speeds vary'
    draw([(label, asking.trace) for label, asking in picture], out / "timeline.png", title)
    picture[1][1].trace.save(out / "trace.json")
    console.rule(f"live: {REAL}, replayed in real time")
    streamed = replayed(arms["auto"].pair, recordings.real(questions[1].recording), QUESTIONS[REAL])
    if as_json:
        typer.echo(json.dumps({"runs": runs, "live": streamed}))
        return
    show(streamed)
    console.print("The real clip is outside the pair's training world: its answer is worth little, but it is the target's own.")
    console.print(f"{where}. Wrote {out / 'timeline.png'} and {out / 'trace.json'} (open it at ui.perfetto.dev)")


def rehearse(arms: dict[str, Arm], recordings: Recordings, question: Question) -> None:
    """Let the methods that choose find out what is fast here, as they do within the first answers of a pair."""
    from eventspec.core import Sampling
    from eventspec.experiments.arms import ready

    for arm in arms.values():
        if (choice := arm.pair.method(arm.method).choice) is not None:
            for _ in range(2 * len(choice.methods)):
                ready(arm, recordings, question, Sampling()).result()


def measured(arms: list[Arm], recordings: Recordings, question: Question) -> list[dict[str, Row]]:
    """Rows by arm, one dict a repeat: `REPEATS` of them, and more until the speedup of `auto` is known."""
    from eventspec.core import Sampling
    from eventspec.experiments.arms import interleaved

    rows: list[dict[str, Row]] = []
    for _, found in interleaved(arms, recordings, [question] * MOST_REPEATS, Sampling()):
        rows.append(found)
        if len(rows) >= REPEATS and width(rows) <= NARROW:
            break
    return rows


def width(rows: list[dict[str, Row]]) -> float:
    """Of the 95 % interval of the speedup of `auto` over the repeats, as a share of it."""
    from eventspec.experiments.statistics import ratio_interval

    base, own = ([row[name]["timing_ms"]["total"] for row in rows] for name in ("autoregressive", "auto"))
    low, high = ratio_interval(base, own, range(len(rows))) or (0.0, 1.0)
    return (high - low) / max(high, 1e-9)


def words_about(rows: list[dict[str, Row]]) -> list[str]:
    """How the table was measured, and whether its times can be relied on."""
    found = [f"{len(rows)} interleaved repeats; times are means in ms; every answer but the lossy one is the target's own."]
    chosen = [row["auto"]["chosen"] for row in rows]
    found.append(f"auto chose {', '.join(sorted(set(chosen)))}; it had some answers before to find out what is fast here.")
    if (share := width(rows)) > NARROW:
        load = f", load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else ""
        found.append(f"Times vary: the speedup of auto is known to {share:.0%} only{load}. Something else runs here.")
    return found


def replayed(pair: Pair, recording: Recording, question: str) -> dict[str, Any]:
    """A recording as if it came just now, and what `live` reports of it."""
    from eventspec.ask.replay import Replay
    from eventspec.cli.live import asked, report

    with pair.live("auto") as stream:
        replay = Replay(stream, recording, LIVE_SECONDS)
        return report(stream, replay, asked(stream, replay, question, 0.5, 64, quiet=True), question)


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
    bases = {found[0]["context"]: found for found in reversed(arms.values()) if found[0]["drafter"] == "autoregressive"}
    for label, found in arms.items():
        early, spoken = found[0]["timing_ms"]["first_provisional"], found[0]["speculation"]
        own = bases[found[0]["context"]]  # a second question's baseline is asked behind another one too
        same = all(row["token_ids"] == base[0]["token_ids"] for row in found)
        made.add_row(
            label,
            "-" if early is None else f"{summed(found, 'first_provisional') / len(found):.1f}",
            f"{summed(found, 'first_committed') / len(found):.1f}",
            f"{summed(found, 'total') / len(found):.1f}",
            f"{summed(own, 'total') / summed(found, 'total'):.2f}x",
            f"{summed(own, 'total') / summed(own, 'first_committed'):.2f}x",
            f"{spoken['tau']:.2f}",
            f"{spoken['accepted']}/{spoken['drafted']}",
            "yes" if same else "NO",
        )
    return made
