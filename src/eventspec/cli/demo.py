"""``eventspec demo``: the main job on a bundled scene and on a bundled real recording, with every control beside it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eventspec.cli.paths import check_in_folder, given_path

if TYPE_CHECKING:
    from rich.console import Console

    from eventspec.core import Trace
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
PATIENCE_S = 90.0
"""A clip's repeats end with the one that runs then: a busy machine may be ten times slower."""
LIVE_SECONDS = 6.0


CONTROLS = "controls: drafts that see nothing of the recording"
SECOND = "a second question about the same recording"
LOSSY = "lossy: not the target's answer, no ceiling holds for it"


class Shown(NamedTuple):
    """A row of the table: label, method, whose events its drafter sees, what was done before the question, and the heading that
    it stands under."""

    label: str
    method: str
    events: str = "real"
    context: str = "cold"
    heading: str = ""


ARMS = (
    Shown("autoregressive", "autoregressive"),
    Shown("auto", "auto"),
    Shown("cross-modal", "cross-modal"),
    Shown("eagle", "eagle"),
    Shown("specvlm", "specvlm"),
    Shown("hybrid", "hybrid"),
    Shown("prior", "prior", heading=CONTROLS),
    Shown("ngram", "ngram", heading=CONTROLS),
    Shown("cross-modal, no events", "cross-modal", "blank", heading=CONTROLS),
    Shown("cross-modal, other events", "cross-modal", "shuffled", heading=CONTROLS),
    Shown("autoregressive, again", "autoregressive", context="warm", heading=SECOND),
    Shown("auto, again", "auto", context="warm", heading=SECOND),
    Shown("compressed-target", "compressed-target", heading=LOSSY),
)
STRIPS = ("autoregressive", "auto", "cross-modal", "eagle")
"""Of the picture."""
COLUMNS = 80


