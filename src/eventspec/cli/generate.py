"""``eventspec generate`` and ``chat``: one question about a recording, or several, of which each serves the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli import options
from eventspec.cli.bars import waiting
from eventspec.cli.show import in_short, show_live
from eventspec.errors import BadInput
from eventspec.files import check_outputs

if TYPE_CHECKING:
    from eventspec.pairs import Pair

BadWords = Annotated[list[str] | None, typer.Option(help="Never say this, as the tokenizer writes it; may be repeated.")]


@dataclass(frozen=True)
class Drawn:
    """How tokens are drawn, and where an answer ends."""

    max_new_tokens: options.MaxNewTokens = 256
    temperature: options.Temperature = 0.0
    top_k: Annotated[int, typer.Option(help="0 switches it off.")] = 0
    top_p: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0
    min_p: Annotated[float, typer.Option(help="0 switches it off.")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None
    seed: options.Seed = 0
    frequency_penalty: Annotated[float, typer.Option(help="Taken off a token's logit for every time it was said.")] = 0.0
    presence_penalty: Annotated[float, typer.Option(help="Taken off a token's logit once it was said.")] = 0.0
    bad_word: BadWords = None
    logit_bias: Annotated[list[str] | None, typer.Option(help="ID=VALUE, added to a token's logit; may be repeated.")] = None
    min_new_tokens: Annotated[int, typer.Option(help="No end token before so many tokens.")] = 0
    no_repeat_ngram_size: Annotated[int, typer.Option(help="Say no n-gram of this size twice; 0 switches it off.")] = 0
    skip_special_tokens: Annotated[bool, typer.Option(help="Leave special tokens out of the text.")] = True
    json_schema: Annotated[Path | None, options.path("The answer is JSON that fits the schema in this file.")] = None
    regex: Annotated[str | None, typer.Option(help="The answer matches this regular expression as a whole.")] = None

    def given(self, context: typer.Context) -> dict[str, Any]:
        """The settings that were given, as far as they need no vocabulary; the others are as the model has them. BadInput for
        what cannot be, a schema and a pattern too."""
        from eventspec.sampling import check_settings
        from eventspec.text.tokens import check_words, regex_grammars, schema_grammars

        given = {**options.given_settings(context), "logit_bias": _biases(self.logit_bias or [])}
        given |= {"stop_strings": tuple(self.stop)} if self.stop else {}
        check_settings(given)  # refused before minutes of loading
        check_words(self.bad_word or ())
        if self.json_schema is not None and self.regex is not None:
            raise BadInput("--json-schema and --regex exclude each other: give one of them")
        if self.json_schema is not None:
            schema = self._schema()
            try:
                schema_grammars(schema)
            except BadInput as error:
                raise BadInput(f"{self.json_schema}: {error}") from None
        if self.regex is not None:
            regex_grammars(self.regex)
        return given

    def _schema(self) -> str:
        assert self.json_schema is not None  # who calls this looked
        try:
            return self.json_schema.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{self.json_schema} cannot be read ({error}): give a file with a JSON schema") from None

    def spelled(self, pair: Pair, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same with what a pair's vocabulary makes of it."""
        constraint = None if self.regex is None else pair.regex(self.regex)
        if self.json_schema is not None:
            constraint = pair.json_schema(self._schema())
        words = {"bad_words": pair.bad_words(*self.bad_word)} if self.bad_word else {}
        return {**given, **words, "constraint": constraint}


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="The question.")],
    recorded: options.Recorded,
    reading: options.Reading,
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
    given = drawn.given(context)
    if trace is not None:
        options.check_in_folder(trace, "--trace")
        check_outputs({"--trace": trace}, [*recorded.places, *folders, drawn.json_schema])
    with waiting("loading the models"):
        opened, window = recorded.open(reading)

        from eventspec.ask import generation

        loaded = models.load([method], chosen)
        asking = generation(loaded, opened, prompt, method, window, **drawn.spelled(loaded, given))
    if provisional:
        show_live(asking)
    result = asking.result()
    if trace is not None:
        result.trace.save(trace)
    if as_json:
        options.print_found({"recording": opened.name, **result.as_json(str(trace) if trace else None)}, True)
        return
    if not provisional or not sys.stdout.isatty():  # through a pipe the whole answer stands on a line of its own, the last
        typer.echo(result.text)
    typer.echo(in_short(result), err=True)
    options.print_notes(result.trace.notes)


def chat(
    context: typer.Context,
    recorded: options.Recorded,
    reading: options.Reading,
    models: options.Models,
    chosen: options.Chosen,
    place: Annotated[Path | None, options.path_argument(f"As --recording. {options.WHOLE}", metavar="RECORDING")] = None,
    method: options.Method = "auto",
    max_new_tokens: options.MaxNewTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    store: Annotated[Path | None, options.path("A folder that keeps the target's features of every frame.")] = None,
) -> None:
    """Ask several questions about one recording, a line each, until an empty line or the end of the input.

    A question that cannot be answered is named, and the next one is read; where questions come by a pipe, exit code 2 follows,
    and empty lines between them are passed over.
    """
    from eventspec.sampling import check_settings

    if place is not None and recorded.recording is not None:
        raise BadInput(f"{place} and --recording {recorded.recording} are two recordings: give one of them")
    recorded = recorded if place is None else replace(recorded, recording=place)
    recorded.check()
    folders = models.check([method], chosen)
    drawn = options.given_settings(context)
    check_settings(drawn)  # refused before minutes of loading
    check_outputs({"--store": store}, [*recorded.places, *folders])
    with waiting("loading the models"):
        opened, window = recorded.open(reading)
        about = models.load([method], chosen).open(opened, window, store)
    interactive = sys.stdin.isatty()
    if interactive:
        about.prepare(method)
    noted, refused = set[str](), False
    for question in _questions(interactive):
        try:
            asking = about.generation(question, method, **drawn)
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


def _biases(given: list[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    for pair in given:
        token, _, bias = pair.partition("=")
        try:
            place, value = int(token), float(bias)
        except ValueError:
            raise BadInput(f"--logit-bias {pair} cannot be read: give ID=VALUE, such as 473=-2.5") from None
        if place in found:
            raise BadInput(f"--logit-bias names id {place} twice: give it once")
        found[place] = value
    return found
