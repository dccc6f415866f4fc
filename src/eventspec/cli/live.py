"""``eventspec live``: a recording replayed in real time, and a question asked again and again about the window just past."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.bars import waiting
from eventspec.cli.drawn import Drawn
from eventspec.cli.recorded import Reading, Recorded
from eventspec.cli.show import LATE_GUESS
from eventspec.errors import BadInput, several

if TYPE_CHECKING:
    from eventspec.ask import Live, LiveAnswer
    from eventspec.ask.replay import Replay

LONGEST_S = 1e7
"""Seconds of a replay: four months."""


def live(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="The question.")],
    recorded: Recorded,
    reading: Reading,
    models: options.Models,
    chosen: options.Chosen,
    drawn: Drawn,
    method: options.Method = "auto",
    seconds: Annotated[float, typer.Option(help="How long to replay; a recording that is shorter is repeated.")] = 10.0,
    every: Annotated[float, typer.Option(help="Seconds from one question to the next.")] = 1.0,
    windows: Annotated[
        Literal["sliding", "growing", "triggered"], typer.Option(help="Which are cut; triggered: by a burst of events.")
    ] = "sliding",
    window_us: Annotated[int, typer.Option(min=1, max=1 << 53, help="How long a window is, in microseconds.")] = 1_000_000,
    hop_us: Annotated[
        int, typer.Option(min=1, max=1 << 53, help="A window is read ahead so often, in microseconds.")
    ] = 250_000,
    share: Annotated[float, typer.Option(help="Of the target's time that reading ahead may take.")] = 0.5,
    reuse_below: Annotated[
        float, typer.Option(help="LOSSY: a frame with fewer events a pixel since the last encoded one takes its features.")
    ] = 0.0,
    standing: Annotated[bool, typer.Option(help="Answer the question ahead, about every window.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Replay a recording in real time and ask about it while it runs; every answer is the one of `generate` for its window."""
    from eventspec.recordings.qa import check_question

    recorded.check()
    models.check([method], chosen)
    if not (0 < seconds <= LONGEST_S and 0 < every <= LONGEST_S):
        raise BadInput(f"--seconds {seconds:g} --every {every:g}: both must be above 0, and at most {LONGEST_S:g}")
    check_question(prompt)
    if not (0 < share <= 1 and 0 <= reuse_below < math.inf):
        raise BadInput(f"--share {share:g} --reuse-below {reuse_below:g}: give a share above 0, up to 1, and 0 or more events")
    given = drawn.given(context, models)
    with waiting("loading the models"):
        whole, window = recorded.open(reading, models.suits([method], ("events",)))
        opened = whole.slice(window)
        if not len(opened.video or ()):
            raise BadInput(f"{opened.name} has no RGB frames: a stream without frames cannot be asked about")

        from eventspec.ask.replay import Replay

        loaded = models.load([method], chosen)
        settings = drawn.spelled(loaded, given)
    policy: dict[str, Any] = {"window_us": window_us, "hop_us": hop_us, "share": share, "reuse_below": reuse_below}
    with chosen.keeping(loaded):
        with loaded.live(method, windows=windows, **policy) as stream:
            if standing:
                stream.standing(prompt, **settings)
            replay = Replay(stream, opened, seconds)
            answers = ask_repeatedly(stream, replay, prompt, every, settings, quiet=as_json)
            found = report(stream, replay, answers, prompt)
        found["notes"] = [*opened.notes, *replay.notes, *_hurried(every, found), *loaded.notes_on(opened), *found["notes"]]
        about = {"recording": opened.name, "method": method, "windows": windows, "replay_late_ms": replay.late_us / 1e3}
        if as_json:
            options.print_found({**about, **found}, True)
        else:
            show({**about, **found})


def ask_repeatedly(
    stream: Live, replay: Replay, prompt: str, every: float, drawn: Mapping[str, Any], quiet: bool
) -> list[LiveAnswer]:
    """Ask while the replay runs, from the first window that is ready; once after it if it was too short for that."""
    found: list[LiveAnswer] = []
    replay.start()
    try:
        while replay.is_alive():
            began = time.perf_counter()
            if stream.window is not None:
                found.append(_answered(stream, replay, prompt, drawn, quiet))
            replay.join(max(0.001, min(every, 0.02 if stream.window is None else every) - (time.perf_counter() - began)))
    except BaseException:
        replay.stop()
        raise
    replay.join()
    return found or [_answered(stream, replay, prompt, drawn, quiet)]


