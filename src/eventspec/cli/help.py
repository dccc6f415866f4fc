"""The help pages: plain text of at most 80 columns, many options in groups, whole words, examples at the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GROUPS = {
    "Recording": ("recording", "video", "events", "sensor", "monotonic", "window", "start", "end"),
    "Models": (
        *("pair", "target", "drafter", "vocabulary", "method", "head", "compress", "frames", "allow_extrapolation", "compat"),
        *("dtype", "device", "ignore_generation_config", "device_plan"),
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
        return super().command(name, cls=Command, **settings)
