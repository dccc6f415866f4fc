"""Event files: each family is one module with a `FORMAT`; `sniff.FORMATS` lists them."""

from eventspec.events.formats.family import EventFile, Format, SensorSize, SizeUnknown
from eventspec.events.formats.sensors import SENSORS, parse_sensor_size
from eventspec.events.formats.sniff import FORMATS, open_events, read_events, recognised

__all__ = [
    "FORMATS",
    "SENSORS",
    "EventFile",
    "Format",
    "SensorSize",
    "SizeUnknown",
    "open_events",
    "parse_sensor_size",
    "read_events",
    "recognised",
]
