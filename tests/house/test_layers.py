"""Rooms import only downwards, siblings do not know each other, and there is no room that house.md does not name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Run

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as check; check()"


def test_rooms_import_only_downwards(run: Run) -> None:
    done = run("-c", LINT_IMPORTS, "--no-cache", "--no-logo")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_of_modules_is_a_package(modules: dict[str, str]) -> None:
    """Without an __init__.py the import graph does not see a folder, and the layers hold in it by accident."""
    folders = {Path(name).parent for name in modules if name.startswith("src/eventspec/")}
    missing = sorted(str(folder) for folder in folders if str(folder / "__init__.py") not in modules)
    assert not missing, f"without __init__.py: {missing}"


def test_heads_are_told_apart_in_their_own_room_alone(modules: dict[str, str]) -> None:
    asked = re.compile(r"isinstance\([^)]*(?:Head|SmallVlm)\b")
    room = "src/eventspec/drafters/heads/"
    outside = {name: text for name, text in modules.items() if name.startswith("src/") and not name.startswith(room)}
    assert not [name for name, text in outside.items() if asked.search(text)]


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        ("utils/__init__.py", ""),
        ("core.py", "import eventspec.engine\n"),
        ("engine/loop.py", "from eventspec import events\n"),
        ("engine/detour.py", "import eventspec\n"),
        ("events/reach.py", "def late():\n    import eventspec.cli\n"),
    ],
    ids=["a stray room", "upwards", "a sibling", "through the public face", "upwards inside a function"],
)
def test_a_planted_violation_breaks_the_contract(run: Run, root: Path, tmp_path: Path, planted: str, text: str) -> None:
    house = tmp_path / "src/eventspec"
    for room in ("", "cli", "engine", "events"):
        (house / room).mkdir(parents=True, exist_ok=True)
        (house / room / "__init__.py").touch()
    (house / "core.py").touch()
    (house / "__init__.py").write_text("import eventspec.events\n")  # the public face knows rooms above the engine
    (tmp_path / "pyproject.toml").write_text((root / "pyproject.toml").read_text())
    check = ("-c", LINT_IMPORTS, "--no-cache", "--no-logo")
    clean = run(*check, folder=tmp_path)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    (house / planted).parent.mkdir(exist_ok=True)
    (house / planted).write_text(text)
    broken = run(*check, folder=tmp_path)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "1 broken" in broken.stdout
