"""``eventspec demo``: the main job on a bundled scene and on a bundled real recording, with every control beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eventspec.cli import options
from eventspec.cli.show import LATE_GUESS
from eventspec.files import check_files, check_folder, check_outputs

if TYPE_CHECKING:
    from rich.console import Console

    from eventspec.ask import Generation
    from eventspec.core import Trace
    from eventspec.experiments.arms import Arm, Recordings
    from eventspec.experiments.figures import Row
    from eventspec.pairs import Pair
    from eventspec.recordings.qa import Question

SCENE, REAL = "street_scene", "davis346_traffic_1s"
QUESTIONS = {SCENE: "Describe the scene.", REAL: "How many road users are visible?"}
REPEATS, MOST_REPEATS = 5, 15
"""Runs of every arm; more where the times vary so much that the speedup of `auto` is not known."""
NARROW = 0.15
"""Width of its 95 % interval, as a share, that is good enough."""
PATIENCE_S = 90.0
"""A clip's repeats end with the one that runs then: a busy machine may be ten times slower."""
LIVE_SECONDS = 6.0
CONTROLS = "controls: drafts that see nothing of the recording"
SECOND = "a second question about the same recording"
LOSSY = "lossy: not the target's answer, no ceiling holds for it"


class Line(NamedTuple):
    """A row of the table: label, method, whose events its drafter sees, what was done before the question, and its heading."""

    label: str
    method: str
    events: str = "real"
    context: str = "cold"
    heading: str = ""


ARMS = (
    *(Line(name, name) for name in ("autoregressive", "auto", "cross-modal", "eagle", "specvlm", "hybrid")),
    Line("prior", "prior", heading=CONTROLS),
    Line("ngram", "ngram", heading=CONTROLS),
    Line("cross-modal, no events", "cross-modal", "blank", heading=CONTROLS),
    Line("cross-modal, other events", "cross-modal", "shuffled", heading=CONTROLS),
    Line("autoregressive, again", "autoregressive", context="warm", heading=SECOND),
    Line("auto, again", "auto", context="warm", heading=SECOND),
    Line("compressed-target", "compressed-target", heading=LOSSY),
)
LEGEND = (
    "Times are means in ms over {n} interleaved repeats (of a first guess: over those that made one); speedup and ceiling are "
    "ratios of sums. ceiling: what a lossless method can gain at most; tau: tokens a round; same: the target's own answer. "
    f"auto learnt from some answers before what is fast here. {LATE_GUESS}"
)
STRIPS = ("autoregressive", "auto", "cross-modal", "eagle")
"""Of the timeline."""
BESIDE = "cross-modal, a core each (drafter beside the encoding, target on one core)"
"""One more where cores are shared out: the placement that the method is about."""
COLUMNS = 80


