"""What an inertial measurement unit recorded: acceleration and rotation, a sample each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from eventspec.core import BadInput, Window
from eventspec.errors import several
from eventspec.media import read_only

Times = np.ndarray[Any, np.dtype[np.int64]]
Axes = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, eq=False)
class ImuStream:
    """t int64 [N], non-decreasing microseconds on the recording's clock; accelerometer float32 [N, 3] in m/s^2 (at rest: g),
    gyroscope float32 [N, 3] in rad/s, both in the sensor's own axes x, y, z.

    The plain constructor trusts its arguments; use `ImuStream.checked` for anything that comes from outside.
    """

    t: Times
    accelerometer: Axes
    gyroscope: Axes

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        return f"ImuStream({len(self)} samples, span={self.span})"

    @classmethod
    def checked(
        cls, t: ArrayLike, accelerometer: ArrayLike, gyroscope: ArrayLike, *, source: str = "imu"
    ) -> tuple[ImuStream, tuple[str, ...]]:
        """Samples from outside (times in whole microseconds [N], axes [N, 3] in the units of the class) as a stream, and notes:
        it is put in order of time, and samples that are no finite numbers are left out. BadInput for another shape or dtype."""
        times, first, second = np.asarray(t), np.asarray(accelerometer), np.asarray(gyroscope)
        if times.ndim != 1 or any(axes.shape != (len(times), 3) for axes in (first, second)):
            shapes = f"t {times.shape}, accelerometer {first.shape}, gyroscope {second.shape}"
            raise BadInput(f"{source}: the IMU's samples are {shapes}: they must be [N], [N, 3] and [N, 3]")
        if len(times) and (times.dtype.kind not in "iu" or any(axes.dtype.kind not in "iuf" for axes in (first, second))):
            kinds = f"t {times.dtype}, accelerometer {first.dtype}, gyroscope {second.dtype}"
            raise BadInput(f"{source}: the IMU's samples are {kinds}: give whole microseconds and numbers")
        times = times.astype(np.int64, copy=False)
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and left out
            first, second = first.astype(np.float32, copy=False), second.astype(np.float32, copy=False)
        notes = list[str]()
        usable = np.isfinite(first).all(1) & np.isfinite(second).all(1)
        if not usable.all():
            lost = several(len(usable) - int(usable.sum()), "IMU sample is no number and", "IMU samples are no numbers and")
            notes.append(f"{lost} left out")
            times, first, second = times[usable], first[usable], second[usable]
        back = int(np.count_nonzero(times[1:] < times[:-1]))
        if back:
            order = np.argsort(times, kind="stable")
            times, first, second = times[order], first[order], second[order]
            notes.append(f"{several(back, 'IMU time goes', 'IMU times go')} back: its samples are put in order of time")
        return cls(times, first, second), tuple(notes)

    @property
    def span(self) -> Window | None:
        """The smallest window that holds every sample, None without one."""
        return Window(int(self.t[0]), int(self.t[-1]) + 1) if len(self) else None

    def slice(self, window: Window) -> ImuStream:
        """Samples with ``start_us <= t < end_us``: views of the same memory."""
        first, last = np.searchsorted(self.t, [window.start_us, window.end_us], side="left")
        return ImuStream(self.t[first:last], self.accelerometer[first:last], self.gyroscope[first:last])

    def empty_copy(self) -> ImuStream:
        return ImuStream(self.t[:0], self.accelerometer[:0], self.gyroscope[:0])

    def read_only(self) -> ImuStream:
        return ImuStream(read_only(self.t), read_only(self.accelerometer), read_only(self.gyroscope))

    def shifted(self, delta_us: int) -> ImuStream:
        return ImuStream(self.t + np.int64(delta_us), self.accelerometer, self.gyroscope)
