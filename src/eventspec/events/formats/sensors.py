"""Sensor sizes by name, for files that do not say how large their sensor is."""

from __future__ import annotations

import re

from eventspec.core import BadInput
from eventspec.events.formats.family import SensorSize
from eventspec.events.stream import LARGEST_SIDE

_NAMES: dict[SensorSize, str] = {
    (34, 34): "nmnist",
    (128, 128): "dvs128",
    (240, 180): "davis240 ncaltech101",
    (304, 240): "atis gen1",
    (320, 240): "dvxplorerlite",
    (320, 320): "genx320",
    (346, 260): "davis346 mvsec",
    (640, 480): "dsec dvxplorer dvxplorermini gen3 gen31",
    (1280, 720): "gen4 gen41 imx636 imx646 evk3 evk4",
    (1280, 800): "celex5",
}
SENSORS: dict[str, SensorSize] = {name: size for size, names in _NAMES.items() for name in names.split()}


def parse_sensor_size(text: str) -> SensorSize:
    """``640x480`` or a name of `SENSORS`, as (width, height). Names as makers write them: in either case, with spaces, dots and
    dashes, and a DAVIS with its variant's letter. BadInput for anything else, and for a side of 0."""
    name = re.sub(r"[ ._-]", "", text.lower())
    name = re.sub(r"^(davis\d{3})(?:[a-d]|color|red|blue|mono)$", r"\1", name)
    if name in SENSORS:
        return SENSORS[name]
    match = re.fullmatch(r"(\d+)x(\d+)", text.strip().lower())
    if match is None:
        raise BadInput(f"sensor {text!r} is unknown: write WIDTHxHEIGHT or one of {', '.join(sorted(SENSORS))}")
    # Not more than eight digits: int() refuses thousands of them.
    if not all(len(side) < 9 and 1 <= int(side) <= LARGEST_SIDE for side in match.groups()):
        raise BadInput(f"sensor {text!r} is no size: give both sides in pixels, 1 to {LARGEST_SIDE}")
    return int(match[1]), int(match[2])
