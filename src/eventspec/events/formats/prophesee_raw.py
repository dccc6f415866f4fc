"""Prophesee RAW files: an ASCII header, then words of EVT 2.0, EVT 2.1 or EVT 3.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventspec.core import BadInput
from eventspec.events.formats import evt2, evt3
from eventspec.events.formats.family import EventFile, Format, SensorSize
from eventspec.events.formats.prophesee import Header, header, read_header
from eventspec.events.formats.sequential import Decode, Sequential, event_file, whole_words
from eventspec.events.stream import Monotonic

ENCODINGS = {"2.0": "evt2", "2.1": "evt21", "3.0": "evt3", "EVT2": "evt2", "EVT21": "evt21", "EVT3": "evt3"}
WORD_BYTES = {"evt2": 4, "evt21": 8, "evt3": 2}


def matches(path: Path, head: bytes) -> bool:
    """A header that names an encoding, or the camera plugin that wrote it."""
    fields = header(head).fields
    return bool({"evt", "format", "plugin_name", "integrator_name"} & fields.keys()) and "contains" not in fields


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    """The file; a last word that is cut is left out with a note."""
    found = read_header(path)
    notes: list[str] = []
    encoding = _encoding(path, found, notes)
    size = found.size(path, sensor_size, notes)
    end = whole_words(path, found.end, WORD_BYTES[encoding], notes)
    decoders: dict[str, tuple[Decode[Any], Any]] = {
        "evt2": (evt2.decode, evt2.State()),
        "evt21": (evt2.decoder21(_legacy(found)), evt2.State()),
        "evt3": (evt3.decode, evt3.State()),
    }
    decode, state = decoders[encoding]
    return event_file(encoding, Sequential(path, size, monotonic, decode, found.end, end, state), notes, evt2.notes_of)


def _encoding(path: Path, found: Header, notes: list[str]) -> str:
    stated = found.options[""] or found.fields.get("evt", "")
    if not stated and found.sensor == "gen3":
        notes.append("encoding EVT 2.0 is assumed: the header does not say, and its sensor is of the third generation")
        return "evt2"
    if stated not in ENCODINGS:
        said = f"the encoding {stated!r}" if stated else "no encoding"
        raise BadInput(f"{path}: the header names {said}, readable are evt 2.0, 2.1 and 3.0: export it again as one of them")
    return ENCODINGS[stated]


def _legacy(found: Header) -> bool:
    """Whether the EVT 2.1 word comes before its mask: as stated, else as the sensor is known to do."""
    stated = found.options.get("endianness")
    return stated == "legacy" if stated else found.sensor in ("gen4", "imx636")


FORMAT = Format("prophesee-raw", "Prophesee RAW (EVT2, EVT2.1, EVT3)", matches, read)
