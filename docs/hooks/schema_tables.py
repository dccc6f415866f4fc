"""Writes a table of fields where a page says `<!-- schema: NAME -->`, from docs/schemas/NAME.json (JSON Schema 2020-12)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "schemas"
PLACE = re.compile(r"<!-- schema: ([\w-]+) -->")


def on_page_markdown(markdown: str, **around: Any) -> str:
    """MkDocs' hook: the tables take their places."""
    return PLACE.sub(lambda found: table(found.group(1)), markdown)


def table(name: str) -> str:
    """Every field of a schema with its type and meaning, nested ones by their path."""
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    schema = resolved(schema, schema)
    rows = [f"| `{path}` | {kind} | {text} |" for path, kind, text in fields(schema, schema)]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def fields(schema: dict[str, Any], whole: dict[str, Any], before: str = "") -> list[tuple[str, str, str]]:
    """Path, type and meaning of what is described below a schema."""
    rows = []
    below = dict(schema.get("properties", {}))
    if isinstance(extra := schema.get("additionalProperties"), dict):
        below[str(extra.get("title", "NAME"))] = extra
    for name, own in below.items():
        own = resolved(own, whole)
        path = f"{before}{name}"
        rows.append((path, kind_of(own), str(own.get("description", "")).replace("|", "\\|")))
        rows += fields(own, whole, f"{path}.")
        if isinstance(items := own.get("items"), dict):
            rows += fields(resolved(items, whole), whole, f"{path}[].")
    return rows


def resolved(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one of `$defs` that it refers to; its own words stay. What another file says has a table of its own."""
    if not schema.get("$ref", "").startswith("#"):
        return schema
    found: dict[str, Any] = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}


def kind_of(schema: dict[str, Any]) -> str:
    """The type in words."""
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    kinds = schema.get("type", "any")
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)
