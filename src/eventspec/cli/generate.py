"""``eventspec generate`` and ``chat``: one question about a recording, or several, of which each serves the next."""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from eventspec.cli import options
from eventspec.cli.bars import waiting
from eventspec.cli.drawn import Drawn
from eventspec.cli.recorded import WHOLE, Reading, Recorded, offset_of
from eventspec.cli.show import in_short, show_live
from eventspec.errors import BadInput
from eventspec.files import check_folder, check_outputs

if TYPE_CHECKING:
    from eventspec.ask import Result

NO_QUESTION = "no question came: give them on standard input, one a line"


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="The question.")],
    recorded: Recorded,
    reading: Reading,
    models: options.Models,
    chosen: options.Chosen,
    drawn: Drawn,
    method: options.Method = "auto",
    provisional: Annotated[bool, typer.Option(help="Show tokens before they are verified.")] = False,
    trace: Annotated[Path | None, options.path("Write a Chrome / Perfetto trace here.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask one question about one recording; the answer is exactly the target's own, but by a method that is LOSSY."""
    from eventspec.recordings.qa import check_question

    if provisional and as_json:
        raise BadInput("--provisional shows an answer as it grows, --json prints one object: give one of them")
    recorded.check()
    folders = models.check([method], chosen)
    check_question(prompt)
    given = drawn.given(context, models)
    if trace is not None:
        options.check_in_folder(trace, "--trace")
        check_outputs({"--trace": trace}, [*recorded.places, *folders, drawn.json_schema])
    with waiting("loading the models"):
        opened, window = recorded.open(reading, models.suits([method]))

        from eventspec.ask import generation

        loaded = models.load([method], chosen)
        asking = generation(loaded, opened, prompt, method, window, **drawn.spelled(loaded, given))
    if provisional:
        show_live(asking)
    result = asking.result()
    failed = None
    if trace is not None:
        try:
            result.trace.save(trace)
        except BadInput as error:  # the answer is there
            failed, trace = error, None
    if as_json:
        about = {"recording": opened.name, **offset_of(opened)}
        options.print_found({**about, **result.as_json(str(trace) if trace else None)}, True)
    elif not provisional or not sys.stdout.isatty():  # through a pipe the whole answer stands on a line of its own, the last
        typer.echo(result.text)
    if not as_json:
        typer.echo(in_short(result), err=True)
        options.print_notes(result.trace.notes)
    if failed is not None:
        raise failed
    chosen.keep(loaded)


def chat(
    context: typer.Context,
    recorded: Recorded,
    reading: Reading,
    models: options.Models,
    chosen: options.Chosen,
    drawn: Drawn,
    place: Annotated[Path | None, options.path_argument(f"As --recording. {WHOLE}", metavar="RECORDING")] = None,
    method: options.Method = "auto",
    store: Annotated[Path | None, options.path("A folder that keeps the target's features of every frame.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a question.")] = False,
) -> None:
    """Ask several questions about one recording, a line each, until an empty line or the end of the input.

    A question that cannot be answered is named and the next one read (by a pipe: exit code 2, empty lines are passed over).
    """
    if place is not None and recorded.recording is not None:
        raise BadInput(f"{place} and --recording {recorded.recording} are two recordings: give one of them")
    recorded = recorded if place is None else replace(recorded, recording=place)
    recorded.check()
    folders = models.check([method], chosen)
    given = drawn.given(context, models)
    if store is not None:
        check_folder(store)
    check_outputs({"--store": store}, [*recorded.places, *folders, drawn.json_schema])
    if _is_empty(sys.stdin):
        raise BadInput(NO_QUESTION)
    with waiting("loading the models"):
        opened, window = recorded.open(reading, models.suits([method]))
        loaded = models.load([method], chosen)
        settings = drawn.spelled(loaded, given)
        about = loaded.open(opened, window, store)
    interactive = sys.stdin.isatty() and not as_json
    if interactive:
        about.prepare(method)
    noted, refused, answered = set[str](), False, 0
    with chosen.keeping(loaded):
        for question in _questions(interactive):
            try:
                asking = about.generation(question, method, **settings)
                if interactive:
                    show_live(asking)
                result = asking.result()
            except BadInput as error:  # the next question may be a better one
                typer.echo(f"eventspec: {error}", err=True)
                refused = True
                continue
            answered += 1
            if as_json:
                about_it = {"question": question, "recording": opened.name, **offset_of(opened)}
                options.print_found({**about_it, **result.as_json()}, True)
            else:
                _say(result, interactive, noted)
    if refused and not interactive:
        raise typer.Exit(2)
    if not (answered or interactive):
        raise BadInput(NO_QUESTION)


def _say(result: Result, interactive: bool, noted: set[str]) -> None:
    """An answer of a chat, which a terminal has shown as it came, and notes that were not said before."""
    if not interactive:
        typer.echo(result.text)
    typer.echo(in_short(result), err=True)
    options.print_notes(note for note in result.trace.notes if note not in noted)
    noted.update(result.trace.notes)


def _is_empty(stream: TextIO | None) -> bool:
    """Whether standard input is closed, or a pipe or file that is at its end already; one that has nothing yet is not waited
    for."""
    if stream is None:
        return True
    source = getattr(stream, "buffer", None)
    if not isinstance(source, io.BufferedReader) or stream.isatty():
        return False
    try:
        return bool(select.select([stream], [], [], 0)[0]) and not source.peek(1)
    except OSError:  # a folder, say: reading says what is wrong
        return False


def _questions(interactive: bool) -> Iterator[str]:
    """The lines of the input; an empty one ends them where a person types, and is passed over in a file."""
    while True:
        if interactive:
            typer.echo("? ", nl=False)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise BadInput("the questions are not valid UTF-8: give text, a question a line") from None
        if not line or (interactive and not line.strip()):
            return
        if line.strip():
            yield line.strip()
