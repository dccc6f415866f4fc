"""What must not be in a tracked file: package hosts, paths of one machine, notes to self, names that were given up."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

# In pieces, so that this file does not accuse itself.
HOSTS = r"py" + r"pi\.org|python" + r"hosted|py" + r"torch\.org/whl|registry\.np" + r"mjs|anaconda" + r"\.org|deb\.deb" + r"ian"
FOLDERS = "|".join(("ho" + "me", "ro" + "ot", "Us" + "ers", "wo" + "rk", "op" + "t", "mn" + "t"))
NOTES = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"))
FORBIDDEN = {
    "a package registry's host": re.compile(HOSTS),
    "an absolute path of one machine": re.compile(rf"(?<![\w./~)}}\]:-])/(?:{FOLDERS})/\w"),
    "a note to self": re.compile(rf"\b(?:{NOTES})\b"),
}
# Licence texts are not ours to mend; .gitignore's leading slash means the project's root.
EXEMPT = re.compile(r"(^|/)(LICENSE|\.gitignore$)")


def findings(files: dict[str, str]) -> list[str]:
    return [
        f"{name}:{number}: {what}: {line.strip()[:100]}"
        for name, text in files.items()
        if not EXEMPT.search(name)
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def test_no_file_names_hosts_machines_or_unfinished_work(files: dict[str, str]) -> None:
    found = findings(files)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "see https://py" + "pi.org/simple",
        'open("/ho' + 'me/me/x.h5")',
        "cd /wo" + "rk/main",
        "# TO" + "DO: later",
        "FIX" + "ME",
    ],
)
def test_a_planted_word_is_found(line: str) -> None:
    assert len(findings({"a.py": f"x = 1\n{line}\n"})) == 1


@pytest.mark.parametrize("line", ["todo = 1", "frames/home/x", "../work/main", "https://host/root/x", "{folder}/work/x"])
def test_innocent_lines_pass(line: str) -> None:
    assert findings({"a.py": line}) == []


GIVEN_UP = {"told", "hot", "Hot", "Seen", "Nothing", "Late", "unseen", "sees", "hears_all", "hopeless", "Growth"}
"""Names that said nothing to a reader of the field."""


def names_in(text: str) -> set[str]:
    """Every name that a module gives or uses."""
    nodes = list(ast.walk(ast.parse(text)))
    return {str(getattr(node, field)) for node in nodes for field in ("name", "arg", "attr", "id") if hasattr(node, field)}


def test_no_name_comes_back_that_was_given_up(root: Path) -> None:
    found = {path.name: names_in(path.read_text()) & GIVEN_UP for path in sorted((root / "src").rglob("*.py"))}
    assert not {name: words for name, words in found.items() if words}
    assert names_in("def told(sees):\n    return sees.hot") & GIVEN_UP == {"told", "sees", "hot"}
