"""Visual rows of frames, kept by the frames' content: a frame that was encoded before is not encoded again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from eventspec.engine.process_lock import ProcessLock


def content_key(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """Equal for frames uint8 [H, W, 3] with equal pixels, and only for those (SHA-256 of size and bytes)."""
    digest = hashlib.sha256(repr(frame.shape).encode())
    digest.update(np.ascontiguousarray(frame).data)
    return digest.hexdigest()


class FeatureCache:
    """The latest rows of one model's tower and projector, at most `limit` bytes of them. Several lanes may use it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used, self.hits = limit, 0, 0
        self._kept: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = ProcessLock()

    def rows(self, frame: np.ndarray[Any, np.dtype[np.uint8]], encode: Callable[[], Tensor]) -> Tensor:
        """The rows [tokens, D] of a frame, from the cache or from `encode`."""
        key = content_key(frame)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                self.hits += 1
                return found
        rows = encode()  # outside the lock: it is long, and two lanes may well encode the same frame twice
        with self._lock:
            if key not in self._kept:
                self._kept[key] = rows
                self.used += rows.nbytes
            while self.used > self.limit:
                _, oldest = self._kept.popitem(last=False)
                self.used -= oldest.nbytes
        return rows
