"""``eventspec plan``: what an answer of N tokens would take with every method, and what no method can beat."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from eventspec.cli.paths import given_path
from eventspec.errors import BadInput

USUAL_LIMIT = 20
"""Questions that a pair is measured with."""


def plan(
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length of the answer.")],
    pair: Annotated[
        str | None, typer.Option(help="Measure this pair here: a bundled one (default: embedded), or a folder.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Or predict another machine by name, e.g. rtx4090-nf4-7b or h200-7b.")
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(parser=given_path, help="Measure with these, a qa.jsonl; default: rendered street scenes."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"At most this many of the questions (default: {USUAL_LIMIT}).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict every method's time and speedup for an answer of N tokens, beside the ceiling of all lossless methods."""
    measuring = {"--pair": pair, "--questions": questions, "--limit": limit}
    if profile is not None and (given := next((name for name, value in measuring.items() if value is not None), None)):
        raise BadInput(f"{given} is for measuring here, --profile is another machine: leave one of them out")
    if profile is not None:
        found = _of_profile(profile, tokens)
    else:
        found = _of_pair("embedded" if pair is None else pair, questions, limit or USUAL_LIMIT, tokens)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print(found)


def _of_profile(name: str, tokens: int) -> dict[str, Any]:
    from eventspec.experiments.plan import outlook
    from eventspec.experiments.profiles import methods_of
    from eventspec.experiments.profiles import profile as named

    machine = named(name)
    about = {"profile": name, "about": machine.about, "stages_source": machine.source}
    return {**about, **outlook(machine.stages, methods_of(machine, tokens), tokens)}


def _of_pair(where: str, questions: Path | None, limit: int, tokens: int) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    from eventspec.experiments.stages import measure, street_questions
    from eventspec.lanes.workers import choose_placement, described_placement
    from eventspec.pairs import load_pair
    from eventspec.recordings.qa import read_questions

    page, given = Console(stderr=True), None if questions is None else read_questions(questions, limit)
    # Predicted for a device each: how cores would be shared out is measured when a pair is loaded, and no part of the model.
    plan = "two" if choose_placement("auto") == "auto" else "auto"
    with (
        load_pair(where, plan) as ready,
        nullcontext(given) if given is not None else street_questions(limit) as asked,
        Progress(console=page, transient=True, disable=not page.is_terminal) as bar,
    ):
        task = bar.add_task("measuring")
        measured = measure(ready, asked, lambda done, total: bar.update(task, completed=done, total=total))
        about = f"pair {ready.name}, {described_placement(ready.workers.placement)}"
    names, kind = measured.recordings, "recordings" if given is not None else "clips of the synthetic street"
    about_what = names[0] if len(names) == 1 else f"{len(names)} {kind}"
    source = f"measured here: means over {measured.answers} answers about {about_what}"
    return {"pair": where, "about": about, "stages_source": source, **measured.outlook(tokens)}


def _print(found: dict[str, Any]) -> None:
    """The stages in a line, a table of the methods, and the rule of thumb beside the ceiling."""
    from rich.console import Console
    from rich.table import Table

    page = Console(highlight=False)
    stages = {name.replace("_", " "): ms for name, ms in found["stages_ms"].items() if ms is not None}
    page.print(f"{found['about']}; {found['stages_source']}")
    page.print("stages, ms: " + ", ".join(f"{name} {ms:.1f}" for name, ms in stages.items()))
    curve = ", ".join(f"V({length}) {cost:.1f}" for length, cost in found["verify_curve"].items() if length != "1")
    free = found["free_draft_tokens"]
    hidden = "" if free is None else f"; {free:.1f} tokens drafted while the target encodes and prefills"
    page.print(f"verifying k tokens, in steps: {curve}{hidden}")
    page.print(f"prefill share {found['prefill_share']:.1%}, ceiling {found['ceiling']:.2f}x")
    errors = any("error" in row for row in found["methods"].values())
    heads = ["method", "total ms", "speedup", "of ceiling", "tau", "acceptance", *(["error"] if errors else [])]
    made = Table(box=None, header_style="bold", title=f"predicted for {found['tokens']} tokens", title_justify="left")
    for number, head in enumerate(heads):
        made.add_column(head, justify="left" if number == 0 else "right", overflow="fold")
    for name, row in found["methods"].items():
        cells = [f"{row['total_ms']:.1f}", f"{row['speedup']:.2f}x", f"{row['share_of_ceiling']:.0%}", f"{row['tau']:.2f}"]
        made.add_row(name, *cells, _percent(row["acceptance"]), *([_percent(row["error"])] if errors else []))
    page.print(made)
    if errors:
        page.print("error: of the predicted time, the median over answers that the prediction was not made of")
        page.print("acceptance depends on what is seen and asked: give --questions of your own for yours")
    for source in dict.fromkeys(row["acceptance_source"] for row in found["methods"].values() if row["acceptance"] is not None):
        page.print(f"acceptance and tau: {source}")
    rule = found["rule_of_thumb"]
    page.print(f"untested rule of thumb (prefill share above 40 %, below 20 %): {rule['says']}")
    page.print(f"the ceiling: {rule['ceiling_says']}; {rule['prediction_says']}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
