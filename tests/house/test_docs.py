"""The documentation's code runs, its command lines are the program's, its figures and links are what they say."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.pages import blocks, command_lines

import eventspec as es
from eventspec import cli
from eventspec.cli.commands import built

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def pages_with(kind: str) -> list[Path]:
    return [page for page in PAGES if any(block.kind == kind for block in blocks(page.read_text()))]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# ------------------------------------------------------------------------------------------------------------------- Python
def run_page(page: Path, text: str) -> int:
    """Run a page's Python from top to bottom in one namespace; how many blocks ran."""
    space: dict[str, Any] = {"__name__": "docs_page"}
    ran = 0
    for block in blocks(text):
        if block.kind == "python" and not block.how.startswith("no, "):
            code = "\n" * (block.line - 1) + block.code  # tracebacks name the page's own line
            exec(compile(code, str(page), "exec"), space)
            ran += 1
    return ran


@pytest.mark.parametrize("page", pages_with("python"), ids=named)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    skipped = [block for block in blocks(page.read_text()) if block.kind == "python" and block.how.startswith("no, ")]
    assert run_page(page, page.read_text()) or skipped


@pytest.mark.parametrize("page", pages_with("python"), ids=named)
def test_blocks_that_continue_a_page_say_so(page: Path) -> None:
    run = [block for block in blocks(page.read_text()) if block.kind == "python" and not block.how.startswith("no, ")]
    assert all("import eventspec" in block.code for block in run[1:]) or "continue" in page.read_text()


def test_no_two_pages_write_the_same_rows() -> None:
    names = [name for page in PAGES for name in set(re.findall(r"[\w/-]*rows\.jsonl", page.read_text()))]
    assert len(names) == len(set(names)) > 1


def test_wrong_python_on_a_page_is_found() -> None:
    with pytest.raises(ZeroDivisionError):
        run_page(Path("page.md"), "```python\nx = 0\n```\n\ntext\n\n```python\n1 / x\n```\n")
    assert run_page(Path("page.md"), "<!-- run: no, needs a GPU -->\n```python\n1 / 0\n```\n") == 0


# -------------------------------------------------------------------------------------------------------------------- shell
def wrong(words: list[str]) -> str | None:
    """What is wrong with a command line, None where nothing is: as the program itself would read it, without running it."""
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return None if words[1].partition("=")[0] in targets else f"no target {words[1]}"
    if words[0] == "torchrun":
        words = ["eventspec", *words[words.index("eventspec") + 1 :]]
    if words[0] != "eventspec":
        return None if words[0] in ("source", "python", "git", "cat") else f"what is {words[0]}?"
    command, path, rest = built(), ["eventspec"], words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"{' '.join(path)} has no command {rest[:1]}"
        command, path, rest = command.commands[rest[0]], [*path, rest[0]], rest[1:]
    try:
        read = command.make_context(" ".join(path), list(rest))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    from eventspec.pairs.names import METHODS

    methods = read.params.get("method") or []
    unknown = set([methods] if isinstance(methods, str) else methods) - set(METHODS)
    return f"no methods {sorted(unknown)}" if unknown else None


@pytest.mark.parametrize("page", pages_with("sh"), ids=named)
def test_the_command_lines_of_a_page_are_the_program_s(page: Path) -> None:
    found = {" ".join(words): wrong(words) for words in command_lines(page.read_text())}
    assert found, "shell blocks without a command"
    assert not {line: problem for line, problem in found.items() if problem}


@pytest.mark.parametrize(
    "line",
    [
        "eventspec generate --recording a --promt b",
        "eventspec generate --recording a --prompt b --method magic",
        "eventspec genrate",
        "eventspec generate --pair embedded",
        "eventspec events convert a b --to x.raw c",
        "make dmeo",
        "evntspec demo",
    ],
)
def test_a_wrong_command_line_is_found(line: str) -> None:
    assert wrong(shlex.split(line))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in pages_with("sh") if "<!-- run: long -->" in page.read_text()], ids=named)
def test_the_marked_command_lines_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    marked = [block for block in blocks(page.read_text()) if block.kind == "sh" and block.how == "long"]
    for block in marked:
        for words in command_lines(f"```sh\n{block.code}```\n"):
            assert cli.run(words[1:]) == 0, " ".join(words)


# ---------------------------------------------------------------------------------------------- pages made from the program
def hook(name: str) -> Any:
    """A module of docs/hooks, as MkDocs loads it: by its path."""
    spec = importlib.util.spec_from_file_location(f"docs_hook_{name}", ROOT / f"docs/hooks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_s_page_has_every_command_and_option() -> None:
    made = hook("command_line")
    sections = {words: made.section(command, words) for words, command in made.commands(typer.main.get_command(cli.app))}
    assert ("eventspec", "bench", "compare") in sections
    for words, command in made.commands(typer.main.get_command(cli.app)):
        missing = [name for option in command.params for name in option.opts if option.opts and name not in sections[words]]
        missing = [name for name in missing if name.startswith("--")]
        assert not missing, f"{' '.join(words)}: {missing}"
    assert all(section.strip() in made.page() for section in sections.values())


def test_the_python_page_has_every_public_name() -> None:
    page = hook("python_names").page()
    assert not [name for name in es._HOMES if f"\n### {name}\n" not in page]
    assert "#### Recording.open\n" in page
    assert "max_new_tokens=256" in page  # a docstring's words


# --------------------------------------------------------------------------------------------------------- links and figures
def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of a page to what is not there."""
    return [link for link in LINK.findall(text) if not (page.parent / link).exists()]


# Pages that are made while the site is built.
MADE = {"command-line.md", "python.md"}


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """MkDocs checks those of the site, with anchors; here also the files beside it."""
    found = [link for link in broken_links(page, page.read_text()) if Path(link).name not in MADE]
    assert not found, f"{named(page)} links to what is not there: {found}"


def test_a_broken_link_is_found() -> None:
    assert broken_links(ROOT / "README.md", "[a](docs/nothing.md) [b](docs/architecture.md#x) [c](https://x.y/z)") == [
        "docs/nothing.md"
    ]


def test_the_figures_of_readme_and_docs_are_what_the_results_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.run(["bench", "report", "--check"]) == 0, "run eventspec bench report"


def test_the_architecture_is_read_in_one_sitting() -> None:
    lines = len((ROOT / "docs/architecture.md").read_text().splitlines())
    assert lines <= 150, f"docs/architecture.md has {lines} lines, more than 150"
