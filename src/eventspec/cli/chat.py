"""``eventspec chat``: several questions about one recording; what was encoded and prefilled for one serves the next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventspec.cli.bars import waiting
from eventspec.cli.events import Order, Sensor
from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from eventspec.ask import Generation


def chat(
    recording: Annotated[
        Path,
        typer.Argument(parser=given_path, help="Event file, video, image folder, DSEC or native folder; or example:street."),
    ],
    pair: Annotated[str, typer.Option(help="A bundled pair, or the folder of a pair.toml.")] = "embedded",
    method: Annotated[str, typer.Option(help="Who drafts; `eventspec models list` lists them.")] = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    store: Annotated[
        Path | None, typer.Option(parser=given_path, help="A folder that keeps the target's features of every frame.")
    ] = None,
    sensor: Sensor = None,
    monotonic: Order = "raise",
    device_plan: Annotated[str, typer.Option(help="one: shared by the models; two: one each, on a CPU a core; auto.")] = "auto",
) -> None:
    """Ask several questions about one recording, a line each, until an empty line or the end of the input.

    A question that cannot be asked is told, and the next one is answered; where questions came by a pipe, exit code 2 follows.
    """
    with waiting("loading the models"):
        from eventspec.core import BadInput, Sampling
        from eventspec.events.formats import parse_sensor_size
        from eventspec.pairs import check_method, load_pair
        from eventspec.recordings import Recording

        check_method(method)
        size = parse_sensor_size(sensor) if sensor is not None else None
        opened = Recording.open(recording, size, monotonic)
        sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
        context = load_pair(pair, device_plan).open(opened, store=store)
    asking_person = sys.stdin.isatty()
    if asking_person:
        context.prepare(method)
    said, refused = set[str](), False
    while question := _next_question(asking_person):
        try:
            _tell(context.generation(question, method, sampling), asking_person, said)
        except BadInput as error:  # the next question may be a better one
            typer.echo(f"eventspec: {error}", err=True)
            refused = True
    if refused and not asking_person:
        raise typer.Exit(2)


def _tell(asking: Generation, growing: bool, said: set[str]) -> None:
    """Print an answer, `growing` or whole, how long it took, and what was not `said` yet."""
    from eventspec.cli.show import in_short, show_live

    if growing:
        show_live(asking)
    result = asking.result()
    if not growing:
        typer.echo(result.text)
    typer.echo(in_short(result), err=True)
    for note in result.trace.notes:
        if note not in said:
            typer.echo(f"note: {note}", err=True)
    said.update(result.trace.notes)


def _next_question(asking_person: bool) -> str:
    """The next line of the input without the space around it, "" at its end."""
    if asking_person:
        typer.echo("? ", nl=False)
    try:
        return sys.stdin.readline().strip()
    except UnicodeDecodeError:
        from eventspec.core import BadInput

        raise BadInput("the questions are not valid UTF-8: give text, a question a line") from None
