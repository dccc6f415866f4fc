"""The help pages: plain text of at most 80 columns, many options in groups, whole words, examples at the end; and
commands whose parameters are groups of options, one that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

GROUPS = {
    "Recording": (
        *("recording", "video", "events", "sensor", "monotonic", "drop_outside", "event_offset", "window", "start", "end"),
    ),
    "Models": (
        *("pair", "target", "drafter", "vocabulary", "method", "head", "compress", "adapter", "risk", "decide", "learn"),
        *("learned", "frames", "allow_extrapolation", "compat", "dtype", "device", "ignore_generation_config"),
        *("device_plan", "draft"),
    ),
    "Sampling": (
        *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty"),
        *("presence_penalty", "stop", "seed", "bad_word", "logit_bias", "min_new_tokens", "no_repeat_ngram_size"),
        *("json_schema", "regex", "skip_special_tokens"),
    ),
    "Output": ("provisional", "trace", "as_json", "out", "plot", "html"),
}
"""Headings of the options, where a command has several of one group."""
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
MANY = 12
"""Options of a command from which on they are grouped."""


class Command(TyperCommand):
    """Lists many options by their groups, few as they come."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{group: [] for group in GROUPS}}
        params: list[Any] = self.get_params(ctx)
        many = len(params) >= MANY
        for param in params:
            switch = bool(getattr(param, "secondary_opts", None)) and not param.default
            if switch:
                param.show_default = False
            if (record := param.get_help_record(ctx)) is None:
                continue
            names, words = record[0].replace("<list[str]>", "<str>"), record[1]
            if switch:
                names = names.partition(" / ")[0]  # --no-x is what happens without it
            group = "Arguments" if param.param_type_name == "argument" else "Options"
            groups[GROUP_OF.get(param.name, group) if many and group == "Options" else group].append((names, words))
        for title, rows in ((title, rows) for title, rows in groups.items() if rows):
            with formatter.section(title):
                formatter.write_dl(rows, col_max=26)


class App(typer.Typer):
    """A group of commands with these pages."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(rich_markup_mode=None, cls=TyperGroup, **settings)

    def command(self, name: str | None = None, *, examples: str = "", **settings: Any) -> Callable[[Any], Any]:
        """As `typer.Typer.command`; `examples`: command lines, one a line, printed as they are."""
        if examples:
            settings["epilog"] = "\b\nExamples:\n  " + inspect.cleandoc(examples).replace("\n", "\n  ")
        register = super().command(name, cls=Command, **settings)

        def add(function: Any) -> Any:
            register(spread(function))
            return function

        return add


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as typer is to see it: a parameter that is a dataclass of options stands for its fields."""
    hints, params = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    if not groups:
        return function
    seen: dict[str, inspect.Parameter] = {}
    for name, param in params.items():
        if name not in groups:
            own = [(name, hints[name], param.default)]
        else:
            inner = get_type_hints(groups[name], include_extras=True)
            own = [(one.name, inner[one.name], one.default) for one in fields(groups[name])]
        for option, hint, default in own:
            empty = inspect.Parameter.empty if default is MISSING else default
            seen[option] = inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=hint)

    def command(**given: Any) -> Any:
        made = {name: group(**{one.name: given.pop(one.name) for one in fields(group)}) for name, group in groups.items()}
        return function(**given, **made)

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__annotations__ = {name: param.annotation for name, param in seen.items()}
    command.__signature__ = inspect.Signature(list(seen.values()))  # type: ignore[attr-defined]
    return command
