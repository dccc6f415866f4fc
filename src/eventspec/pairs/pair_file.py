"""pair.toml: which folders and files make up a pair. Nothing else reads or writes it.

There are two kinds. A pair of ours has its models, one tokenizer and all else in its folder. A pair of checkpoints has a table
`[load]`: `[files]` names the folders of its models, which lie where they lie, and `[fingerprints]` what they were then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from eventspec.core import BadCheckpoint, BadInput
from eventspec.files import check_name, parsed_toml, toml_string, write_text
from eventspec.models.shards import modality_of

NAME = "pair.toml"
DATA = Path(__file__).parent.parent / "data"
_FILES = {
    "target": "target",
    "drafter": "drafter",
    "tokenizer": "tokenizer.json",
    "prior": "prior.json",
    "mixture": "mixture.json",
}
Table = Literal["drafters", "adapters", "packers", "heads"]
_TABLES: tuple[Table, ...] = get_args(Table)
_MODELS = ("target", "drafter")
_LOAD: dict[str, type] = {
    "vocabulary": str,
    "dtype": str,
    "device": str,
    "drafter_device": str,
    "frames": int,
    "allow_extrapolation": bool,
    "compat": bool,
    "ignore_generation_config": bool,
}
"""What the table [load] may hold: how the checkpoints are opened."""
_SAMPLED = (".json", ".safetensors", ".model", ".jinja", ".txt")
"""Files of a checkpoint's folder that count."""


