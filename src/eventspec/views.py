"""Arrays that others may read and nobody may change."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Array = TypeVar("Array", bound=np.ndarray[Any, Any])


def read_only(array: Array) -> Array:
    """A view of the same memory through which nobody can write; numpy will not make it writable again."""
    return np.asarray(memoryview(array).toreadonly())  # type: ignore[arg-type, return-value]