def demo(
    out: Annotated[Path, typer.Option(parser=given_path, help="Where timeline.png and trace.json go.")] = Path("out"),
    html: Annotated[
        Path | None, typer.Option(parser=given_path, help="Write a page with the clips, the growing answers and the tables.")
    ] = None,
    device_plan: Annotated[str, typer.Option(help="one: shared by the models; two: one each, on a CPU a core; auto.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Answer a question about a bundled scene and a real recording with every method, and compare them."""
    from rich.console import Console

    from eventspec.cli.live import show
    from eventspec.cli.page import Clip, write_page
    from eventspec.files import check_writable
    from eventspec.lanes.workers import choose_placement, described_placement
    from eventspec.trace.timeline import draw

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=COLUMNS)
    choose_placement(device_plan)
    check_writable(out / "timeline.png")  # seen now; a demo that is interrupted leaves no folder behind
    check_writable(out / "trace.json")
    if html is not None and html.absolute().parent == out.absolute():
        check_writable(html)
    elif html is not None:
        check_in_folder(html, "--html")
    with progress(console, "loading the bundled pair, and measuring what its steps cost here"):
        shown = Bench.loaded(device_plan)
    runs, clips = [], list[Clip]()
    for question in shown.questions:
        doing = f"{question.id}: {len(shown.arms)} ways to answer, {REPEATS} to {MOST_REPEATS} times each"
        with progress(console, doing) as say:
            began = time.monotonic()
            rehearse(shown.arms, shown.recordings, question)
            rows = measured(list(shown.arms.values()), shown.recordings, question, began + PATIENCE_S, say)
        runs += [{**row, "label": label, "method": row["drafter"]} for label, row in rows[-1].items()]
        console.rule(f"{question.id}: {question.question}")
        growth = show_growing(console, shown.arms["auto"], shown.recordings, question)
        says = verdict(rows)
        console.print(*says, table(rows), words_about(rows), sep="\n", highlight=False, markup=False)
        clips.append(Clip(question, shown.recordings.real(question.recording), growth, says, table_rows(rows)))
    pictures = shown.traced(shown.questions[0])
    where = f"pair {shown.pair.name}, {described_placement(shown.pair.workers.placement)}"
    title = f'{SCENE}: "{QUESTIONS[SCENE]}"\n{where}; one run each, so times and speeds vary'
    out.mkdir(parents=True, exist_ok=True)
    draw(pictures, out / "timeline.png", title)
    pictures[1][1].save(out / "trace.json")
    if html is not None:
        draw(pictures, out / "timeline.svg", title)
        write_page(html, clips, (out / "timeline.svg").read_text(), where)
    console.rule(f"live: {REAL}, replayed in real time")
    streamed = replayed(shown.pair, shown.recordings.real(shown.questions[1].recording), QUESTIONS[REAL])
    if as_json:
        typer.echo(json.dumps({"runs": runs, "live": streamed}))
        return
    show(streamed)
    written = f"{where}. Wrote {out / 'timeline.png'} and {out / 'trace.json'} (open it at ui.perfetto.dev)"
    console.print(written if html is None else f"{written}, and {html}", highlight=False)


@contextmanager
def progress(console: Console, doing: str) -> Iterator[Callable[[str], object]]:
    """Say what takes a while, and how far it is: beside a spinner on a terminal, else in lines."""
    if console.is_terminal:
        with console.status(doing) as status:
            yield lambda text: status.update(f"{doing}: {text}")
    else:
        typer.echo(f"{doing} ...", err=True)
        yield lambda text: typer.echo(f"  {text}", err=True)


@dataclass(frozen=True)
class Bench:
    """What is compared: the pair, the rows of the table by label, the clips and a question about each."""

    pair: Pair
    arms: dict[str, Arm]
    questions: list[Question]
    recordings: Recordings

    @classmethod
    def loaded(cls, device_plan: str) -> Bench:
        """The embedded pair, warm, with methods that choose and have learnt nothing yet, apart for every context."""
        from eventspec.experiments.arms import Arm, Recordings
        from eventspec.pairs import load_pair, warm_up
        from eventspec.pairs.pair_file import DATA
        from eventspec.recordings.qa import Question

        pair = warm_up(load_pair("embedded", device_plan, fit=False))
        wanted = [one for one in ARMS if one.method in pair.methods]
        own = {(one.method, one.context): pair.forgetful() for one in wanted}
        arms = {one.label: Arm(one.label, one.method, own[one.method, one.context], one.events, one.context) for one in wanted}
        questions = [Question(name, DATA / "clips" / name, asked, "-") for name, asked in QUESTIONS.items()]
        return cls(pair, arms, questions, Recordings(questions))

    def traced(self, question: Question) -> list[tuple[str, Trace]]:
        """One more run of each of `STRIPS`."""
        from eventspec.core import Sampling
        from eventspec.experiments.arms import ask

        asked = [(name, ask(self.arms[name], self.recordings, question, Sampling())) for name in STRIPS if name in self.arms]
        return [(name, asking.result().trace) for name, asking in asked]


def rehearse(arms: dict[str, Arm], recordings: Recordings, question: Question) -> None:
    """Let the methods that choose find out what is fast here, as they do within the first answers of a pair."""
    from eventspec.core import Sampling
    from eventspec.experiments.arms import ready
    from eventspec.pairs.auto import STANDING

    for arm in arms.values():
        if (choice := arm.pair.method(arm.method).choice) is not None:
            again = STANDING if arm.context != "cold" else 0  # one question is a standing one here
            for _ in range(2 * len(choice.methods) + again):
                ready(arm, recordings, question, Sampling()).result()


def measured(
    arms: list[Arm], recordings: Recordings, question: Question, until: float, say: Callable[[str], object]
) -> list[dict[str, Row]]:
    """Rows by arm, one dict a repeat: `REPEATS` of them, and more until the speedup of `auto` is known. Behind `until`, in
    seconds of the monotonic clock, the repeat that is running is the last one; `say` hears of every repeat."""
    from eventspec.core import Sampling
    from eventspec.experiments.arms import interleaved

    rows: list[dict[str, Row]] = []
    for _, found in interleaved(arms, recordings, [question] * MOST_REPEATS, Sampling()):
        rows.append(found)
        say(f"repeat {len(rows)} of {REPEATS} to {MOST_REPEATS}")
        if time.monotonic() > until or (len(rows) >= REPEATS and width(figures_of(rows)["auto"]) <= NARROW):
            break
    return rows


def figures_of(rows: list[dict[str, Row]]) -> dict[str, dict[str, Any]]:
    """Figures of every arm over the repeats, one dict of rows a repeat: as those of a comparison whose recordings they are."""
    from eventspec.experiments.figures import summary

    flat = [
        {"first_difference": None, **row, "recording": f"repeat {n}", "vision": None}
        for n, found in enumerate(rows)
        for row in found.values()
    ]
    methods: dict[str, dict[str, Any]] = summary(flat, list(rows[0]), {})["methods"]
    return methods


def identical(rows: list[dict[str, Row]], label: str) -> bool:
    """Whether an arm gave the target's own answer to the first question in every repeat, whatever its context was."""
    return all(found[label]["token_ids"] == rows[0]["autoregressive"]["token_ids"] for found in rows)


def width(own: dict[str, Any]) -> float:
    """Of the 95 % interval of a speedup, as a share of it; 1 where there is none yet."""
    low, high = own["speedup_ci95"]
    return 1.0 if low is None else (high - low) / max(high, 1e-9)


def verdict(rows: list[dict[str, Row]]) -> list[str]:
    """What the table says, in a few sentences; rows by arm, one dict a repeat, the baseline first."""
    methods, n = figures_of(rows), len(rows)
    own, lossless = methods["auto"], [label for label, figures in methods.items() if figures["lossless"]]
    same = sum(identical(rows, label) for label in lossless)
    (low, high), ceiling = own["speedup_ci95"], own["ceiling"]
    known = f"n = {n}, too few for an interval" if low is None else f"{low:.2f} to {high:.2f}, n = {n}"
    chosen = ", ".join(sorted({row["auto"]["chosen"] for row in rows}))
    found = [f"Identical to the target's own answer: {same} of {len(lossless)} lossless rows."]
    found.append(
        f"auto: {own['speedup']:.2f}x ({known}), of {ceiling:.2f}x possible, because the target's own vision and prefill "
        f"are {1 / ceiling:.0%} of its time. It chose {chosen}."
    )
    if low is None or low < 1:
        found.append("So auto is not reliably faster than the target alone here.")
    if low is not None and (share := width(own)) > NARROW:
        load = f" (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)" if hasattr(os, "getloadavg") else ""
        found.append(f"Something else runs on this machine{load}: that speedup is known to {share:.0%} only.")
    return found


def words_about(rows: list[dict[str, Row]]) -> str:
    """How the table was measured."""
    return (
        f"Times are means in ms over {len(rows)} interleaved repeats (of a first guess: over those that made one); speedup and "
        "ceiling are ratios of sums. ceiling: what a lossless method can gain at most; tau: tokens a round; same: the target's "
        "own answer. auto learnt from some answers before what is fast here."
    )


def replayed(pair: Pair, recording: Recording, question: str) -> dict[str, Any]:
    """A recording as if it came just now, and what `live` reports of it."""
    from eventspec.ask.replay import Replay
    from eventspec.cli.live import asked, report

    with pair.live("auto") as stream:
        replay = Replay(stream, recording, LIVE_SECONDS)
        return report(stream, replay, asked(stream, replay, question, 0.5, 64, quiet=True), question)


def show_growing(console: Console, arm: Arm, recordings: Recordings, question: Question) -> list[tuple[float, str, str]]:
    """Show the answer as it grew, slowed down so that an eye can follow; see `show.grown`."""
    from eventspec.cli.show import grown, joined, record, replay
    from eventspec.core import Sampling
    from eventspec.experiments.arms import ask

    asking = ask(arm, recordings, question, Sampling())
    updates, decode = record(asking), arm.pair.vocabulary.decode
    if not console.is_terminal:
        console.print(f"how {arm.name}'s answer grew:")
    if console.is_terminal:
        console.print("[dim]replayed 40 times slower; underlined = provisional, bold = committed, struck = retracted[/dim]")
    replay(console, updates if console.is_terminal else joined(updates), decode, slower=40.0)
    console.print(f"answer: {asking.result().text}", highlight=False, markup=False)
    return grown(joined(updates), decode)


HEADS = (
    ("", "first", "first", "whole", "", "", "", ""),
    ("method", "guess", "token", "answer", "speedup", "ceiling", "tau", "same"),
)
WIDTHS = (27, 7, 7, 8, 9, 9, 7, 5)


def table(rows: list[dict[str, Row]]) -> str:
    """The comparison of rows by arm, the baseline first, under the headings of `ARMS`: lines of at most `COLUMNS`."""

    def line(cells: Sequence[str]) -> str:
        return cells[0].ljust(WIDTHS[0]) + "".join(cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS[1:], strict=True))

    lines, heading = ["", *map(line, HEADS)], ""
    for cells in table_rows(rows):
        if cells[0] != heading:
            heading = cells[0]
            lines += ["", f"{heading}:"]
        lines.append(line(cells[1:]))
    return "\n".join([*lines, ""])


def table_rows(rows: list[dict[str, Row]]) -> list[tuple[str, ...]]:
    """Cells of every row behind its heading."""

    def milliseconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    headings, methods = {one.label: one.heading for one in ARMS}, figures_of(rows)
    return [
        (
            headings[label],
            label,
            milliseconds(own["first_provisional_ms"]),
            milliseconds(own["first_committed_ms"]),
            milliseconds(own["total_ms"]),
            f"{own['speedup']:.2f}x",
            f"{own['ceiling']:.2f}x" if own["lossless"] else "-",
            f"{own['tau']:.2f}",
            "yes" if identical(rows, label) else "NO",
        )
        for label, own in methods.items()
    ]
