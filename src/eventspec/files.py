"""Files that are written whole or not at all; what JSON and TOML say."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import tempfile
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eventspec.errors import BadCheckpoint, BadInput

NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
"""What a system says when a file cannot grow."""


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: beside it first, then renamed. BadInput when the place cannot be written."""
    write_whole(path, lambda part: part.write_text(text, "utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """The same for a file that `write` writes; it is handed the name beside it, which has another suffix."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")  # others may write the same file at the same time
    try:
        write(part)
        part.rename(path)
    except BadInput as error:
        if str(part) not in str(error):
            raise
        raise BadInput(str(error).replace(str(part), str(path))) from None
    except (OSError, RuntimeError) as error:  # torch's writer raises the second
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).replace(str(part), str(path))
        if "inline_container" in reason:  # so torch says that it could not write on
            reason = os.strerror(errno.ENOSPC)
        raise BadInput(f"{path} cannot be written ({reason}): choose another place") from None
    finally:
        with suppress(OSError):  # it was renamed, or could not be made
            part.unlink()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """BadInput, which names the place, for a write in it that fails: what numpy and shutil raise names no file, or hundreds."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and error.errno not in NO_ROOM:
            raise
        several = isinstance(error, shutil.Error) and isinstance(error.args[0], list)
        reason = str(error.args[0][0][-1] if several else error.strerror or error)
        raise BadInput(f"{place} cannot be written ({reason}): make room, or choose another place") from None


def check_name(path: Path | str) -> Path:
    """The path; BadInput for a name that is longer than any file's: what `Path` says of it is an OSError."""
    with suppress(ValueError):  # of a name with a zero byte
        try:
            Path(path).lstat()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise BadInput(f"{path}: no such file, the name is too long: check the path") from None
    return Path(path)


def check_file(path: Path) -> None:
    """BadInput for what is no ordinary file with something in it: a pipe or a device may be read for ever."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a name with a zero byte
        raise BadInput(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    if stat.S_ISDIR(found.st_mode):
        raise BadInput(f"{path}: is a folder: give a file")
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path}: is a pipe, a device or a socket: give an ordinary file")
    if not found.st_size:
        raise BadInput(f"{path}: the file is empty (0 bytes): copy or record it again")


def check_folder(folder: Path) -> None:
    """BadInput where no file could be put in a folder of this name, which is there or can be made."""
    if os.path.lexists(check_name(folder)) and not folder.is_dir():
        what = "a link that leads nowhere" if folder.is_symlink() and not folder.exists() else "no folder"
        raise BadInput(f"{folder} is {what}: choose another place")
    _check_room(folder, (folder.absolute(), *folder.absolute().parents))


def check_empty(folder: Path, otherwise: str = "or remove it first") -> None:
    """BadInput unless a folder is new or empty, no link, and can be written; `otherwise`: what else can be done."""
    if check_name(folder).is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise BadInput(f"{folder}: exists and is not an empty folder: choose another folder, {otherwise}")
    check_folder(folder)


def append_line(file: io.FileIO, line: str) -> None:
    """One more line, or nothing, in a file that is open for appending; BadInput, with its name, where there is no room."""
    data, size = f"{line}\n".encode(), os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        with suppress(OSError):
            file.truncate(size)
            if not size:
                Path(file.name).unlink()
        raise BadInput(f"{file.name} cannot be written ({error.strerror}): make room, or choose another place") from None


def check_writable(path: Path) -> None:
    """BadInput where a file of this name cannot be written, in a folder that is there or can be made. Nothing is left behind:
    this is for before long work begins."""
    if check_name(path).is_dir():
        raise BadInput(f"{path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is no ordinary file, and would be replaced by one: choose another place")
    _check_room(path, path.absolute().parents)
    if path.exists() and not os.access(path, os.W_OK):
        raise BadInput(f"{path} cannot be written: choose another place, or check its rights")


def _check_room(path: Path, folders: Iterable[Path]) -> None:
    folder = next(parent for parent in folders if os.path.lexists(parent))  # a link that leads nowhere too
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({folder}: {error.strerror}): choose another place") from None


def check_files(outputs: Mapping[str, Path | None], inputs: Iterable[Path | str | None] = ()) -> None:
    """`check_writable` for every output that is a file, and `check_outputs`."""
    for path in outputs.values():
        if path is not None:
            check_writable(path)
    check_outputs(outputs, inputs)


def parsed(text: str | bytes) -> Any:
    """What a JSON text says. ValueError for one that is none, is no UTF-8, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed_toml(data: bytes) -> dict[str, Any]:
    """The same of TOML."""
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def toml_string(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's, but for DEL; lone surrogates (odd file names) have no UTF-8."""
    sound = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(sound, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | str | None] = ()) -> None:
    """BadInput where an output, by the option that names it, would replace an input, lie in the folder of one, or be another
    output too; links of either kind are followed."""
    written = [(option, path) for option, path in outputs.items() if path is not None]
    read = [Path(given) for given in inputs if given is not None and Path(given).exists()]
    for number, (option, path) in enumerate(written):
        for source in read:
            if _is_part(path, source):
                raise BadInput(f"{option} {path} would change {source}, which is read: choose another place".strip())
        for other, earlier in written[:number]:
            if path.resolve() == earlier.resolve() or (path.exists() and earlier.exists() and path.samefile(earlier)):
                raise BadInput(f"{other} {earlier} and {option} {path} are one file: choose another place for one of them")


def _is_part(path: Path, source: Path) -> bool:
    """Whether a path leads to a file, or into a folder or to a file of it, by whatever name."""
    named, meant = path.parent.resolve() / path.name, path.resolve()  # of a link, and of what it leads to
    if any(way.exists() and way.samefile(source) for way in (named, meant, *named.parents, *meant.parents)):
        return True
    return path.is_file() and source.is_dir() and any(file.exists() and file.samefile(path) for file in source.rglob("*"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint folder; BadCheckpoint names the file when it is missing or broken."""
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing: the folder is not a complete checkpoint")
    try:
        data = parsed(path.read_bytes())
    except ValueError as error:  # neither JSON, nor UTF-8, nor a number that can be
        raise BadCheckpoint(f"{path} is not valid JSON ({error}): fetch it again") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} must hold one JSON object: fetch it again")
    return data
