"""The file tree in CONTRIBUTING.md names the rooms that exist, all of them and no others; results are of the pair that ships.

The tree is the fenced block with a line `src/eventspec/`; below it, one indented line a room: `engine/  what it does`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eventspec.pairs import load_pair

PLAIN = "src/eventspec/\n  core.py  types\n  cli/  words\n    doctor.py  facts\ntests/\n  house/\n"
DRAWN = "├── src/eventspec/\n│   ├── core.py  types\n│   └── cli/     words\n└── tests/\n"
NO_ROOMS = {"__init__.py", "__main__.py", "py.typed", "data/"}


def rooms_in(readme: str) -> set[str]:
    """Names directly below `src/eventspec/` in the tree block; lines may start with box-drawing characters."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL):
        lines = [re.sub(r"[│├└─|`]", " ", line) for line in block.splitlines()]
        depth = [len(line) - len(line.lstrip()) for line in lines]
        at = next((i for i, line in enumerate(lines) if line.split()[:1] == ["src/eventspec/"]), None)
        if at is None:
            continue
        below = []
        for line, indent in zip(lines[at + 1 :], depth[at + 1 :], strict=True):
            if line.strip() and indent <= depth[at]:
                break
            if line.strip():
                below.append((indent, line.split()[0]))
        nearest = min((indent for indent, _ in below), default=0)
        return {name for indent, name in below if indent == nearest} - NO_ROOMS
    return set()


def rooms_of(package: Path) -> set[str]:
    folders = {f"{child.name}/" for child in package.iterdir() if child.is_dir() and any(child.rglob("*.py"))}
    return (folders | {child.name for child in package.glob("*.py")}) - NO_ROOMS


def test_the_file_tree_lists_the_rooms_that_exist(root: Path) -> None:
    page = root / "CONTRIBUTING.md"
    listed, present = rooms_in(page.read_text()), rooms_of(root / "src/eventspec")
    assert listed, f"{page.name} has no fenced block with a line `src/eventspec/` and the rooms indented below it, one a line"
    assert not listed - present, f"{page.name} lists rooms that do not exist: {sorted(listed - present)}"
    assert not present - listed, f"{page.name}'s tree misses rooms: {sorted(present - listed)}"


@pytest.mark.parametrize("tree", [PLAIN, DRAWN], ids=["plain", "drawn"])
def test_a_tree_is_read_in_either_style(tree: str) -> None:
    assert rooms_in(f"# Title\n```sh\nmake demo\n```\n\n```\n{tree}```\n") == {"core.py", "cli/"}
    assert rooms_in("# Title\n```\nmake demo\n```\n") == set()


def test_the_results_were_measured_with_the_pair_that_ships(root: Path) -> None:
    results = root / "benchmarks/results"
    measured = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("main-job*.json"))}
    measured |= {f"heads, {mode}": told for mode, told in json.loads((results / "heads.json").read_text()).items()}
    now = load_pair("nano").fingerprint(adapters=False)
    old = [name for name, told in measured.items() if told["environment"]["pair_sha256"] != now]
    assert not old, f"the pair has changed, measure again: {'; '.join(old)}"