def _answered(stream: Live, replay: Replay, prompt: str, drawn: Mapping[str, Any], quiet: bool) -> LiveAnswer:
    answer = stream.ask(prompt, **drawn)
    if not quiet:
        window, start = replay.on_recording(answer.window), replay.recording.span.start_us
        seen = f"{max(0, window.start_us - start) / 1e6:.2f} to {(window.end_us - start) / 1e6:.2f} s"
        typer.echo(f"seen {seen}, after {1e3 * answer.seconds:.1f} ms: {answer.text}")
    return answer


def report(stream: Live, replay: Replay, answers: list[LiveAnswer], prompt: str) -> dict[str, Any]:
    """What came, what was dropped, how long answers took."""
    counts, seen = asdict(stream.counts), [replay.on_recording(answer.window) for answer in answers]
    became = {name: counts[name] for name in ("encoded", "reused", "dropped")}
    frames = {"arrived": counts["frames"], **became, "waiting": counts["frames"] - sum(became.values())}
    return {
        "lossless": all(answer.result.lossless for answer in answers),
        "frames": {**frames, "lost": counts["lost"]},
        "events": {"arrived": counts["packets"], "dropped": counts["dropped_packets"]},
        "windows_read": counts["windows"],
        "latency_ms": {
            "provisional": _spread([_since(answer, "first_provisional") for answer in answers]),
            "committed": _spread([_since(answer, "first_committed") for answer in answers]),
            "answer": _spread([1e3 * answer.seconds for answer in answers]),
        },
        "answers": [
            {
                "window_us": [window.start_us, window.end_us],
                "prompt": prompt,
                "token_ids": answer.token_ids,
                "text": answer.text,
                "ahead": answer.ahead,
                "latency_ms": round(1e3 * answer.seconds, 3),
            }
            for answer, window in zip(answers, seen, strict=True)
        ],
        "notes": counts["notes"],
    }


def _hurried(every: float, found: Mapping[str, Any]) -> list[str]:
    """A note where questions come so soon after each other that they leave the target no time for anything else."""
    usual_ms = found["latency_ms"]["answer"]["p50"]
    if 1e3 * every >= usual_ms:
        return []
    return [
        f"an answer takes {usual_ms:.0f} ms, longer than --every {every:g}: there was hardly any time to read windows ahead"
    ]


def _since(answer: LiveAnswer, mark: str) -> float | None:
    """Milliseconds from the question to a mark of its trace; None where there is none. What was there before took none."""
    marks = answer.result.trace.marks
    if mark not in marks:
        return None
    return 1e3 * (answer.seconds if answer.ahead else answer.seconds - marks["end"] + marks[mark])


def _spread(values: list[float | None]) -> dict[str, float | int | None]:
    """n, median and 99th percentile (the largest of fewer than 100)."""
    import numpy as np

    if not (known := [value for value in values if value is not None]):
        return {"n": 0, "p50": None, "p99": None}
    quantiles = {"p50": np.median(known), "p99": np.quantile(known, 0.99, method="higher")}
    return {"n": len(known), **{name: round(float(value), 3) for name, value in quantiles.items()}}


def show(found: dict[str, Any]) -> None:
    frames, events = found["frames"], found["events"]
    typer.echo(f"{several(frames['arrived'], 'frame')} came, of which before a question {frames['encoded']} encoded,")
    typer.echo(f"{frames['dropped']} not, because others came too soon after,")
    if frames["reused"]:
        typer.echo(f"{frames['reused']} not, because hardly an event came since another (LOSSY)")
    if frames["waiting"]:
        typer.echo(f"{frames['waiting']} not yet when the replay ended, or with the window,")
    if frames["lost"]:
        typer.echo(f"{frames['lost']} lost: more bytes were held than may be")
    typer.echo(f"{several(events['arrived'], 'packet')} of events came, {events['dropped']} dropped")
    typer.echo(
        f"{several(found['windows_read'], 'window')} read before a question; {several(len(found['answers']), 'answer')}:"
    )
    for name, values in found["latency_ms"].items():
        if values["n"]:
            label = name if name == "answer" else f"first {name} token"
            worst = "p99" if values["n"] >= 100 else "max"
            typer.echo(f"{label:<24} p50 {values['p50']:7.1f} ms   {worst} {values['p99']:7.1f} ms   (n = {values['n']})")
    guess, token = (found["latency_ms"][name]["p50"] for name in ("provisional", "committed"))
    if guess is not None and guess > token:
        typer.echo(textwrap.fill(LATE_GUESS, 80))
    options.print_notes(found["notes"])
