"""Inside a room, modules import each other in one direction: no circle, imports for type checkers and late ones included."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

PACKAGE = "src/eventspec"
ROOMS = ("drafters/heads", "engine", "nn")


def imports(modules: dict[str, str], room: str) -> dict[str, set[str]]:
    """Of every file of a room, folders in it included, which others of it its imports name, wherever they stand in the file."""
    paths = {
        ".".join(PurePosixPath(path).relative_to("src").with_suffix("").parts): path
        for path in modules
        if path.startswith(f"{PACKAGE}/{room}/") and not path.endswith("__init__.py")
    }
    found: dict[str, set[str]] = {}
    for path in paths.values():
        named = set[str]()
        for node in ast.walk(ast.parse(modules[path])):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                base = ".".join((f"{PACKAGE.removeprefix('src/')}/{room}").split("/")) if node.level else ""
                module = ".".join(filter(None, (base, node.module)))
                named |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        found[path] = {paths[name] for name in named if name in paths} - {path}
    return found


def circles(modules: dict[str, str], room: str) -> list[list[str]]:
    """The files of every circle of a room: those that reach each other."""
    edges = imports(modules, room)
    reached = {path: set(found) for path, found in edges.items()}
    for middle in edges:
        for path in edges:
            if middle in reached[path]:
                reached[path] |= reached[middle]
    together = {path: {path, *(other for other in reached[path] if path in reached[other])} for path in edges}
    return sorted({tuple(sorted(group)) for group in together.values() if len(group) > 1})  # type: ignore[type-var]


def test_no_room_has_a_circle(modules: dict[str, str]) -> None:
    for room in ROOMS:
        found = circles(modules, room)
        assert not found, f"modules of {room} import each other in a circle: {[', '.join(files) for files in found]}"


def test_a_planted_circle_is_found() -> None:
    head = f"{PACKAGE}/engine"
    planted = {
        f"{head}/__init__.py": "from eventspec.engine.one import x\n",
        f"{head}/one.py": "import typing\nif typing.TYPE_CHECKING:\n    from eventspec.engine.two import y\n",
        f"{head}/two.py": "def late():\n    import eventspec.engine.three\n",
        f"{head}/three.py": "from eventspec.engine import one\n",
        f"{head}/four.py": "from eventspec.engine import one\n",
    }
    assert circles(planted, "engine") == [tuple(f"{head}/{name}.py" for name in ("one", "three", "two"))]
    del planted[f"{head}/three.py"]
    assert circles(planted, "engine") == []
