"""The drafting pass of a feature-level head (EAGLE family) as TorchScript: one layer over committed pairs, and a whole draft
tree in one call.

A level of a tree is a forward over a handful of rows; between them lies bookkeeping that in Python would cost more than the
forward. The weights of a head come as lists, so that one function serves both kinds:
    fuse: [fc.weight [D, 2D], fc.bias [D] or empty] (EAGLE-1), or [hidden norm [D]] (EAGLE-3), twice if the residual is
        normed too;
    layer, packed: six tensors of one decoder layer as in `nn.decode` (input norm empty: none), and their oneDNN layout or [];
    out: [norm [D] or empty, head [V', D], ids int64 [V'] of the head's rows or empty: they are the target's].
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.cache import KVCache
from eventspec.nn.decode import block, compiled
from eventspec.nn.linear import FEW_ROWS, usable_for
from eventspec.nn.llama import Layer


def layer_pass(
    embeds: Tensor,
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    mask: Tensor,
    fuse: list[Tensor],
    layer: list[Tensor],
    packed: list[Tensor],
    heads: int,
    eps: float,
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, hidden [T, D] of this one) through the layer, behind `start` cached ones.

    Returns [T, D]. mask float [T, start + T] is added; empty: causal at start 0. Writes rows [start, start + T) of keys and
    values.
    """
    width = hidden.size(1)
    if fuse[0].dim() > 1:
        bias = fuse[1] if fuse[1].numel() > 0 else None
        x = F.linear(torch.cat((embeds, hidden), 1), fuse[0], bias)
        normed = torch.rms_norm(x, [width], layer[0], eps) if layer[0].numel() > 0 else x
    else:
        seen = torch.rms_norm(hidden, [width], fuse[0], eps)
        x = seen if len(fuse) > 1 else hidden
        normed = torch.cat((torch.rms_norm(embeds, [width], layer[0], eps), seen), 1)
    used = packed if x.size(0) >= 4 else layer[:0]
    given = mask if mask.numel() > 0 else None
    causal = mask.numel() == 0 and x.size(0) > 1
    return block(normed, x, cos, sin, keys, values, start, given, causal, layer, used, 0, heads, eps)


def next_tokens(hidden: Tensor, width: int, out: list[Tensor], eps: float) -> tuple[Tensor, Tensor]:
    """The `width` likeliest next tokens after each row [T, D]: log-probabilities float and target ids int64 [T, width]."""
    if out[0].numel() > 0:
        hidden = torch.rms_norm(hidden, [hidden.size(1)], out[0], eps)
    logs, tokens = F.linear(hidden, out[1]).float().log_softmax(-1).topk(min(width, out[1].size(0)))
    if out[2].numel() > 0:
        tokens = out[2][tokens]
    return logs, tokens


def frontier(reach: Tensor, tokens: Tensor, width: int, floor: float, mass: float, end: int) -> Tensor:
    """Which of a level's nodes are expanded, most probable path first; none when the level ends the tree.

    The order is stable: of equal paths the one that was recorded first, so that a tree is the same on every machine.
    """
    open = torch.where(tokens == end, torch.full_like(reach, -1e30), reach)
    ranked, best = open.sort(descending=True, stable=True)
    shares = ranked[:width].exp()
    best = best[:width][shares >= floor]
    if best.size(0) > 0 and float(shares[: best.size(0)].sum()) < mass:
        best = best[:0]
    return best


def ancestry(seen: Tensor, above: Tensor) -> Tensor:
    """Which drafted rows the next ones may see, bool [w, R + w]: what the row above could see (`seen` [., R]), and itself."""
    own = torch.eye(above.size(0), dtype=torch.bool)
    return own if seen.size(1) == 0 else torch.cat((seen[above], own), 1)


