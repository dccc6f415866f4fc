"""A file fits into one reading, a function onto one screen, its arguments into one glance."""

from __future__ import annotations

import ast

FILE_LINES = 400
FUNCTION_LINES = 60
ARGUMENTS = 8
# Exceptions, each with its reason in a comment. An entry that no longer needs to be here fails too.
MANY_ARGUMENTS: frozenset[str] = frozenset()  # path:function
LONG_FILES: frozenset[str] = frozenset()  # path
LONG_FUNCTIONS: frozenset[str] = frozenset()  # path:function
CORE_LINES = {
    "src/eventspec/engine/scheduler.py": 150,
    "src/eventspec/engine/decoding.py": 200,
    "src/eventspec/core.py": 340,
}
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


def many_arguments(modules: dict[str, str]) -> dict[str, int]:
    """Functions and methods with more arguments than `ARGUMENTS`, self and cls not counted."""
    found = {}
    for name, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([one for one in given if one.arg not in ("self", "cls")])
                if count > ARGUMENTS:
                    found[f"{name}:{node.name}"] = count
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


def test_no_function_takes_too_many_arguments(modules: dict[str, str]) -> None:
    found = many_arguments(
        # What a command takes is what its user may type.
        {name: text for name, text in modules.items() if name.startswith("src/") and "/cli/" not in name}
    )
    assert found.keys() <= MANY_ARGUMENTS, f"more than {ARGUMENTS} arguments: {found}"
    assert found.keys() >= MANY_ARGUMENTS, f"no longer exceptions: {sorted(MANY_ARGUMENTS - found.keys())}"


def test_the_limits_are_the_limits() -> None:
    def function(lines: int) -> str:
        return "class A:\n    async def f(self):\n" + "        x = 1\n" * (lines - 1)

    assert long_functions({"a.py": function(FUNCTION_LINES)}) == {}
    assert long_functions({"a.py": function(FUNCTION_LINES + 1)}) == {"a.py:f": FUNCTION_LINES + 1}
    names = ", ".join("abcdefgh")
    assert many_arguments({"a.py": f"class A:\n    def f(self, {names}): ..."}) == {}
    assert many_arguments({"a.py": f"def f({names}, *, i): ..."}) == {"a.py:f": ARGUMENTS + 1}
    assert long_files({"a.py": "x\n" * FILE_LINES}) == {}
    assert long_files({"a.py": "x\n" * (FILE_LINES + 1)}) == {"a.py": FILE_LINES + 1}
