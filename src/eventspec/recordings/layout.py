"""What every data set's layout provides: how to recognise a folder, what is in it, and its questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.core import BadInput, Window
from eventspec.files import parsed
from eventspec.recordings.parts import Contents

if TYPE_CHECKING:
    from eventspec.recordings.recording import Recording


@dataclass(frozen=True)
class Row:
    """One question about one recording, which `Recording.open` opens, or about a window of it; answer: None where the target is
    to give it."""

    recording: Path
    kind: str | None
    question: str
    answer: str | None
    id: str
    window: Window | None = None


@dataclass(frozen=True)
class QuestionSet:
    """The rows whose recordings are there; what is missing for the others, and what to know of the recordings; how many windows
    are left out because events or frames are missing in them."""

    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Part:
    """One thing that is there: a sequence, a file, a split; facts: what it holds, by name."""

    name: str
    facts: dict[str, int | None]


@dataclass(frozen=True)
class Report:
    """What a folder holds of a data set. missing: what is not there; wrong: what is there and cannot be used."""

    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """One data set: its name on the command line, its title, the expected tree, and its functions.

    ``contents(path)``: its recordings or files, by names and beginnings only. ``inspect(path)`` opens them and never raises for
    what is wrong inside. ``questions(path, recordings, split)``, where it has some, raises BadInput for files it cannot use;
    `recordings`: a folder with the recordings where they are not in the data set's own. ``recordings(path, recordings)`` is for
    a layout whose recordings are there without its questions: their paths, and what is missing.
    """

    name: str
    title: str
    tree: str
    contents: Callable[[Path], Iterable[Any]]
    inspect: Callable[[Path], Report]
    questions: Callable[[Path, Path | None, str | None], QuestionSet] | None = None
    recordings: Callable[[Path, Path | None], tuple[list[Path], list[str]]] | None = None

    def matches(self, path: Path) -> bool:
        return next(iter(self.contents(path)), None) is not None


def merged(reports: Iterable[Report], *nothing: str) -> Report:
    """The reports on every recording, file or split as one; `nothing` is missing where there are none."""
    found = list(reports)
    return Report(
        tuple(part for report in found for part in report.parts),
        tuple(line for report in found for line in report.missing) if found else nothing,
        tuple(line for report in found for line in report.wrong),
    )


def opened(
    paths: Iterable[Path],
    root: Path,
    read: Callable[[Path], Contents | Recording],
    lacks: Callable[[Path], list[str]],
    nothing: str,
) -> Report:
    """The report on recordings below a root: each is opened; long files are not read to the end.

    ``lacks(path)`` names what a recording should have beside what it has; `nothing` is said when there are no recordings.
    """

    def inspect(path: Path) -> Report:
        name = root.resolve().name if path == root else path.relative_to(root).as_posix()
        missing: list[str] = []
        try:
            missing += [f"{name}/{absent}" for absent in lacks(path)]
            found = read(path)
            events, video = found.events, found.video
        except BadInput as error:
            return Report((Part(name, {}),), tuple(missing), (str(error),))
        span = events.span if events is not None else None
        facts = {
            "events": len(events) if events is not None else None,
            "frames": len(video) if video is not None else None,
            "first_us": span.start_us if span is not None else None,
            "last_us": span.end_us - 1 if span is not None else None,
        }
        return Report((Part(name, facts),), tuple(missing))

    return merged(map(inspect, paths), nothing)


def folders(path: Path, depth: int) -> Iterator[Path]:
    """The folder itself and those below it, `depth` levels down, in order of name; hidden ones and links are left out."""
    yield path
    if depth:
        for child in listed(path):
            if child.is_dir() and not child.is_symlink():
                yield from folders(child, depth - 1)


def listed(folder: Path) -> list[Path]:
    """What is in a folder, by name, without hidden files; BadInput when it cannot be listed."""
    try:
        return sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise BadInput(f"{folder}: cannot be listed ({error.strerror}): check the path and its permissions") from None


def content_of(path: Path) -> Any:
    """What a JSON file holds; BadInput for one that is damaged."""
    try:
        return parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        raise BadInput(f"{path}: is not readable JSON ({reason}): download or write it again") from None


def records(path: Path) -> list[dict[str, Any]]:
    """A JSON file that is a list of objects; BadInput, with the first bad record, for anything else."""
    content = content_of(path)
    if not isinstance(content, list) or not content:
        raise BadInput(f"{path}: is not a JSON list of records, or an empty one: give the data set's own file")
    for index, record in enumerate(content):
        if not isinstance(record, dict):
            raise BadInput(f"{path}: record {index} is {shown(record)}, not an object: download or write the file again")
    return content


def text_of(record: dict[str, Any], field: str, place: str) -> str:
    """A field that must be text and not empty; BadInput names the place, the field and what is there."""
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{place}: {field} is {shown(value)}: it must be text")
    return value


def shown(value: object) -> str:
    """A value as messages show it, on one short line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