def grow(
    hidden: Tensor,
    width: int,
    levels: int,
    floor: float,
    mass: float,
    end: int,
    position: int,
    shape: list[Tensor],
    tables: list[Tensor],
    stored: list[Tensor],
    start: int,
    fuse: list[Tensor],
    layer: list[Tensor],
    packed: list[Tensor],
    out: list[Tensor],
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A draft tree below the root whose predicted feature is `hidden` [1, D] (EAGLE-2, section 4).

    `shape` empty: the `width` likeliest children of every frontier node are recorded, and the `width` nodes of the level with
    the most probable paths are the next frontier; a level ends the tree when its frontier lies below `floor` or has less than
    `mass` together. Otherwise `shape` is a fixed tree: for every level the recorded children (indices into frontier x width),
    then which of those are the next frontier. Nothing follows the token `end`. `position` is the root's, a node of level l
    stands l behind. tables: embedding, cos, sin; stored: the cache's keys and values. Returns tokens int64, parents int64
    (-1 = root) and the logarithms of path probabilities, [M] each, level by level.
    """
    made: list[list[Tensor]] = [[], [], []]
    expanded = torch.full([1], -1, dtype=torch.int64)
    path = torch.zeros(1, 1)
    seen = torch.zeros(1, 0, dtype=torch.bool)
    recorded = 0
    for level in range(levels):
        logs, tokens = next_tokens(hidden, width, out, eps)
        reach = (path + logs).flatten()
        parents = expanded[:, None].expand_as(tokens).flatten()
        rows = torch.arange(expanded.size(0))[:, None].expand_as(tokens).flatten()
        tokens = tokens.flatten()
        if len(shape) > 0:
            kept = shape[2 * level]
            reach, parents, tokens, rows = reach[kept], parents[kept], tokens[kept], rows[kept]
        made[0].append(tokens)
        made[1].append(parents)
        made[2].append(reach)
        first, recorded = recorded, recorded + tokens.size(0)
        best = shape[2 * level + 1] if len(shape) > 0 else frontier(reach, tokens, width, floor, mass, end)
        if level + 1 == levels or best.size(0) == 0:
            break
        expanded, path = best + first, reach[best][:, None]
        behind = start + seen.size(1)
        seen = ancestry(seen, rows[best])
        mask = torch.zeros(best.size(0), start + seen.size(1), dtype=hidden.dtype)
        mask[:, start:].masked_fill_(~seen, -float("inf"))
        at = position + 1 + level
        cos, sin = tables[1][at : at + 1], tables[2][at : at + 1]
        given, below = tables[0][tokens[best]], hidden[rows[best]]
        hidden = layer_pass(given, below, cos, sin, stored[0], stored[1], behind, mask, fuse, layer, packed, heads, eps)
    return torch.cat(made[0]), torch.cat(made[1]), torch.cat(made[2])


_block = functools.cache(lambda: compiled(block))
_grow = functools.cache(lambda: compiled(grow))


@dataclass(frozen=True)
class Growth:
    """How a tree grows: `width` children of every node are looked at and as many nodes of a level are expanded, down to
    `levels`. `shape` is a fixed tree instead (see `grow`)."""

    width: int = 10
    levels: int = 8
    shape: tuple[Tensor, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of a cache that the tree may need."""
        return sum(map(len, self.shape[1::2])) if self.shape else self.width * self.levels


def fixed_tree(paths: Sequence[Sequence[int]]) -> Growth:
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
    return Growth(width, len(shape) // 2, tuple(shape))


class Hot:
    """The weights of one head, laid out for the passes above."""

    def __init__(self, fuse: list[Tensor], layer: Layer, out: list[Tensor]) -> None:
        parts = (layer.input_norm, layer.qkv, layer.out, layer.post_norm, layer.gate_up, layer.down)
        self.fuse, self.out, self.heads, self.eps = fuse, out, layer.heads, layer.eps
        self.layer = [part.detach() if isinstance(part, Tensor) else part.weight.detach() for part in parts]
        packed = [part.detach() if isinstance(part, Tensor) else part.packed() for part in parts]
        self.packed = packed if usable_for(self.layer[1]) else []

    def read(self, normed: Tensor, x: Tensor, turns: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """Joined pairs behind the cached ones, causal -> [T, D]: normed [T, I] is what the attention reads, x [T, D] the
        residual, `turns` are cos and sin of their positions. Not committed."""
        rows, start = len(x), cache.length
        mask = None
        if start and rows > 1:
            unseen = torch.ones(rows, start + rows, dtype=torch.bool, device=x.device).triu_(start + 1)
            mask = x.new_zeros(rows, start + rows).masked_fill_(unseen, -torch.inf)
        causal = mask is None and rows > 1
        packed = self.packed if rows >= FEW_ROWS else []
        stored = (cache.keys[0], cache.values[0], start, mask, causal)
        found: Tensor = _block()(normed, x, *turns, *stored, self.layer, packed, 0, self.heads, self.eps)
        return found

    def grow(
        self,
        hidden: Tensor,
        growth: Growth,
        floor: float,
        mass: float,
        end: int,
        position: int,
        tables: list[Tensor],
        cache: KVCache,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As the function `grow`, behind the committed rows of `cache`; nothing is committed."""
        how = (growth.width, growth.levels, floor, mass, end, position, list(growth.shape))
        stored = [cache.keys[0], cache.values[0]]
        weights = (self.fuse, self.layer, self.packed, self.out, self.heads, self.eps)
        found: tuple[Tensor, Tensor, Tensor] = _grow()(hidden, *how, tables, stored, cache.length, *weights)
        return found
