"""How answers are drawn and where they end: the options of every command that asks, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli import options
from eventspec.errors import BadInput
from eventspec.files import check_file

if TYPE_CHECKING:
    from eventspec.pairs import Pair

Longest = Annotated[int, typer.Option(help="Longest answer, in tokens; --target may come with another default.")]
BadWords = Annotated[list[str] | None, typer.Option(help="Never say this, as the tokenizer writes it; may be repeated.")]


@dataclass(frozen=True)
class Drawn:
    """How tokens are drawn, and where an answer ends."""

    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens; --target may come with another default.")] = (
        256
    )
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    top_k: Annotated[int, typer.Option(help="0 switches it off.")] = 0
    top_p: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0
    min_p: Annotated[float, typer.Option(help="0 switches it off.")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="1 switches it off.")] = 1.0
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0
    frequency_penalty: Annotated[float, typer.Option(help="Taken off a token's logit for every time it was said.")] = 0.0
    presence_penalty: Annotated[float, typer.Option(help="Taken off a token's logit once it was said.")] = 0.0
    bad_word: BadWords = None
    logit_bias: Annotated[list[str] | None, typer.Option(help="ID=VALUE, added to a token's logit; may be repeated.")] = None
    min_new_tokens: Annotated[int, typer.Option(help="No end token before so many tokens.")] = 0
    no_repeat_ngram_size: Annotated[int, typer.Option(help="Say no n-gram of this size twice; 0 switches it off.")] = 0
    skip_special_tokens: Annotated[bool, typer.Option(help="Leave special tokens out of the text.")] = True
    json_schema: Annotated[Path | None, options.path("The answer is JSON that fits the schema in this file.")] = None
    regex: Annotated[str | None, typer.Option(help="The answer matches this regular expression as a whole.")] = None

    def given(self, context: typer.Context, models: options.Models) -> dict[str, Any]:
        """The settings that were given, as far as they need no vocabulary; the others are as the model has them. BadInput for
        what cannot be, with what the models' files say of their ids and their context, and for a schema and a pattern too."""
        from eventspec.sampling import Sampling, check_settings
        from eventspec.text.tokens import check_words, regex_grammars, schema_grammars

        named, known = options.given(context), {item.name for item in fields(Sampling)}
        given = {name: value for name, value in named.items() if name in known}
        given |= {"logit_bias": _biases(self.logit_bias or [])} | ({"stop_strings": tuple(self.stop)} if self.stop else {})
        check_settings(given)
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
        models.check_room(named.get("max_new_tokens", 1), max(given["logit_bias"], default=0))
        idle = [options.typed(name) for name in ("top_k", "top_p", "min_p") if getattr(self, name) != getattr(Drawn, name)]
        if idle and not self.temperature:
            options.print_notes([f"{' and '.join(idle)} without effect: at temperature 0 the likeliest token is taken"])
        return given

    def _schema(self) -> str:
        assert self.json_schema is not None  # who calls this looked
        check_file(self.json_schema)
        try:
            return self.json_schema.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{self.json_schema} cannot be read ({error}): give a file with a JSON schema") from None

    @property
    def grammar(self) -> dict[str, str]:
        """What answers must look like, in words."""
        if self.json_schema is not None:
            return {"json_schema": self._schema()}
        return {} if self.regex is None else {"regex": self.regex}

    def spelled(self, pair: Pair, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same with what a pair's vocabulary makes of it; BadInput for ids that it does not have."""
        constraint = None if self.regex is None else pair.regex(self.regex)
        if self.json_schema is not None:
            constraint = pair.json_schema(self._schema())
        words = {"bad_words": pair.bad_words(*self.bad_word)} if self.bad_word else {}
        settings = {**given, **words, "constraint": constraint}
        pair.tokens.sampling(pair.tokens.settings(None, settings))
        return settings


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
        if place < 0 or not -100 <= value <= 100:
            raise BadInput(f"--logit-bias {pair}: give an id from 0 on, and a value in [-100, 100]")
        found[place] = value
    return found