@dataclass(frozen=True)
class PairFile:
    """A pair's name, its own files, and all tables of names and places; a place is relative to `folder`, or absolute
    where a user's pair names checkpoints that lie elsewhere."""

    folder: Path
    name: str
    files: Mapping[str, str] = field(default_factory=lambda: dict(_FILES))
    tables: Mapping[Table, Mapping[str, str]] = field(default_factory=lambda: {table: {} for table in _TABLES})
    trained_on: str = ""
    """What the source of a recording begins with that is of the one kind the pair was trained on; "" if unknown."""
    load: Mapping[str, Any] | None = None
    """Of a pair of checkpoints: how they are opened, as `_LOAD` has it."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of its checkpoints by role, see `fingerprint_of`."""
    learned: Mapping[str, str] = field(default_factory=dict)
    """Of a pair of checkpoints: which of its parts learned from a recording, by its resolved place."""

    @classmethod
    def read(cls, folder: Path) -> PairFile:
        """The file of a folder; BadCheckpoint for one that is broken."""
        path = folder / NAME
        try:
            data = parsed_toml(path.read_bytes())
        except (OSError, ValueError) as error:
            raise BadCheckpoint(f"{path} is not valid TOML: {error}") from None
        if data.get("format") != "eventspec-pair" or data.get("version") != 1:
            found = f"format is {data.get('format')!r} version {data.get('version')!r}, wanted 'eventspec-pair' version 1"
            raise BadCheckpoint(f"{path}: {found}")
        tables = {table: _places(path, data, table) for table in _TABLES}
        name, trained_on = (str(data.get(key, other)) for key, other in (("name", folder.name), ("trained_on", "")))
        files, load = _places(path, data, "files"), data.get("load")
        if load is None and "fingerprints" in data:
            raise BadCheckpoint(
                f"{path}: [fingerprints] are of checkpoints, which have a table [load], if an empty one: add it"
            )
        if load is None:
            return cls(folder, name, {**_FILES, **files}, tables, trained_on)
        if not isinstance(load, dict) or not all(type(value) is _LOAD.get(key) for key, value in load.items()):
            raise BadCheckpoint(f"{path}: [load] holds {', '.join(f'{key} ({kind.__name__})' for key, kind in _LOAD.items())}")
        if "target" not in files:
            raise BadCheckpoint(f"{path}: [files] names no target: write it with `eventspec models pair`")
        known = _places(path, data, "fingerprints"), _places(path, data, "learned")
        return cls(folder, name, files, tables, trained_on, load, *known)

    @classmethod
    def of_checkpoints(cls, out: Path, target: Path, drafter: Path | None, name: str, load: Mapping[str, Any]) -> PairFile:
        """The file that points from `out` to these folders, as they are now."""
        models = {"target": target, "drafter": drafter}
        files = {role: str(folder.resolve()) for role, folder in models.items() if folder is not None}
        known = {role: fingerprint_of(Path(place)) for role, place in files.items()}
        return cls(out, name, files, load=load, fingerprints=known)

    def pointed_to_from(self, folder: Path) -> PairFile:
        """The same in another folder: all places are absolute."""
        files = {name: str(self.place(name).resolve()) for name in self.files}
        tables = {table: {name: str(place.resolve()) for name, place in self.places(table).items()} for table in _TABLES}
        return replace(self, folder=folder, files=files, tables=tables)

    def check_models(self) -> None:
        """BadCheckpoint for a checkpoint that is no longer where it was, or no longer what it was, and for a part that is no
        longer there; of a pair of checkpoints."""
        if self.load is None:
            return
        for role in (role for role in _MODELS if role in self.files):
            place, again = self.place(role), f"make the pair again with `eventspec models pair`, or put the {role} back"
            if not (place / "config.json").is_file():
                raise BadCheckpoint(f"{self.folder / NAME}: its {role} {place} is no checkpoint's folder (any more): {again}")
            if self.fingerprints.get(role) not in (None, fingerprint_of(place)):
                raise BadCheckpoint(f"{self.folder / NAME}: its {role} {place} is another one than it was: {again}")
            if role == "drafter" and modality_of(place) != "events":
                raise BadCheckpoint(f"{self.folder / NAME}: its drafter {place} is no event model: {again}")
        for what, place in self._parts():
            if not place.exists():
                again = "put it back, or take its line out"
                raise BadCheckpoint(f"{self.folder / NAME}: its {what} {place} is not there (any more): {again}")

    def check_kept(self, other: Path) -> None:
        """BadInput where a pair that is written into the folder `other` would take the place of this one, of checkpoints, or of
        something that it points to. One of ours is copied before."""
        if self.load is None:
            return
        wanted = other.resolve()
        for place in (self.folder, *map(self.place, self.files), *(place for _, place in self._parts())):
            there = place.resolve()
            if wanted == there or wanted in there.parents or there in wanted.parents:
                hurt = f"{other} would replace {place}, or lie in it"
                raise BadInput(f"{hurt}, and pair {self.name} needs that: choose another --out")

    def _parts(self) -> Iterator[tuple[str, Path]]:
        """What it lists beside its models, each with its place."""
        yield from ((name, self.place(name)) for name in self.files if name not in _MODELS)
        for table in _TABLES:
            yield from ((f"{table.removesuffix('s')} {name}", place) for name, place in self.places(table).items())

    def place(self, name: str) -> Path:
        """Where one of the pair's own files lies: target, drafter, tokenizer, prior, or the weights of a mixture."""
        return self.folder / self.files[name]

    def places(self, table: Table) -> dict[str, Path]:
        """A table's entries, as folders."""
        return {name: self.folder / place for name, place in self.tables[table].items()}

    def listing(self, table: Table, name: str, place: str) -> PairFile:
        """The same with one more entry in a table, after the others unless it is there already."""
        return self.with_table(table, {**self.tables[table], name: place})

    def having_learned(self, part: str, recordings: Iterable[Path]) -> PairFile:
        """The same, of which a part learned from these recordings."""
        known = dict(self.learned)
        for place in dict.fromkeys(str(recording.resolve()) for recording in recordings):
            parts = [name for name in known.get(place, "").split(", ") if name not in ("", part)]
            known[place] = ", ".join([*parts, part])
        return replace(self, learned=known)

    def with_table(self, table: Table, entries: Mapping[str, str]) -> PairFile:
        """The same with another table."""
        return replace(self, tables={**self.tables, table: entries})

    @property
    def text(self) -> str:
        """What the file holds."""
        lines = ['format = "eventspec-pair"', "version = 1", f"name = {toml_string(self.name)}"]
        lines += [f"trained_on = {toml_string(self.trained_on)}"] if self.trained_on else []
        ours = {} if self.load is not None else _FILES
        moved = {name: place for name, place in self.files.items() if place != ours.get(name)}
        known: list[tuple[str, Mapping[str, Any] | None]] = [("files", moved), ("load", self.load)]
        for table, entries in (*known, ("fingerprints", self.fingerprints), ("learned", self.learned), *self.tables.items()):
            if entries or (table == "load" and entries is not None):
                lines += ["", f"[{table}]", *(f"{_key(name)} = {_value(value)}" for name, value in entries.items())]
        return "\n".join(lines) + "\n"

    def fingerprint(self, adapters: bool) -> str:
        """As `Pair.fingerprint`."""
        digest, kept = hashlib.sha256(), self if adapters else self.with_table("adapters", {})
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            place = path.relative_to(self.folder)
            if adapters or place.parts[0] != "adapters":
                digest.update(place.as_posix().encode() + b"\0")
                digest.update(kept.text.encode() if place == Path(NAME) else path.read_bytes())
        inside = self.folder.resolve()
        for what, place in kept._parts():
            if inside not in place.resolve().parents and place.exists():  # it lies where another training wrote it
                found = fingerprint_of(place).encode() if place.is_dir() else place.read_bytes()
                digest.update(what.encode() + b"\0" + found)
        return digest.hexdigest()[:16]

    def write(self) -> None:
        """Write it whole or not at all."""
        write_text(self.folder / NAME, self.text)


