"""The command answers at once, fails in one line, and keeps its promises about exit codes and standard output."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, get_args, get_type_hints

import pytest
import typer

from eventspec import cli
from eventspec.cli import options

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Run

HEAVY = ("torch", "numpy", "h5py", "matplotlib", "av", "aedat", "numba", "transformers", "tokenizers")
PROBE = """
import sys
from eventspec import cli
code = cli.run(sys.argv[2:])
print(*sorted(set(sys.argv[1].split(",")) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
GROUPS = sorted(group.name or "" for group in cli.app.registered_groups)


def test_help_imports_nothing_heavy(run: Run) -> None:
    """That of the program and of every group, all asked of one process."""
    program = "\n".join(f"cli.run([*{group!r}, '--help'])" for group in ([], *([group] for group in GROUPS)))
    done = run(
        "-c", f"import sys\nfrom eventspec import cli\n{program}\nprint(*{{*{HEAVY}}} & {{*sys.modules}}, file=sys.stderr)"
    )
    assert (done.returncode, done.stderr.split()) == (0, [])
    assert done.stdout.count("Usage: ") == 1 + len(GROUPS)


@pytest.mark.parametrize(("line", "code"), [("--version >&-", 0), ("--help >&- 2>&-", 0), ("nothing >&- 2>&-", 2)])
def test_standard_output_may_be_closed(line: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m eventspec {line}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.fixture(scope="module")
def doctor(run: Run) -> CompletedProcess[str]:
    """`doctor --json`, and what it imported on standard error."""
    return run("-c", PROBE, ",".join(HEAVY), "doctor", "--json")


def test_a_heavy_import_would_be_seen(doctor: CompletedProcess[str]) -> None:
    assert "torch" in doctor.stderr.split()


def test_help_costs_little_more_than_the_library_it_is_made_with(run: Run) -> None:
    """Processor seconds beside those of importing typer and rich alone, the best of three each: absolute ones would measure the
    machine."""

    def seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run(*words).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = ("-c", "import typer.main, rich.console, rich.panel, rich.table")
    turns = [(seconds("-m", "eventspec", "--help"), seconds(*bare)) for _ in range(3)]
    ours, theirs = map(min, zip(*turns, strict=True))
    assert ours < 4 * theirs


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["warp"], "doctor"),
        (["events", "warp"], "convert"),
        (["events", "info", "--monotonic", "x", "file"], "'raise', 'clamp', 'keep'"),
        (["doctor", "--jsn"], "--json"),
        (["doctor", "extra"], "eventspec doctor --help"),
    ],
    ids=[
        "an unknown command",
        "an unknown command of a group",
        "a wrong choice",
        "a misspelt option",
        "one word too many",
    ],
)
def test_a_wrong_call_is_one_line_that_names_what_is_valid(run: Run, words: list[str], named: str) -> None:
    done = run("-m", "eventspec", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("eventspec: ")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        ("core.BadInput('clip.h5: no events;\\ntry another file')", 2, "eventspec: clip.h5: no events; try another file\n"),
        ("KeyError('x')", 1, "eventspec: KeyError: 'x'; run with EVENTSPEC_DEBUG=1 for the traceback\n"),
        ("KeyboardInterrupt()", 130, "eventspec: interrupted\n"),
        ("BrokenPipeError(32, 'Broken pipe')", 1, ""),
    ],
    ids=["the user's to mend", "ours", "interrupted", "the reader has left"],
)
def test_a_failure_is_one_line_and_an_exit_code(run: Run, raised: str, code: int, says: str) -> None:
    command = f"@cli.app.command()\ndef fail():\n    raise {raised}\n"
    program = f"from eventspec import cli, core\n{command}raise SystemExit(cli.run(['fail']))"
    done = run("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", says)
    if code == 1 and says:
        debugged = run("-c", program, EVENTSPEC_DEBUG="1")
        assert debugged.returncode == code
        assert "Traceback" in debugged.stderr


def test_doctor_prints_one_json_object_and_the_same_for_people(
    doctor: CompletedProcess[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.returncode == 0
    told = json.loads(doctor.stdout)
    assert told["torch"]["version"]
    assert told["cores"]["usable"] >= 1
    assert cli.run(["doctor"]) == 0
    assert told["torch"]["version"] in capsys.readouterr().out


def path_options(group: typer.Typer) -> dict[str, bool]:
    """Every option or argument of type Path, by command and name: whether it is read by `options.given_path`."""
    found = {}
    for command in group.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, *details = get_args(hint) or (hint,)
            if Path in (kind, *get_args(kind)):
                parsers = [getattr(detail, "parser", None) for detail in details]
                found[f"{getattr(command.callback, '__name__', '')} {name}"] = parsers == [options.given_path]
    for below in group.registered_groups:
        if below.typer_instance is not None:
            found |= path_options(below.typer_instance)
    return found


def test_every_path_is_read_by_the_one_reader() -> None:
    found = path_options(cli.app)
    assert len(found) > 15
    assert [name for name, read in found.items() if not read] == []


def test_an_empty_path_is_no_place(run: Run) -> None:
    for words in (["events", "info", ""], ["demo", "--out", ""], ["generate", "--prompt", "What?", "--recording="]):
        done = run("-m", "eventspec", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the path is empty" in done.stderr and done.stderr.count("\n") == 1


def test_the_version_is_the_projects(run: Run, root: Path) -> None:
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert run("-m", "eventspec", "--version").stdout == f"eventspec {version}\n"


def test_a_broken_installation_is_named(run: Run, root: Path, tmp_path: Path) -> None:
    """What cannot be imported is no interrupt: a line says what it is."""
    (tmp_path / "typer.py").write_text("raise ImportError('half of it is missing')\n")
    done = run("-m", "eventspec", "--help", PYTHONPATH=f"{tmp_path}:{root / 'src'}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "eventspec: ImportError: half of it is missing: the installation is broken, install eventspec again\n"
    )
