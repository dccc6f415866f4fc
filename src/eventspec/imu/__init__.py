"""The inertial measurement unit of a camera: its samples with their times. It knows no file format."""

from eventspec.imu.stream import ImuStream

__all__ = ["ImuStream"]