def demo(
    out: Annotated[Path, options.path("Where timeline.png and trace.json go.")] = Path("out"),
    html: Annotated[Path | None, options.path("Write a page with the clips, the growing answers and the tables.")] = None,
    device_plan: options.DevicePlan = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Answer a question about a bundled scene and a real recording with every method, and compare them."""
    check_places(out, html)
    from rich.console import Console

    from eventspec.ask.replay import Replay
    from eventspec.cli.live import ask_repeatedly, report, show
    from eventspec.cli.picture import Chapter, answered, drawn, write_page
    from eventspec.lanes.workers import described_placement
    from eventspec.trace.timeline import draw

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=COLUMNS)
    with progress(console, "loading the bundled pair, and measuring what its steps cost here"):
        bench = Bench.loaded(device_plan)
    runs, chapters = [], list[Chapter]()
    for question in bench.questions:
        doing = f"{question.id}: {len(bench.arms)} ways to answer, {REPEATS} to {MOST_REPEATS} times each"
        with progress(console, doing) as note:
            began = time.monotonic()
            rehearse(bench, question)
            rows = measured(bench, question, began + PATIENCE_S, note)
        runs += [{**row, "label": label, "method": row["drafter"]} for label, row in rows[-1].items()]
        title, sentences = f"{question.id}: {question.question}", verdict(rows)
        console.rule(title)
        show_growing(console, bench.ask("auto", question))
        console.print(*sentences, table(rows), LEGEND.format(n=len(rows)), sep="\n", highlight=False, markup=False)
        if html is not None:
            strips = [answered(bench.ask(name, question), name) for name in STRIPS[:2]]
            recording = bench.recordings.real(question)
            chapters.append(Chapter(title, drawn(strips, recording, question.question), sentences, table_rows(rows)))
    first, last = bench.questions
    traces = bench.strips(first)
    where = f"pair {bench.pair.name}, {described_placement(bench.pair.workers.placement)}"
    title = f'{SCENE}: "{QUESTIONS[SCENE]}"\n{where}; one run each, so times and speeds vary'
    out.mkdir(parents=True, exist_ok=True)
    draw(traces, out / "timeline.png", title)
    traces[1][1].save(out / "trace.json")
    if html is not None:
        draw(traces, out / "timeline.svg", title)
        write_page(html, chapters, (out / "timeline.svg").read_text(), where)
    console.rule(f"live: {REAL}, replayed in real time")
    with bench.pair.live("auto") as stream:
        replay = Replay(stream, bench.recordings.real(last), LIVE_SECONDS)
        asked = ask_repeatedly(stream, replay, last.question, 0.5, {"max_new_tokens": 64}, quiet=True)
        streamed = report(stream, replay, asked, last.question)
    if as_json:
        options.print_found({"runs": runs, "live": streamed}, True)
        return
    show(streamed)
    page = "" if html is None else f", and {html}"
    files = f"{out / 'timeline.png'} and {out / 'trace.json'} (open it at ui.perfetto.dev){page}"
    console.print(f"{where}. Wrote {files}", highlight=False)


def check_places(out: Path, html: Path | None) -> None:
    """BadInput for files that cannot be written, before anything is measured; an interrupted demo leaves no folder."""
    from eventspec.recordings.examples import CLIPS

    check_folder(out)
    check_outputs({"--out": out, "--html": html})
    if html is not None and html.absolute().parent != out.absolute():
        options.check_in_folder(html, "--html")
    check_files({**{name: out / name for name in ("timeline.png", "trace.json", "timeline.svg")}, "--html": html}, [CLIPS])


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

    def ask(self, label: str, question: Question) -> Generation:
        """A question ready to run in one arm."""
        from eventspec.core import Sampling
        from eventspec.experiments.arms import ask

        return ask(self.arms[label], self.recordings, question, Sampling())

    def strips(self, question: Question) -> list[tuple[str, Trace]]:
        """What is drawn of the timeline, by label."""
        traces = [(name, self.ask(name, question).result().trace) for name in STRIPS if name in self.arms]
        if self.pair.workers.placement == "auto":
            traces.insert(STRIPS.index("cross-modal") + 1, (BESIDE, self.beside(question)))
        return traces

    def beside(self, question: Question) -> Trace:
        """What cross-modal does with a core for each model, when it is warm: the drafter begins beside the target, whatever
        was measured to pay where cores are shared out."""
        with self.pair.on("two") as pair:
            method = pair.method("cross-modal")
            pair = pair.with_method("cross-modal", replace(method, policy=replace(method.policy, concurrent=True), learnt=None))
            apart = replace(self, arms={BESIDE: replace(self.arms["cross-modal"], pair=pair)})
            apart.ask(BESIDE, question).result()
            return apart.ask(BESIDE, question).result().trace


def rehearse(bench: Bench, question: Question) -> None:
    """Let the methods that choose find out what is fast here, as they do within the first answers of a pair."""
    from eventspec.core import Sampling
    from eventspec.experiments.arms import ready
    from eventspec.pairs.auto import STANDING

    for arm in bench.arms.values():
        if (choice := arm.pair.method(arm.method).choice) is not None:
            again = STANDING if arm.context != "cold" else 0  # one question is a standing one here
            for _ in range(2 * len(choice.methods) + again):
                ready(arm, bench.recordings, question, Sampling()).result()


def measured(bench: Bench, question: Question, until: float, note: Callable[[str], object]) -> list[dict[str, Row]]:
    """Rows by arm, one dict a repeat: `REPEATS` of them, and more until the speedup of `auto` is known. After `until`, in
    seconds of the monotonic clock, the repeat that is running is the last one; `note` is called after every repeat."""
    from eventspec.core import Sampling
    from eventspec.experiments.arms import interleaved

    rows: list[dict[str, Row]] = []
    for _, found in interleaved(list(bench.arms.values()), bench.recordings, [question] * MOST_REPEATS, Sampling()):
        rows.append(found)
        note(f"repeat {len(rows)} of {REPEATS} to {MOST_REPEATS}")
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
    found = [
        f"Identical to the target's own answer: {same} of {len(lossless)} lossless rows.",
        f"auto: {own['speedup']:.2f}x ({known}), of {ceiling:.2f}x possible, because the target's own vision and prefill "
        f"are {1 / ceiling:.0%} of its time. It chose {chosen}.",
    ]
    if low is None or low < 1:
        found.append("So auto is not reliably faster than the target alone here.")
    if low is not None and (share := width(own)) > NARROW:
        load = f" (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)" if hasattr(os, "getloadavg") else ""
        found.append(f"Something else runs on this machine{load}: that speedup is known to {share:.0%} only.")
    return found


def show_growing(console: Console, asking: Generation) -> None:
    """Show the answer as it grew, slowed down so that an eye can follow."""
    from eventspec.cli.show import joined, record, replay

    updates = record(asking)
    if console.is_terminal:
        console.print("[dim]replayed 40 times slower; underlined = provisional, bold = committed, struck = retracted[/dim]")
    else:
        console.print("how auto's answer grew:")
        updates = joined(updates)
    replay(console, updates, asking.pair.tokens.vocabulary.decode, slower=40.0)
    console.print(f"answer: {asking.result().text}", highlight=False, markup=False)


HEADS = (
    ("", "first", "first", "whole", "", "", "", ""),
    ("method", "guess", "token", "answer", "speedup", "ceiling", "tau", "same"),
)
FORM = "{:27}{:>7}{:>7}{:>8}{:>9}{:>9}{:>7}{:>5}"


def table(rows: list[dict[str, Row]]) -> str:
    """The comparison of rows by arm, the baseline first, under the headings of `ARMS`: lines of at most `COLUMNS`."""
    lines = ["", *(FORM.format(*head) for head in HEADS)]
    for heading, group in groupby(table_rows(rows), itemgetter(0)):
        lines += ["", f"{heading}:"] if heading else []
        lines += [FORM.format(*cells) for _, *cells in group]
    return "\n".join([*lines, ""])


def table_rows(rows: list[dict[str, Row]]) -> list[tuple[str, ...]]:
    """The heading of every row, its label and its cells."""
    headings, found = {one.label: one.heading for one in ARMS}, list[tuple[str, ...]]()
    for label, own in figures_of(rows).items():
        times = [own[name] for name in ("first_provisional_ms", "first_committed_ms", "total_ms")]
        milliseconds = ["-" if time is None else f"{time:.1f}" for time in times]
        ceiling = f"{own['ceiling']:.2f}x" if own["lossless"] else "-"
        same = "yes" if identical(rows, label) else "NO"
        found.append((headings[label], label, *milliseconds, f"{own['speedup']:.2f}x", ceiling, f"{own['tau']:.2f}", same))
    return found
