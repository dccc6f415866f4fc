"""What is shown while something takes long: a spinner; of a training a bar a stage, or without a terminal a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import typer

Report = Callable[[str, float, dict[str, float]], None]
"""Takes a stage's name, the share of it that is done, and figures."""
EVERY_S = 60.0
"""Between two lines about one stage, where there is no terminal."""


@dataclass
class Lines:
    """Lines about stages, whose names are known in their order as far as they are given."""

    stages: Sequence[str]
    write: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    _stage: str = ""
    _began: tuple[float, float] = (0.0, 0.0)  # when this run first reported the stage, and how far it was then
    _latest: float = 0.0

    def add(self, name: str, progress: float, figures: dict[str, float]) -> None:
        """Writes the first report of a stage, its end, and between them what comes a minute after the last line."""
        now = self.clock()
        if fresh := name != self._stage:
            self._stage, self._began = name, (now, progress)
        if not fresh and progress < 1.0 and now - self._latest < EVERY_S:
            return
        self._latest = now
        parts = (f"{label(name, self.stages)}: {progress:.0%}", self._left(now, progress), in_words(figures))
        self.write(", ".join(filter(None, parts)))

    def _left(self, now: float, progress: float) -> str:
        begun, before = self._began
        if progress <= before or progress >= 1.0:
            return ""
        minutes = (now - begun) / (progress - before) * (1.0 - progress) / 60
        return f"{minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


def label(name: str, stages: Sequence[str]) -> str:
    """ "stage 2 of 6, eight", or the name alone where it is none of `stages`."""
    return f"stage {stages.index(name) + 1} of {len(stages)}, {name}" if name in stages else name


def in_words(figures: dict[str, float]) -> str:
    return " ".join(f"{key.lstrip('_')} {value:.3g}" for key, value in figures.items())


@contextmanager
def tracked(stages: Sequence[str] = ()) -> Iterator[Report]:
    """Show what is reported on standard error, for as long as the block runs: a bar for every stage, with the time left."""
    from rich import progress as parts
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(stages, lambda text: typer.echo(text, err=True)).add
        return
    done = (parts.TextColumn("{task.description}"), parts.BarColumn(20), parts.TaskProgressColumn(), parts.TimeElapsedColumn())
    left = (parts.TextColumn("left"), parts.TimeRemainingColumn(), parts.TextColumn("{task.fields[figures]}"))
    bar, tasks = parts.Progress(*done, *left, console=console), dict[str, parts.TaskID]()

    def show(name: str, progress: float, figures: dict[str, float]) -> None:
        if name not in tasks:
            bar.start()  # not before: what is refused is refused in one line
            tasks[name] = bar.add_task(label(name, stages), total=1.0, figures="")
        bar.update(tasks[name], completed=progress, figures=in_words(figures))

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def shown(stages: Sequence[str] = (), visible: bool = True) -> Iterator[Report]:
    """`tracked`, of work that can be gone on with: Ctrl-C says that nothing is lost."""
    begun = False
    try:
        with tracked(stages) as show:

            def report(name: str, progress: float, figures: dict[str, float]) -> None:
                nonlocal begun
                begun = True
                if visible:
                    show(name, progress, figures)

            yield report
    except KeyboardInterrupt:
        if begun:
            typer.echo("what was done up to here is kept: go on with --resume", err=True)
        raise


@contextmanager
def counted(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal, that is gone after the block; takes how much is done, of how much."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def announced(doing: str) -> None:
    """A line about what takes long, at once: before torch is imported."""
    typer.echo(f"{doing} ...", err=True)


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """A spinner and what is done, on standard error where that is a terminal, for as long as the block runs. Enter it before
    torch is imported: that alone takes a second or two."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing) as status:
        status.update(spinner="dots")  # draws at once: its first frame of its own comes later, with torch half imported
        yield
