"""Event streams: the record, its file formats and its pictures. It knows nothing about video."""

from eventspec.events.representations import count_image, histogram, red_blue, time_surface, voxel_grid
from eventspec.events.stream import EventStream, Monotonic

__all__ = ["EventStream", "Monotonic", "count_image", "histogram", "red_blue", "time_surface", "voxel_grid"]
