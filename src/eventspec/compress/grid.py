"""Fewer visual rows by squares of a frame's patches: their mean, their maximum, or a learned convolution. A class token, which
is no place of the grid, stays as it is. Rows after the last whole frame are reduced in a row, by as many as a square has."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from eventspec.compress.reductions import means
from eventspec.errors import BadCheckpoint
from eventspec.nn.linear import first_values


def grid_of(frame: int) -> tuple[int, int]:
    """Of a frame's rows: how many class tokens are ahead of its patches, 0 or 1, and the patches on a side. BadCheckpoint for a
    number of rows that no square has."""
    for ahead in (1, 0):
        side = math.isqrt(max(0, frame - ahead))
        if side and side * side == frame - ahead:
            return ahead, side
    raise BadCheckpoint(f"{frame} rows of a frame are no square of patches, with or without a class token")


def squares(frame: int, size: int) -> Tensor:
    """Places int64 [S, size ** 2] in a frame of the patches of its squares, in raster order; squares that reach beyond the grid
    repeat its last row or column."""
    ahead, side = grid_of(frame)
    count = -(-side // size)
    line = torch.arange(count * size, device="cpu").clamp_max(side - 1).unflatten(0, (count, size))
    cells = line[:, None, :, None] * side + line[None, :, None, :]
    found: Tensor = ahead + cells.flatten(2).flatten(0, 1)
    return found


class Squares(nn.Module):
    """Rows of frames of `frame` rows each, reduced by squares of `size` patches a side."""

    def __init__(self, frame: int, size: int) -> None:
        super().__init__()
        self.frame, self.size, self.ahead = frame, size, grid_of(frame)[0]
        self.cells = squares(frame, size)

    def reduced(self, cells: Tensor) -> Tensor:
        """Squares [..., K, S, size ** 2, 2 D] -> rows [..., K, S, 2 D]."""
        return cells.mean(-2)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D]: of every frame its class token and a row a square; the places [M] of the last patches
        of the squares."""
        total, cells = rows.shape[-2], self.cells.to(rows.device)
        count = total // self.frame
        whole = count * self.frame
        frames = rows[..., :whole, :].unflatten(-2, (count, self.frame))
        found = torch.cat((frames[..., : self.ahead, :], self.reduced(frames[..., cells, :])), -2).flatten(-3, -2)
        last = torch.cat((torch.arange(self.ahead, device=rows.device), cells[:, -1]))
        places = (torch.arange(count, device=rows.device)[:, None] * self.frame + last).flatten()
        if whole < total:
            rest, later = means(rows[..., whole:, :], self.size**2)
            found, places = torch.cat((found, rest), -2), torch.cat((places, whole + later))
        return found, places


class Maximum(Squares):
    """Of pairs of an embedding and a feature: the greatest value of each channel of the features. Embeddings, token vectors of
    one scale, are averaged."""

    def reduced(self, cells: Tensor) -> Tensor:
        embeds, hidden = cells.chunk(2, -1)
        return torch.cat((embeds.mean(-2), hidden.amax(-2)), -1)


class GridConvolution(Squares):
    """A convolution over the features, kernel and stride `size`, which starts as the mean; embeddings are averaged."""

    def __init__(self, width: int, frame: int, size: int) -> None:
        super().__init__(frame, size)
        self.weight = nn.Parameter(torch.empty(width, size**2 * width))
        first_values(self.weight, lambda: torch.eye(width).repeat(1, size**2) / size**2)

    def reduced(self, cells: Tensor) -> Tensor:
        embeds, hidden = cells.chunk(2, -1)
        return torch.cat((embeds.mean(-2), linear(hidden.flatten(-2), self.weight)), -1)
