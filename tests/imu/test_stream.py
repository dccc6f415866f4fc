"""Inertial samples: what comes from outside is put in order, cut by windows, and never changed."""

from __future__ import annotations

import numpy as np
import pytest

from eventspec.core import BadInput, Window
from eventspec.imu import ImuStream

T = np.array([0, 10, 20, 30])
A = np.arange(12, dtype=np.float64).reshape(4, 3)


def test_samples_of_a_window_are_views() -> None:
    imu, notes = ImuStream.checked(T, A, A + 1)
    part = imu.slice(Window(10, 30))
    assert notes == () and part.t.tolist() == [10, 20] and np.shares_memory(part.gyroscope, imu.gyroscope)
    assert imu.span == Window(0, 31) and imu.empty_copy().span is None and len(imu.empty_copy()) == 0
    assert imu.shifted(-5).t.tolist() == [-5, 5, 15, 25] and imu.t.tolist() == T.tolist()
    assert (imu.t.dtype, imu.accelerometer.dtype) == (np.int64, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        imu.read_only().accelerometer[0] = 0


def test_what_is_out_of_order_or_no_number_is_put_right_and_noted() -> None:
    broken = A.copy()
    broken[1, 2], broken[3, 0] = np.nan, 1e300
    imu, notes = ImuStream.checked(T[::-1], broken, A)
    assert imu.t.tolist() == [10, 30] and imu.accelerometer.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert notes == ("2 IMU samples are no numbers and left out", "1 IMU time goes back: its samples are put in order of time")


@pytest.mark.parametrize(
    ("t", "a", "told"),
    [
        (T[:3], A, "must be"),
        (T, A[:, :2], "must be"),
        (T[None], A, "must be"),
        (T / 10, A, "whole"),
        (T, A.astype(str), "numbers"),
    ],
)
def test_what_does_not_fit_is_refused(t: object, a: object, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        ImuStream.checked(t, a, A)  # type: ignore[arg-type]
