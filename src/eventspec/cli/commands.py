"""What the command ``eventspec`` offers, and how every failure becomes one line and an exit code.

0: done; 1: it failed; 2: the input or the call cannot be used; 130: interrupted. Torch, numpy and their like are imported
inside the commands, so that ``--help`` is instant.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from eventspec import __version__
from eventspec.cli import bench, dataset, demo, doctor, events, features, generate, live, models, plan, train, was_interrupted
from eventspec.cli.help import App
from eventspec.errors import BadInput, BadSetting, EventspecError
from eventspec.files import NO_ROOM

app = App(
    name="eventspec",
    help="Ask a question about a recording and get the video model's exact answer sooner.",
    add_completion=False,
    pretty_exceptions_enable=False,  # main() prints failures, in one line
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eventspec {__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")


@app.callback(invoke_without_command=True)
def _options(context: typer.Context, version: Annotated[bool, _VERSION] = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# A group of commands is a typer app, a command on its own a function. In the order of the help page.
app.command(short_help="Compare every method on a bundled scene and a real recording.")(demo.demo)
app.command(
    short_help="Ask one question about one recording.",
    examples="""
    eventspec generate --recording example:street --prompt "Describe the scene."
    eventspec generate --recording drive.aedat4 --prompt "What is ahead?" --json
    eventspec generate --video drive.mp4 --events drive.raw --prompt "..."
    eventspec generate --target Video-LLaVA-7B-hf --drafter EventGPT-7b \\
      --dtype bfloat16 --recording drive.aedat4 --prompt "..."
    """,
)(generate.generate)
app.command(short_help="Ask several questions about one recording.")(generate.chat)
app.command(short_help="Replay a recording in real time and ask about it meanwhile.")(live.live)
app.add_typer(models.models, name="models", short_help="Bundled pairs and checkpoint folders.")
app.add_typer(events.app, name="events", short_help="Look into event recordings, convert, draw, simulate them.")
app.add_typer(dataset.app, name="dataset", short_help="Data sets on disk: DSEC, MVSEC, ActivityNet-QA, EventGPT.")
app.add_typer(dataset.scenes, name="scenes", short_help="The seeded synthetic street, with questions and answers.")
train.train.command()(features.features)
bench.bench.command()(features.gaps)
app.add_typer(train.train, name="train", short_help="Train the models that ship with eventspec, or your own.")
app.add_typer(bench.bench, name="bench", short_help="Compare methods, with their controls and ceilings.")
app.command(short_help="Predict what every method would take for an answer.")(plan.plan)
app.command(short_help="What this machine can run, and what to install for the rest.")(doctor.doctor)


@cache
def built() -> Any:
    """The command line: typer makes it anew, of every signature, for whoever asks it."""
    return get_command(app)


def run(words: list[str]) -> int:
    """Run one command line; the exit code. Nothing escapes but a failure of the interpreter itself."""
    warnings.filterwarnings("ignore", module="PIL")  # what is wrong with an image is said in one line of ours
    try:
        code = built()(words, prog_name="eventspec", standalone_mode=False)
        sys.stdout.flush()  # a closed pipe shows here at the latest
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # `eventspec ... | head`: the reader has left. Python flushes stdout once more at exit; give it a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _fail("interrupted", 130) if _is_interrupt(error) else _explain(error)
    if code == 130:  # newer typers turn the interrupt into this code, older ones raise Abort
        return _fail("interrupted", code)
    return code if isinstance(code, int) else 0


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the reason of an error: it came, and native code may turn the KeyboardInterrupt that it meets into an
    error of any kind (torch into a RuntimeError, an import into an ImportError). What is wrong with the call, or with a named
    file, is not, unless it is chained to it."""
    named = (
        isinstance(error, EventspecError) or hasattr(error, "format_message") or getattr(error, "filename", None) is not None
    )
    if not was_interrupted() or not named:
        return was_interrupted()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _explain(error: Exception) -> int:
    """Print an error in one line: the user's to mend (2), or ours (1)."""
    # Known by its method, not its class: typer has moved click's errors into private modules, and older typers use click's own.
    if hasattr(error, "format_message"):
        return _fail(_usage(error), getattr(error, "exit_code", 2))
    debugging = bool(os.environ.get("EVENTSPEC_DEBUG"))
    if debugging:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, BadInput):
        return _fail(_in_options(error), 2)
    if isinstance(error, EventspecError):
        return _fail(str(error), 2)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in NO_ROOM):
        place = os.fsdecode(error.filename2 or error.filename or "a file, or standard output, cannot be written")
        return _fail(f"{place}: {str(error.strerror).lower()}: choose another place, or check what is there and its rights", 2)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _fail(message if debugging else f"{message}; run with EVENTSPEC_DEBUG=1 for the traceback", 1)


def _in_options(error: BadInput) -> str:
    """What is wrong with a call, with the options as they are typed where Python has settings: ``window_us`` is --window-us,
    and ``monotonic="clamp"`` is --monotonic clamp. A part of a path is no setting."""
    options = {"sensor_size": "--sensor", "stop_strings": "--stop", "bad_words": "--bad-word"}
    for command in _commands(built()):
        options |= {str(param.name): max(param.opts, key=len) for param in command.params if param.opts[0].startswith("-")}
    if isinstance(error, BadSetting):
        error = BadInput(f"{options.get(error.name, error.name)} {error.wrong}")

    def option(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name not in options or (value is None and "_" not in name):
            return found[0]
        size = re.fullmatch(r"\((\w+), (\w+)\)", value or "")
        given = f"{size[1]}x{size[2]}" if size else (value or "True").strip('"')
        return options[name] + ("" if given == "True" else f" {given}")

    word, value = r"(?<![\w/.'-])(?P<name>[a-z]+(?:_[a-z]+)*)", r'(?:=(?P<value>\(.*?\)|"\w+"|\w+))?'
    return re.sub(word + value + r"(?![\w/.'-])", option, str(error))


def _commands(group: Any) -> Iterator[Any]:
    """A command and all of those in it."""
    yield group
    for command in getattr(group, "commands", {}).values():
        yield from _commands(command)


def _usage(error: Exception) -> str:
    """What is wrong with the call, which values are valid, and where to read on."""
    context = getattr(error, "ctx", None)
    message = str(error.format_message()).strip().rstrip(".").replace("Value error, ", "")  # type: ignore[attr-defined]
    if context is None:
        return message
    commands = getattr(context.command, "commands", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help page, already shown where rich prints it
        message = "Missing command"
    if commands and not hasattr(error, "option_name"):
        message += f"; choose from {', '.join(commands)}"
    return f"{message}; see `{context.command_path} --help`"


def _fail(text: str, code: int) -> int:
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    line = line.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair, say in a name out of a JSON file
    typer.echo(f"eventspec: {line}", err=True)
    return code
