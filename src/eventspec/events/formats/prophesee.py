"""Prophesee RAW files: an ASCII header of lines ``% keyword value``, as DAT has it too, then words of EVT 2.0, 2.1 or 3.0.

The header ends at ``% end``, or at the first line that does not begin with "% " or is not printable: the first bytes of
the events may be anything, a per cent sign included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventspec.core import BadInput
from eventspec.events.formats import evt2, evt3
from eventspec.events.formats.family import EventFile, Format, SensorSize, settled_size, size_in
from eventspec.events.formats.sensors import SENSORS
from eventspec.events.formats.sequential import Decode, Sequential, event_file, whole_words
from eventspec.events.stream import Policy

LARGEST_HEADER = 1 << 16  # bytes
LINE = re.compile(rb"% ?([\x20-\x7e\t]*)\r?\n")

# What a header's plugin or sensor name says about the sensor when it states no geometry.
GENERATIONS: tuple[tuple[str, str], ...] = (
    ("genx320", "genx320"),
    ("imx636", "imx636"),
    ("imx646", "imx636"),
    ("gen4", "gen4"),
    ("gen3", "gen3"),
)
SENSOR_GENERATIONS = {"3.0": "gen3", "3.1": "gen3", "4.0": "gen4", "4.1": "gen4", "4.2": "imx636", "320.0": "genx320"}
ENCODINGS = {"2.0": "evt2", "2.1": "evt21", "3.0": "evt3", "EVT2": "evt2", "EVT21": "evt21", "EVT3": "evt3"}


@dataclass(frozen=True)
class Header:
    """The fields of the header, keywords in lower case, and the byte where it ends."""

    fields: dict[str, str]
    end: int

    @property
    def sensor(self) -> str | None:
        """The name of the sensor (a key of `SENSORS`), where the header says which one it is."""
        for key in ("sensor_name", "plugin_name"):
            found = next((name for part, name in GENERATIONS if part in self.fields.get(key, "").lower()), None)
            if found is not None:
                return found
        if "Chronocam" in self.fields.get("contains", ""):
            return "atis"
        generation = self.fields.get("sensor_generation", self.fields.get("generation", ""))
        return SENSOR_GENERATIONS.get(generation)

    @property
    def options(self) -> dict[str, str]:
        """``% format EVT3;height=720;width=1280`` as {"": "EVT3", "height": "720", "width": "1280"}."""
        name, *options = self.fields.get("format", "").split(";")
        pairs = (option.partition("=") for option in options)
        return {"": name.strip(), **{key.strip().lower(): value.strip() for key, _, value in pairs}}

    def size(self, path: Path, asked: SensorSize | None, notes: list[str]) -> SensorSize:
        """The sensor size: stated, else the caller's, else the one of the sensor that the header names (with a note)."""
        stated = size_in({**self.fields, **self.options}, str(path), notes)
        if stated is not None or asked is not None or self.sensor is None:
            return settled_size(stated, asked, str(path))
        width, height = SENSORS[self.sensor]
        notes.append(f"sensor size {width}x{height} is taken from the header's sensor, {self.sensor}: it states no geometry")
        return width, height


def header(data: bytes) -> Header:
    """The header at the start of `data`; without one, no fields and end 0."""
    fields: dict[str, str] = {}
    end = 0
    while match := LINE.match(data, end):
        end = match.end()
        words = match[1].decode("ascii").strip()
        key, _, value = words.partition(" ")
        if key.lower() == "end":
            break
        if words.startswith("Data file containing"):
            key, value = "contains", words.removeprefix("Data file containing")
        fields.setdefault(key.lower(), value.strip())
    return Header(fields, end)


def read_header(path: Path) -> Header:
    """The header of a file; BadInput when it does not end within `LARGEST_HEADER` bytes."""
    with path.open("rb") as file:
        found = header(file.read(LARGEST_HEADER))
    if found.end > LARGEST_HEADER - 256:
        raise BadInput(f"{path}: the header is longer than {LARGEST_HEADER} bytes: get the original file")
    return found


# --------------------------------------------------------------------------------------------------------------------- RAW
def matches(path: Path, head: bytes) -> bool:
    """A header that names an encoding, or the camera plugin that wrote it."""
    fields = header(head).fields
    return bool({"evt", "format", "plugin_name", "integrator_name"} & fields.keys()) and "contains" not in fields


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """The file; a last word that is cut is left out with a note."""
    found = read_header(path)
    notes: list[str] = []
    encoding = _encoding(path, found, notes)
    size = found.size(path, sensor_size, notes)
    decoders: dict[str, tuple[int, Decode[Any], Any]] = {
        "evt2": (4, evt2.decode, evt2.State()),
        "evt21": (8, evt2.decoder21(_legacy(found)), evt2.State()),
        "evt3": (2, evt3.decode, evt3.State()),
    }
    word_bytes, decode, state = decoders[encoding]
    end = whole_words(path, found.end, word_bytes, notes)
    return event_file(encoding, Sequential(path, size, policy, decode, found.end, end, state), notes, evt2.notes_of)


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
