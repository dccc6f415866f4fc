"""``eventspec chat``: several questions about one recording; what was encoded and prefilled for one serves the next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli import options
from eventspec.cli.bars import waiting
from eventspec.cli.show import in_short, show_live
from eventspec.errors import BadInput


def chat(
    recording: Annotated[
        Path, options.path_argument("Event file, video, image folder, DSEC or native folder; or example:street.")
    ],
    pair: options.Pair = "embedded",
    method: options.Method = "auto",
    max_new_tokens: options.MaxNewTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    store: Annotated[Path | None, options.path("A folder that keeps the target's features of every frame.")] = None,
    sensor: options.Sensor = None,
    monotonic: options.Order = "raise",
    device_plan: options.DevicePlan = "auto",
) -> None:
    """Ask several questions about one recording, a line each, until an empty line or the end of the input.

    A question that cannot be answered is named, and the next one is read; where questions came by a pipe, exit code 2 follows.
    """
    with waiting("loading the models"):
        from eventspec.core import Sampling
        from eventspec.pairs import check_method, load_pair

        check_method(method)
        opened = options.open_recording(recording, sensor, monotonic)
        sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
        context = load_pair(pair, device_plan).open(opened, store=store)
    interactive = sys.stdin.isatty()
    if interactive:
        context.prepare(method)
    noted, refused = set[str](), False
    while question := _next_question(interactive):
        try:
            asking = context.generation(question, method, sampling)
            if interactive:
                show_live(asking)
            result = asking.result()
        except BadInput as error:  # the next question may be a better one
            typer.echo(f"eventspec: {error}", err=True)
            refused = True
            continue
        if not interactive:
            typer.echo(result.text)
        typer.echo(in_short(result), err=True)
        options.print_notes(note for note in result.trace.notes if note not in noted)
        noted.update(result.trace.notes)
    if refused and not interactive:
        raise typer.Exit(2)


def _next_question(interactive: bool) -> str:
    """The next line of the input without the space around it, "" at its end."""
    if interactive:
        typer.echo("? ", nl=False)
    try:
        return sys.stdin.readline().strip()
    except UnicodeDecodeError:
        raise BadInput("the questions are not valid UTF-8: give text, a question a line") from None
