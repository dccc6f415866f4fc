"""Averaging rows that lie next to each other, in a frame and over frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Pooling(nn.Module):
    """The mean of every `ratio` rows; the last group may be shorter. With `frames` and the rows of a `frame`, first that of the
    same row of so many frames in a row, of which the last may be fewer too: a patch changes less from frame to frame than
    from one patch to the next."""

    def __init__(self, ratio: int, frames: int = 1, frame: int = 0) -> None:
        super().__init__()
        self.ratio, self.frames, self.frame = ratio, frames, frame

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), or that much of every stretch of frames, and the places of
        the groups' last rows. Rows behind the last whole frame are a stretch of their own."""
        if self.frames == 1:
            groups, places = grouped(rows, self.ratio)
            return groups.mean(-2), places
        found, begin = [], 0
        for end in self._ends(rows.shape[-2]):
            stretch = rows[..., begin:end, :]
            if end - begin > self.frame:
                stretch = stretch.unflatten(-2, (-1, self.frame)).mean(-3)
            groups, places = grouped(stretch, self.ratio)
            found.append((groups.mean(-2), places + end - stretch.shape[-2]))
            begin = end
        return torch.cat([part for part, _ in found], -2), torch.cat([places for _, places in found])

    def _ends(self, total: int) -> list[int]:
        """Where stretches end."""
        whole = total // self.frame * self.frame
        ends = [min(whole, end + self.frames * self.frame) for end in range(0, whole, self.frames * self.frame)]
        return ends if ends and whole == total else [*ends, total]


def grouped(rows: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
    """[..., T, C] -> [..., M, ratio, C], the last group filled up with its own mean; places of the groups' last rows."""
    total = rows.shape[-2]
    ratio = max(1, min(ratio, total))  # one group is the most that there can be
    count = -(-total // ratio)
    places = (torch.arange(1, count + 1, device=rows.device) * ratio - 1).clamp_max(total - 1)
    if missing := count * ratio - total:
        rest = rows[..., total - (ratio - missing) :, :].mean(-2, keepdim=True)
        rows = torch.cat((rows, rest.expand(*rest.shape[:-2], missing, rest.shape[-1])), -2)
    return rows.unflatten(-2, (count, ratio)), places
