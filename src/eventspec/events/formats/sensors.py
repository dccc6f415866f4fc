"""Sensor sizes by name, for files that do not say how large their sensor is."""

from __future__ import annotations

import re

from eventspec.core import BadInput
from eventspec.events.formats.family import SensorSize

SENSORS: dict[str, SensorSize] = {
    "nmnist": (34, 34),
    "ncaltech101": (240, 180),
    "dvs128": (128, 128),
    "davis240": (240, 180),
    "davis346": (346, 260),
    "dvxplorer": (640, 480),
    "dsec": (640, 480),
    "atis": (304, 240),
    "gen3": (640, 480),
    "gen4": (1280, 720),
    "imx636": (1280, 720),
    "genx320": (320, 320),
    "evk3": (1280, 720),
    "evk4": (1280, 720),
}


def parse_sensor_size(text: str) -> SensorSize:
    """``640x480`` or a name of `SENSORS` as (width, height); BadInput for anything else."""
    if text.lower() in SENSORS:
        return SENSORS[text.lower()]
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.strip().lower())
    if match is None:
        raise BadInput(f"sensor {text!r} is unknown: write WIDTHxHEIGHT or one of {', '.join(sorted(SENSORS))}")
    return int(match[1]), int(match[2])
