"""The page of the founding documents: each item of docs/documents.toml, with figures looked up in the results."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eventspec.errors import BadInput
from eventspec.experiments.reports import FOLDER, Block, Results
from eventspec.experiments.tables import filled, table

TABLE = Path("docs/documents.toml")
VERDICTS = {
    "as described": "built as the document has it; the command shows it",
    "as described, lossy": "the same, and answers may not be the target's: they say so, and `auto` never takes such a method",
    "otherwise": "what it is for is there, built in another way, which the last column gives with the reason",
    "refuted": "measured, and what the document claims or expects of it does not hold here",
    "not measured": "the experiment or the figure is not there; the last column says what is missing",
}
LINES = re.compile(r"(\d{3}:\d+(-\d+)?(,\d+(-\d+)?)*)(;\d{3}:\d+(-\d+)?(,\d+(-\d+)?)*)*")


@dataclass(frozen=True)
class Item:
    """What a document asks for. `lines` as 000:34-46;001:9; `text` with {names} of `figures`, so that no figure is typed: each
    is (results file, keys with / between them, form of `tables.filled`)."""

    lines: str
    asked: str
    command: str
    verdict: str
    text: str
    figures: Mapping[str, tuple[str, str, str]]

    def written(self, results: Results) -> str:
        """The text with its figures. BadInput for one that no results have."""
        try:
            return self.text.format(**{name: figure(results, *found) for name, found in self.figures.items()})
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadInput(f"{TABLE}, {self.lines}: a figure cannot be had ({type(error).__name__}: {error})") from None


@dataclass(frozen=True)
class Documents:
    """`prepare`: command lines whose files others read, in order; the items by section."""

    prepare: tuple[str, ...]
    sections: Mapping[str, tuple[Item, ...]]

    @property
    def items(self) -> list[Item]:
        return [item for section in self.sections.values() for item in section]


def figure(results: Results, file: str, keys: str, form: str) -> str:
    """A figure of a results file. KeyError, IndexError or ValueError where it is not there."""
    found: Any = results[file]
    for key in keys.split("/"):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return filled(form, found)


def item_of(found: Mapping[str, Any]) -> Item:
    """BadInput for what is missing, unknown or not written as it has to be."""
    item, names = {"figures": {}, **found}, {field.name for field in fields(Item)}
    place = f"{TABLE}, {found.get('lines', 'an item without lines')}"
    if differing := sorted(names ^ set(item)):
        raise BadInput(f"{place}: {', '.join(differing)} missing or unknown; an item has {', '.join(sorted(names))}")
    if item["verdict"] not in VERDICTS:
        raise BadInput(f"{place}: unknown verdict '{item['verdict']}': choose one of {', '.join(VERDICTS)}")
    if not LINES.fullmatch(item["lines"]):
        raise BadInput(f"{place}: lines are written as 000:34-46;001:9")
    if any(not item[name].strip() or set("|\n") & set(item[name]) for name in names - {"figures"}):
        raise BadInput(f"{place}: a field is empty, or has a | or a line break, which a table cannot hold")
    return Item(**item)


def documents(root: Path) -> Documents:
    """What a checkout's table holds. BadInput for one that is malformed or has an item twice."""
    try:
        found = tomllib.loads((root / TABLE).read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{root / TABLE} cannot be read: {error}") from None
    made = Documents(
        tuple(found.get("prepare", ())),
        {part["name"]: tuple(map(item_of, part.get("item", ()))) for part in found.get("section", ())},
    )
    keys = [(item.lines, item.asked) for item in made.items]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise BadInput(f"{TABLE}: {': '.join(twice[0])} is there twice")
    return made


def _of(results: Results) -> Documents:
    return documents(results.folder.parents[len(FOLDER.parts) - 1])


def prepare(results: Results) -> str:
    return "\n".join(("```sh", *_of(results).prepare, "```"))


def verdicts(results: Results) -> str:
    found = [item.verdict for item in _of(results).items]
    rows = [[name, what, found.count(name)] for name, what in VERDICTS.items()]
    return table(["verdict", "means", f"of {len(found)} items"], rows)


def items(results: Results) -> str:
    parts = []
    for name, own in _of(results).sections.items():
        rows = [[item.lines, item.asked, f"`{item.command}`", item.verdict, item.written(results)] for item in own]
        parts.append(f"## {name}\n\n{table(['lines', 'asked', 'command', 'verdict', 'what there is'], rows)}")
    return "\n\n".join(parts)


PAGES: dict[str, dict[str, Block]] = {"docs/documents.md": {"verdicts": verdicts, "prepare": prepare, "items": items}}
