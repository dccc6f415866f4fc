"""Dense labels of 14 x 14 pixel patches and visible pixel counts, from object ids on the sample grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from eventspec.scenes.facts import KINDS
from eventspec.scenes.shapes import OWNER_BUILDING, OWNER_GREEN, OWNER_RED, OWNER_TREE, OWNER_USER, OWNER_ZEBRA

PATCHES = 8
KIND_BUILDING, KIND_TREE, KIND_RED, KIND_GREEN, KIND_ZEBRA = (len(KINDS) + 1 + i for i in range(5))
"""Values of the kind plane after 0 (background) and 1.. (KINDS)."""
PIXELS_USER, PIXELS_LAMP, PIXELS_ZEBRA = 14, 4, 40
"""Smallest visible size at mid-clip that the facts mention, in 112 x 112 pixels (samples / S^2, rounded)."""
OWNERS = 16

_TAKES = 0.25


def pixel_counts(ids: np.ndarray[Any, np.dtype[np.uint8]], samples: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [OWNERS]: visible pixels by object id of one id map uint8 [S*H, S*W]."""
    counts = np.bincount(ids.ravel(), minlength=OWNERS)
    return np.asarray((counts + samples * samples // 2) // (samples * samples), np.int64)


def label_planes(
    ids: np.ndarray[Any, np.dtype[np.uint8]], looks: np.ndarray[Any, np.dtype[np.int8]], samples: int
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """int8 [M, 4, 8, 8] (kind, action, colour, distance) from ids uint8 [M, S*H, S*W] and road users' codes int8 [U, 4].

    A road user or a shining lamp that is large enough for the facts also takes the patch that shows most of it: small things
    would otherwise never be a label.
    """
    out = np.zeros((len(ids), 4, PATCHES, PATCHES), np.int8)
    rows, columns = (np.arange(size) * PATCHES // size for size in ids.shape[1:])
    first = (rows[:, None] * PATCHES + columns) * OWNERS  # where the counts of a sample's patch begin
    for picture, planes in zip(ids, out, strict=True):
        counts = np.bincount((first + picture).ravel(), minlength=PATCHES * PATCHES * OWNERS)
        _label(counts.reshape(PATCHES, PATCHES, OWNERS), looks, samples * samples, planes)
    return out


def _label(
    counts: np.ndarray[Any, np.dtype[np.int64]],
    looks: np.ndarray[Any, np.dtype[np.int8]],
    per_pixel: int,
    planes: np.ndarray[Any, np.dtype[np.int8]],
) -> None:
    """Fill planes int8 [4, 8, 8] of one picture."""
    names = np.zeros(OWNERS, np.int8)
    names[[OWNER_BUILDING, OWNER_TREE, OWNER_ZEBRA]] = KIND_BUILDING, KIND_TREE, KIND_ZEBRA
    planes[0] = names[np.argmax(counts[:, :, :OWNER_USER], axis=2)]
    owner = np.full(counts.shape[:2], -1)  # index of the road user that takes the patch
    if len(looks):
        users = counts[:, :, OWNER_USER : OWNER_USER + len(looks)]
        owner = np.where(np.max(users, axis=2) >= _TAKES * counts.sum(2), np.argmax(users, axis=2), -1)
        seen = users.sum((0, 1))
        for user in np.argsort(-seen, kind="stable"):  # the smallest last: it has but one patch to show itself
            best = np.unravel_index(np.argmax(users[:, :, user]), owner.shape)
            small = seen[user] < 2 * PIXELS_USER * per_pixel
            if seen[user] >= PIXELS_USER * per_pixel and (owner[best] < 0 or small):
                owner[best] = user
        for plane in range(4):
            planes[plane][owner >= 0] = looks[owner[owner >= 0], plane]
    for lamp, kind in ((OWNER_RED, KIND_RED), (OWNER_GREEN, KIND_GREEN)):
        shows = counts[:, :, lamp]
        best = np.unravel_index(np.argmax(shows), shows.shape)
        spare = owner[best] < 0 or (owner == owner[best]).sum() > 1
        if shows.sum() >= PIXELS_LAMP * per_pixel and spare:
            planes[:, best[0], best[1]] = kind, 0, 0, 0
