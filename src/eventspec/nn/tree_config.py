"""How a draft tree grows: by value down to some level, or in a fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TreeConfig:
    """How a tree grows: `width` children of every node are looked at and as many nodes of a level are expanded, down to
    `levels`. `shape` is a fixed tree instead (see `grow`)."""

    width: int = 10
    levels: int = 8
    shape: tuple[Tensor, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of a cache that the tree may need."""
        return sum(map(len, self.shape[1::2])) if self.shape else self.width * self.levels

    def on(self, device: torch.device) -> TreeConfig:
        """The same on another device."""
        return replace(self, shape=tuple(part.to(device) for part in self.shape))


def fixed_tree(paths: Sequence[Sequence[int]]) -> TreeConfig:
    """The growth of a tree given by its paths, as ranks of children (EAGLE-1's notation); a path's beginning is a path too."""
    known = sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path))
    width, shape = max(rank for path in known for rank in path) + 1, list[Tensor]()
    expanded: list[tuple[int, ...]] = [()]
    for level in range(1, len(known[-1]) + 1):
        here = [path for path in known if len(path) == level]
        inner = [
            place for place, path in enumerate(here) if any(other[:level] == path for other in known if len(other) > level)
        ]
        shape += [torch.tensor([expanded.index(path[:-1]) * width + path[-1] for path in here]), torch.tensor(inner).long()]
        expanded = [here[place] for place in inner]
    return TreeConfig(width, len(shape) // 2, tuple(shape))
