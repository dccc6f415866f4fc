"""Read-only views of arrays."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Array = TypeVar("Array", bound=np.ndarray[Any, Any])


def read_only(array: Array) -> Array:
    """A view of the same memory that cannot be written through; numpy will not make it writable again."""
    return np.asarray(memoryview(array).toreadonly())  # type: ignore[arg-type, return-value]
