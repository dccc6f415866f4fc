"""A file fits into one reading, a function onto one screen."""

from __future__ import annotations

import ast

FILE_LINES = 400
FUNCTION_LINES = 60
# Exceptions, each with its reason in a comment. An entry that no longer needs to be here fails too.
LONG_FILES: frozenset[str] = frozenset()  # path
LONG_FUNCTIONS: frozenset[str] = frozenset()  # path:function
CORE_LINES = {"src/eventspec/engine/generate.py": 120, "src/eventspec/core.py": 340}
"""What a stranger reads first is shorter."""
ENGINE_LINES = 220


def long_files(modules: dict[str, str]) -> dict[str, int]:
    lengths = {name: len(text.splitlines()) for name, text in modules.items()}
    return {name: lines for name, lines in lengths.items() if lines > FILE_LINES}


def long_functions(modules: dict[str, str]) -> dict[str, int]:
    found = {}
    for name, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{name}:{node.name}"] = lines
    return found


def test_no_file_is_too_long(modules: dict[str, str]) -> None:
    found = long_files(modules)
    assert found.keys() <= LONG_FILES, f"more than {FILE_LINES} lines: {found}"
    assert found.keys() >= LONG_FILES, f"no longer exceptions: {sorted(LONG_FILES - found.keys())}"


def test_what_is_read_first_is_short(modules: dict[str, str]) -> None:
    lengths = {name: len(text.splitlines()) for name, text in modules.items()}
    assert all(lengths[name] <= most for name, most in CORE_LINES.items()), {name: lengths[name] for name in CORE_LINES}
    engine = {name: lines for name, lines in lengths.items() if name.startswith("src/eventspec/engine/")}
    assert max(engine.values()) <= ENGINE_LINES


def test_no_function_is_too_long(modules: dict[str, str]) -> None:
    found = long_functions({name: text for name, text in modules.items() if not name.startswith("tests/")})
    assert found.keys() <= LONG_FUNCTIONS, f"more than {FUNCTION_LINES} lines: {found}"
    assert found.keys() >= LONG_FUNCTIONS, f"no longer exceptions: {sorted(LONG_FUNCTIONS - found.keys())}"


def test_the_limits_are_the_limits() -> None:
    def function(lines: int) -> str:
        return "class A:\n    async def f(self):\n" + "        x = 1\n" * (lines - 1)

    assert long_functions({"a.py": function(FUNCTION_LINES)}) == {}
    assert long_functions({"a.py": function(FUNCTION_LINES + 1)}) == {"a.py:f": FUNCTION_LINES + 1}
    assert long_files({"a.py": "x\n" * FILE_LINES}) == {}
    assert long_files({"a.py": "x\n" * (FILE_LINES + 1)}) == {"a.py": FILE_LINES + 1}