def fingerprint_of(folder: Path) -> str:
    """Of a checkpoint's folder, 16 hex digits: SHA-256 over its files' names, sizes and bytes, of large ones over 64 pieces all
    over them, so that 14 GB take no longer than a look. BadInput for what cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in _SAMPLED and path.is_file()):
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder).as_posix()} {size}\0".encode(errors="surrogateescape"))
            with path.open("rb") as file:
                for piece in range(64 if size > 1 << 20 else 1):
                    file.seek(piece * (size - 4096) // 63 if size > 1 << 20 else 0)
                    digest.update(file.read(4096 if size > 1 << 20 else -1))
    except OSError as error:
        raise BadInput(f"{folder} cannot be read ({str(error.strerror).lower()}): check its rights") from None
    return digest.hexdigest()[:16]


def _value(value: str | int) -> str:
    """Of the three kinds that the file has, in TOML."""
    return toml_string(value) if isinstance(value, str) else str(value).lower()


def _key(name: str) -> str:
    """A TOML key: quoted unless it is bare."""
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else toml_string(name)


def _places(path: Path, data: dict[str, Any], name: str) -> dict[str, str]:
    """A table of names and places in the folder; BadCheckpoint for what is none."""
    found = data.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(place, str) and "\0" not in place for place in found.values()):
        raise BadCheckpoint(f"{path}: {name} must be a table [{name}] of names and paths")
    for place in found.values():
        check_name(path.parent / place)
    return found


def bundled() -> Mapping[str, Path]:
    """The pairs that ship with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(DATA.glob(f"pairs/*/{NAME}"))}


def bundled_names() -> str:
    """The same for people. One of them has two names."""
    usual = by_name("embedded")
    return ", ".join(f"{name}{' (also called embedded)' * (path == usual)}" for name, path in bundled().items())


def by_name(where: str | Path) -> Path | None:
    """The folder of a bundled pair by its bare name; None for anything else. A path that holds a separator is no name, and
    neither is a `Path` to something that is there."""
    if check_name(where).exists() and isinstance(where, Path):
        return None
    known = bundled()
    if str(where) == "embedded" and known:
        # `embedded` is the best one that is fully trained: base once it is there, nano until then.
        return known.get("base", known.get("nano", next(iter(known.values()))))
    return known.get(str(where))


def folder_of(where: str | Path, or_target: bool = False) -> Path:
    """The folder of a bundled pair by name, or of a pair.toml; BadInput where there is none. `or_target`: who asks takes a
    target's checkpoint too."""
    folder = by_name(where) or Path(where)
    if not (folder / NAME).is_file():
        if (folder / "config.json").is_file():
            mend = f"give it as the target (--target {where})"
            pair = f"make a pair of it (eventspec models pair --target {where} --out FOLDER)"
            raise BadInput(f"{where} is the folder of a checkpoint, and of no pair: {mend if or_target else pair}")
        raise BadInput(f"no pair '{where}': give a folder with a pair.toml, or a bundled one: {bundled_names()}")
    return folder


def two_meanings(where: str | Path) -> tuple[str, ...]:
    """A note when a name is that of a bundled pair, which is taken, and of a folder here."""
    shipped = by_name(where)
    if shipped is None or not Path(where).is_dir() or Path(where).samefile(shipped):
        return ()
    return (f"pair {where} is the bundled one: for the folder of that name here write ./{where}",)
