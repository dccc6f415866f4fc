"""Adds reference/python.md to the site: the public names of `eventspec` with their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

PAGE = "reference/python.md"
INTRODUCTION = """# Python

Made from the docstrings when the site is built. `import eventspec as es` costs no torch: a name is imported when it is used
first. What is wrong with an input is a `BadInput` that says so in one line. Other modules may change without notice; the
protocols for a drafter or a target of your own are in [`eventspec.core`](../../src/eventspec/core.py).
"""


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook: the page joins the others."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """The page, as Markdown: functions first, then classes, each in alphabetical order."""
    import eventspec

    public = {name: getattr(eventspec, name) for name in sorted(eventspec._HOMES, key=str.lower)}
    functions = {name: found for name, found in public.items() if inspect.isfunction(found)}
    classes = {name: found for name, found in public.items() if inspect.isclass(found)}
    others = {name: found for name, found in public.items() if name not in functions and name not in classes}
    parts = [INTRODUCTION, "\n## Functions\n", *(function(name, found, "###") for name, found in functions.items())]
    parts += ["\n## Classes\n", *(of_class(name, found) for name, found in classes.items())]
    if others:
        parts += [
            "\n## Other names\n",
            *(f"\n### {name}\n\n```python\n{name} = {found!r}\n```\n" for name, found in others.items()),
        ]
    return "".join(parts)


def function(name: str, found: Any, heading: str, owner: str = "") -> str:
    """A function or method: signature and docstring."""
    shown = f"{owner}.{name}" if owner else name
    return f"\n{heading} {shown}\n\n{signature(shown, found)}\n{docstring(found)}"


def signature(name: str, found: Any) -> str:
    """As one would write the definition, a parameter a line where it is long."""
    known = inspect.signature(found)
    words = parameters([item for item in known.parameters.values() if item.name not in ("self", "cls")])
    returns = known.return_annotation
    behind = "" if returns in (inspect.Signature.empty, None, "None") else f" -> {returns}"
    line = f"{name}({', '.join(words)}){behind}"
    if len(line) > 88:
        line = f"{name}(\n    " + ",\n    ".join(words) + f",\n){behind}"
    return f"```python\n{line}\n```\n"


def parameters(known: list[inspect.Parameter]) -> list[str]:
    """Each parameter as it is written, with the star that stands before those given by name."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words, by_name = [], False
    for item in known:
        if item.kind is inspect.Parameter.KEYWORD_ONLY and not by_name:
            words.append("*")
        by_name = by_name or item.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        word = f"{stars.get(item.kind, '')}{item.name}"
        word += "" if item.annotation is inspect.Parameter.empty else f": {item.annotation}"
        if item.default is not inspect.Parameter.empty:
            default = "..." if " object at " in repr(item.default) or "<" in repr(item.default) else repr(item.default)
            word += f" = {default}"
        words.append(word)
    return words


def docstring(found: Any) -> str:
    """As Markdown takes it literally, but for code."""
    text = inspect.cleandoc(found.__doc__ or "").replace("``", "`")
    return "\n" + text.replace("<", "\\<").replace("|", "\\|") + "\n" if text else ""


def of_class(name: str, found: type) -> str:
    """A class: how it is made, what it holds and what it can do."""
    parts = [f"\n### {name}\n"]
    bases = [base.__name__ for base in found.__bases__ if base.__name__ not in ("object", "Protocol")]
    if bases:
        parts.append(f"\nA kind of `{'`, `'.join(bases)}`.\n")
    if is_dataclass(found):
        parts.append("\n" + signature(name, found))
    parts.append(docstring(found) if found.__doc__ and not found.__doc__.startswith(f"{name}(") else "")
    rows = [f"`{field}`{f': `{kind}`' if kind else ''}\n:   {text}\n" for field, kind, text in attributes(found) if text]
    if rows:
        parts.append("\n" + "\n".join(rows))
    for member, defined in vars(found).items():
        plain = defined.__func__ if isinstance(defined, classmethod | staticmethod) else defined
        if not member.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
            parts.append(function(member, plain, "####", name))
    return "".join(parts)


def attributes(found: type) -> list[tuple[str, str, str]]:
    """Name, type and docstring of the fields and properties that a class itself defines."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    except (OSError, TypeError):
        return []
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for place, node in enumerate(tree.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            behind = tree.body[place + 1] if place + 1 < len(tree.body) else None
            text = ""
            if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
                text = " ".join(str(behind.value.value).split())
            rows.append((node.target.id, ast.unparse(node.annotation), text))
        elif isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "property" for d in node.decorator_list):
            returns = ast.unparse(node.returns) if node.returns else ""
            rows.append((node.name, returns, " ".join((ast.get_docstring(node) or "").split())))
    return [(name, kind, text.replace("``", "`").replace("<", "\\<")) for name, kind, text in rows if not name.startswith("_")]
