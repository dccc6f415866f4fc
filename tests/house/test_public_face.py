"""`import eventspec` is instant, and every name it promises is there and known to type checkers."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import eventspec

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Run


def test_importing_the_package_imports_nothing_heavy(run: Run) -> None:
    done = run("-c", "import sys, eventspec; print('numpy' in sys.modules, 'torch' in sys.modules)")
    assert done.stdout == "False False\n", done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(eventspec._HOMES))
def test_a_promised_name_is_there(name: str) -> None:
    home = f"eventspec.{eventspec._HOMES[name]}"
    assert hasattr(import_module(home), name), f"{home} must define or re-export {name}"
    assert getattr(eventspec, name) is getattr(import_module(home), name)


def test_type_checkers_see_the_same_names(root: Path) -> None:
    tree = ast.parse((root / "src/eventspec/__init__.py").read_text())
    imports = (
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eventspec.")
    )
    seen = {alias.name: (node.module or "").removeprefix("eventspec.") for node in imports for alias in node.names}
    assert seen == eventspec._HOMES, "the TYPE_CHECKING imports and _HOMES must name the same things"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="load_pear"):
        eventspec.load_pear  # noqa: B018
