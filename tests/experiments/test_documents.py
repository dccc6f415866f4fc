"""The page of the founding documents: its table is whole, its commands are the program's, and each of them runs."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from eventspec import cli
from eventspec.cli.commands import built
from eventspec.core import BadInput
from eventspec.experiments.reports import FOLDER, Results
from eventspec.experiments.reports.documents import TABLE, VERDICTS, documents, items, verdicts

ROOT = Path(__file__).resolve().parents[2]
FOUND = documents(ROOT)
COMMANDS = list(dict.fromkeys([*FOUND.prepare, *(item.command for item in FOUND.items)]))
ITEM = {
    "lines": '"000:1-2,4;001:3"',
    "asked": '"a"',
    "command": '"eventspec doctor"',
    "verdict": '"as described"',
    "text": '"{n} of it"',
    "figures": '{n = ["reuse", "scenes", "{n}"]}',
}


def problem(command: str) -> str | None:
    """What is wrong with a command line, None where nothing is: as the program reads it; or a test file is missing."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "pytest"]:
        missing = [word for word in words[3:] if not (ROOT / word).is_file()]
        return f"no {missing}" if missing or len(words) < 4 else None
    if words[:2] == ["python", "-c"]:
        return None if compile(words[2], "page", "exec") and len(words) == 3 else "more than one statement"
    read, path, rest = built(), ["eventspec"], words[1:]
    if words[0] != "eventspec":
        return f"what is {words[0]}?"
    while hasattr(read, "commands"):
        if not rest or rest[0] not in read.commands:
            return f"{' '.join(path)} has no command {rest[:1]}"
        read, path, rest = read.commands[rest[0]], [*path, rest[0]], rest[1:]
    try:
        read.make_context(" ".join(path), list(rest))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_the_program_s(command: str) -> None:
    assert problem(command) is None


@pytest.mark.parametrize(
    "command", ["eventspec generate --prompt x --metod eagle", "eventspec dance", "python -m pytest tests/no.py", "ls"]
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert problem(command)


def test_every_item_is_on_the_page_with_a_verdict_that_the_page_explains() -> None:
    results = Results(ROOT)
    rows = [line for line in items(results).splitlines() if re.match(r"\| \d{3}:", line)]
    assert len(rows) == len(FOUND.items) >= 136
    assert all(row.count("`") >= 2 and row.split("|")[4].strip() in VERDICTS for row in rows)
    page = (ROOT / "docs/documents.md").read_text()
    assert all(row in page for row in rows) and verdicts(results) in page


def test_links_lead_to_sections_that_are_there() -> None:
    """MkDocs checks anchors only where it is installed."""

    def anchors(page: Path) -> set[str]:
        heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.replace("`", "")).strip().lower()) for head in heads}

    links = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", (ROOT / "docs/documents.md").read_text())
    assert len(links) > 50
    assert not [link for link in links if link[1] and link[1] not in anchors(ROOT / "docs" / link[0])]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "reuse.json").write_text('{"scenes": {"n": 7, "none": null}, "list": [{"n": 1}]}')
    (tmp_path / TABLE).parent.mkdir()
    return Results(tmp_path)


def write(results: Results, *changed: dict[str, str | None]) -> Path:
    parts = [{**ITEM, **change} for change in changed]
    text = "\n".join("[[section.item]]\n" + "\n".join(f"{k} = {v}" for k, v in part.items() if v) for part in parts)
    root = results.folder.parents[1]
    (root / TABLE).write_text(f'prepare = []\n[[section]]\nname = "One"\n{text}\n')
    return root


def test_a_figure_is_looked_up_and_a_row_written(results: Results) -> None:
    write(results, {})
    assert items(results).endswith("| 000:1-2,4;001:3 | a | `eventspec doctor` | as described | 7 of it |")
    assert "| as described | built as" in verdicts(results) and "| of 1 items |" in verdicts(results)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": '"absent"'}, "unknown verdict 'absent': choose one of as described"),
        ({"text": None}, "text missing or unknown"),
        ({"note": '"x"'}, "note missing or unknown"),
        ({"lines": '"0:1"'}, "lines are written as"),
        ({"asked": '"a | b"'}, "which a table cannot hold"),
        ({"command": '" "'}, "a field is empty"),
    ],
)
def test_a_malformed_table_is_one_line(results: Results, change: dict[str, str | None], says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)) as raised:
        documents(write(results, change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "figures",
    ['{n = ["reuse", "scenes/of/n", "{n}"]}', '{n = ["reuse", "list/4", "{n}"]}', '{n = ["reuse", "scenes", "{m}"]}', "{}"],
)
def test_a_figure_that_is_not_there_is_one_line(results: Results, figures: str) -> None:
    write(results, {"figures": figures})
    with pytest.raises(BadInput, match="a figure cannot be had"):
        items(results)


def test_an_item_that_is_there_twice_and_a_broken_file_are_one_line(results: Results) -> None:
    root = write(results, {}, {})
    with pytest.raises(BadInput, match=re.escape("000:1-2,4;001:3: a is there twice")):
        documents(root)
    (root / TABLE).write_text("prepare = [")
    with pytest.raises(BadInput, match="cannot be read"):
        documents(root)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In one folder, in the page's order. Tests that the page names run with the others."""
    monkeypatch.chdir(tmp_path)
    failed = dict[str, Any]()
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "eventspec":
            monkeypatch.chdir(ROOT if words[1:3] == ["bench", "report"] else tmp_path)
            monkeypatch.setattr("sys.stdin", io.StringIO("What is ahead?\n"))
            if cli.run(words[1:]):
                failed[command] = capsys.readouterr().err[-300:]
            capsys.readouterr()
        elif words[1] == "-c":
            exec(compile(words[2], "page", "exec"), {})
    assert not failed
