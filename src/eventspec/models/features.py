"""Visual rows of frames, kept by the frames' content: a frame that was encoded before is not encoded again. In memory, and
where a folder is named on disk, with checksums."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eventspec.core import BadInput
from eventspec.process_lock import ProcessLock


def content_key(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """Equal for frames uint8 [H, W, 3] with equal pixels, and only for those (SHA-256 of size and bytes)."""
    digest = hashlib.sha256(repr(frame.shape).encode())
    digest.update(np.ascontiguousarray(frame).data)
    return digest.hexdigest()


class FeatureFolder:
    """Rows of frames on disk, a safetensors file a frame with the SHA-256 of its rows. A damaged file is found and
    computed again; on a full disk no more is kept. `notes` say so, one sentence each. `encode` makes rows of frames uint8
    [1, H, W, 3]. A model is identified by what it makes of a test picture, to the bit: other weights, pixels or kernels that
    show there have a folder of their own."""

    def __init__(self, folder: Path, encode: Callable[[np.ndarray[Any, np.dtype[np.uint8]]], Tensor]) -> None:
        picture = np.random.default_rng(0).integers(0, 256, (1, 240, 346, 3), np.uint8)
        probe = encode(picture)
        self.device, self.shape, self.dtype = probe.device, probe.shape, probe.dtype
        self.folder, self.notes = folder / _digest("", probe)[:16], list[str]()
        self._full = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{folder} cannot hold features ({error.strerror}): name another folder") from None

    def load(self, key: str) -> Tensor | None:
        """The rows of a frame; None where there are none that can be relied on."""
        path = self.folder / f"{key}.safetensors"
        if not path.is_file():
            return None
        try:
            with safe_open(path, "pt") as file:
                wanted = (file.metadata() or {}).get("sha256")
                rows: Tensor = file.get_tensor("rows")
        except (OSError, SafetensorError, ValueError, KeyError):
            rows, wanted = torch.empty(0), None
        if wanted is None or rows.shape != self.shape or rows.dtype != self.dtype or self._sum(key, rows) != wanted:
            self.notes.append(f"{path.name} is damaged: the frame was encoded again")
            return None
        return rows.to(self.device)

    def _sum(self, key: str, rows: Tensor) -> str:
        """The checksum of a frame's rows: neither another frame's file nor another model's has it."""
        return _digest(f"{self.folder.name} {key}", rows)

    def save(self, key: str, rows: Tensor) -> None:
        """Keep the rows of a frame: the whole file or none."""
        if self._full:
            return
        path = self.folder / f"{key}.safetensors"
        part = path.with_name(f".{key}.{os.getpid()}.{threading.get_ident()}.part")  # others may keep the same frame
        kept = rows.cpu().contiguous()
        try:
            save_file({"rows": kept}, part, {"sha256": self._sum(key, kept)})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            self._full = True
            self.notes.append(f"{self.folder} takes no more ({getattr(error, 'strerror', None) or error}): kept in memory only")
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _digest(name: str, rows: Tensor) -> str:
    raw = rows.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(f"{name} {tuple(rows.shape)} {rows.dtype}".encode() + raw.numpy().tobytes()).hexdigest()


class FeatureCache:
    """The latest rows of one model's tower and projector, at most `limit` bytes of them, and those of a `folder`. Several lanes
    may use it."""

    def __init__(self, limit: int, folder: FeatureFolder | None = None) -> None:
        self.limit, self.used, self.hits, self.folder = limit, 0, 0, folder
        self._kept: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = ProcessLock()

    @property
    def notes(self) -> list[str]:
        """What went wrong on disk."""
        return [] if self.folder is None else self.folder.notes

    def rows(self, frame: np.ndarray[Any, np.dtype[np.uint8]], encode: Callable[[], Tensor]) -> Tensor:
        """The rows [tokens, D] of a frame, from the cache or from `encode`."""
        key = content_key(frame)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                self.hits += 1
                return found
        # Outside the lock: it is long, and two lanes may well encode the same frame twice.
        stored = None if self.folder is None else self.folder.load(key)
        rows = encode() if stored is None else stored
        if self.folder is not None and stored is None:
            self.folder.save(key, rows)
        with self._lock:
            self._keep(key, rows)
        return rows

    def share(self, frame: np.ndarray[Any, np.dtype[np.uint8]], like: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
        """Take the rows of the frame `like` for those of `frame` too, in memory; False where they are kept no more, and where
        there are some of `frame` already."""
        key, other = content_key(frame), content_key(like)
        with self._lock:
            rows = self._kept.get(other)
            if rows is None or key in self._kept:
                return False
            self._kept.move_to_end(other)
            self._keep(key, rows)
            return True

    def _keep(self, key: str, rows: Tensor) -> None:
        """Under the lock. Rows of two frames count twice."""
        if key not in self._kept:
            self._kept[key] = rows
            self.used += rows.nbytes
        while self.used > self.limit and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self.used -= oldest.nbytes
