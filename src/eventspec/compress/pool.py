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
        total = rows.shape[-2]
        count = total // self.frame if self.frames > 1 else 0
        if count == 0:
            return means(rows, self.ratio)
        whole = count * self.frame
        stretches, last = means(rows[..., :whole, :].unflatten(-2, (count, -1)).flatten(-2), self.frames)
        found, places = means(stretches.unflatten(-1, (self.frame, -1)), self.ratio)
        found, places = found.flatten(-3, -2), (last[:, None] * self.frame + places).flatten()
        if whole < total:
            rest, behind = means(rows[..., whole:, :], self.ratio)
            found, places = torch.cat((found, rest), -2), torch.cat((places, whole + behind))
        return found, places


def means(rows: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
    """[..., T, C] -> the mean of every `ratio` rows [..., M, C], of fewer at the end; places of the groups' last rows."""
    total = rows.shape[-2]
    full, missing = divmod(total, ratio)
    found = rows[..., : full * ratio, :].unflatten(-2, (full, ratio)).mean(-2)
    places = torch.arange(1, full + 1, device=rows.device) * ratio - 1
    if missing:
        found = torch.cat((found, rows[..., full * ratio :, :].mean(-2, keepdim=True)), -2)
        places = torch.cat((places, places.new_full((1,), total - 1)))
    return found, places


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
