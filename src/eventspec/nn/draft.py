"""The drafting pass of a feature-level head (EAGLE family) as TorchScript: one layer over committed pairs, and a whole draft
tree in one call.

A level of a tree is a forward over a handful of rows; between them lies bookkeeping that in Python would cost more than the
forward. The weights of a head come as lists, so that one function serves all kinds:
    fuse: [fc.weight [D, 2D], fc.bias [D] or empty] (EAGLE-1), or [hidden norm [D]] (EAGLE-3), twice if the residual is
        normed too, or nothing (DREAM: `nn.crossed`, whose weights are `layer` then);
    layer: six tensors of one decoder layer as in `nn.decode` (input norm empty: none);
    out: [norm [D] or empty, head [V', D], ids int64 [V'] of the head's rows or empty: they are the target's].
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import List, Optional  # noqa: UP035

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.cache import KVCache
from eventspec.nn.crossed import READ, crossed_pass, crossed_read
from eventspec.nn.decode import block, compiled, last_row
from eventspec.nn.linear import FEW_ROWS, packed_weight, usable_for
from eventspec.nn.llama import Layer


def layer_pass(
    embeds: Tensor,
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    fuse: list[Tensor],
    layer: list[Tensor],
    heads: int,
    eps: float,
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, hidden [T, D] of this one) through the layer, behind `start` cached ones.

    Returns [T, D]. mask float [T, start + T] is added; None: every row sees all of them. Writes rows [start, start + T) of
    the `stored` keys and values. The weights are not packed for oneDNN: a second layout of them in the processor's caches
    costs what it saves (4, 6 and 10 rows behind a verification on a Zen core: packed 1.01, 1.05 and 1.00 times the time, n =
    80 each).
    """
    width = hidden.size(1)
    if len(fuse) == 0:
        return crossed_pass(embeds, hidden, cos, sin, stored, start, mask, layer, heads, eps)
    if fuse[0].dim() > 1:
        bias = fuse[1] if fuse[1].numel() > 0 else None
        x = F.linear(torch.cat((embeds, hidden), 1), fuse[0], bias)
        normed = torch.rms_norm(x, [width], layer[0], eps) if layer[0].numel() > 0 else x
    else:
        seen = torch.rms_norm(hidden, [width], fuse[0], eps)
        x = seen if len(fuse) > 1 else hidden
        normed = torch.cat((torch.rms_norm(embeds, [width], layer[0], eps), seen), 1)
    return block(normed, x, cos, sin, stored[0], stored[1], start, mask, False, layer, layer[:0], 0, heads, eps)


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
    ranked, best = reach.masked_fill(tokens == end, -1e30).sort(descending=True, stable=True)
    shares: List[float] = ranked[:width].exp().tolist()  # noqa: UP006 - one wait for the device, and TorchScript's spelling
    many, together = 0, 0.0
    for share in shares:
        if share < floor or share == 0.0:
            break
        many += 1
        together += share
    return best[: many if together >= mass else 0]


def ancestry(mask: Tensor, above: Tensor, start: int, behind: int, room: int) -> Tensor:
    """The mask float [w, start + room] of the next w drafted rows, whose keys come in row `behind`: what the rows `above` could
    see (`mask`; empty: all that was drafted), and themselves."""
    width = above.size(0)
    if mask.numel() == 0:
        mask = mask.new_full([width, start + room], -float("inf"))
        mask[:, :behind] = 0.0
    else:
        mask = mask.index_select(0, above)
    mask[:, behind : behind + width].fill_diagonal_(0.0)
    return mask


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
    out: list[Tensor],
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A draft tree below the root whose predicted feature is `hidden` [1, D] (EAGLE-2, section 4).

    `shape` empty: the `width` likeliest children of every frontier node are recorded, and the `width` nodes of the level with
    the most probable paths are the next frontier; a level ends the tree when its frontier lies below `floor` or has less than
    `mass` together. Otherwise `shape` is a fixed tree: for every level the recorded children (indices into frontier x width),
    then which of those are the next frontier; it is drawn to its end. Else nothing follows the token `end`. `position` is the
    root's. tables: embedding, cos, sin; stored: the cache's keys and values. Returns tokens, parents (-1 = root) and logs of
    path probabilities, [M] each.
    """
    made: list[list[Tensor]] = [[], [], []]
    nodes = torch.full([1], -1, dtype=torch.int64, device=hidden.device)  # of the frontier
    path, mask, behind, recorded = torch.zeros(1, 1, device=hidden.device), hidden.new_empty(0), start, 0
    room = width * levels if len(shape) == 0 else sum([len(inner) for inner in shape[1::2]])
    for level in range(levels):
        logs, tokens = next_tokens(hidden, width, out, eps)
        parents = nodes[:, None].expand_as(tokens).flatten()
        tokens, reach = tokens.flatten(), (path + logs).flatten()
        if len(shape) > 0:
            kept = shape[2 * level]
            tokens, parents, reach = tokens[kept], parents[kept], reach[kept]
        made[0].append(tokens)
        made[1].append(parents)
        made[2].append(reach)
        if level + 1 == levels:
            break
        best = shape[2 * level + 1] if len(shape) > 0 else frontier(reach, tokens, width, floor, mass, end)
        if best.size(0) == 0:
            break
        above = (shape[2 * level][best] if len(shape) > 0 else best).div(logs.size(1), rounding_mode="floor")
        # Below a chain one row sees everything: no mask, which would cost as much as the rest of the bookkeeping.
        alone = best.size(0) == 1 and behind - start == level
        if not alone:
            mask = ancestry(mask, above, start, behind, room)
        after = behind + best.size(0)
        given = tables[0].index_select(0, tokens.index_select(0, best))
        below = hidden if alone else hidden.index_select(0, above)
        cos, sin = tables[1].narrow(0, position + 1 + level, 1), tables[2].narrow(0, position + 1 + level, 1)
        seen = None if alone else mask[:, :after]
        hidden = layer_pass(given, below, cos, sin, stored, behind, seen, fuse, layer, heads, eps)
        nodes, path = best + recorded, reach.index_select(0, best)[:, None]
        behind, recorded = after, recorded + tokens.size(0)
    return torch.cat(made[0]), torch.cat(made[1]), torch.cat(made[2])


_last_row = functools.cache(lambda: compiled(last_row))
_grow = functools.cache(lambda: compiled(grow))
_crossed_read = functools.cache(lambda: compiled(crossed_read))


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


class DraftKernel:
    """The weights of one head, laid out for the passes above."""

    blocks = 1
    """Layers of keys and values that its cache needs."""

    def __init__(self, fuse: list[Tensor], layer: Layer, out: list[Tensor]) -> None:
        self.fuse, self.layer, self.out, self.heads, self.eps = fuse, layer_weights(layer), out, layer.heads, layer.eps
        remembered = self.layer[1][layer.heads * layer.head_dim :]
        self.packed = [packed_weight(remembered)] if usable_for(remembered) else []

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """What the passes cost depends on, but for the rows of the cache: heads of one shape take the same time."""
        return tuple(tuple(part.shape) for part in (*self.fuse, *self.layer, *self.out[:2]))

    def with_fuse(self, fuse: list[Tensor]) -> DraftKernel:
        """The same, with another way to join an embedding and a feature."""
        twin = copy(self)
        twin.fuse = fuse
        return twin

    def read(self, normed: Tensor, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """Joined pairs behind the cached ones, causal; what the layer makes of the last one [1, D]: normed [T, I] is what the
        attention reads, x [T, D] the residual, `rope` are cos and sin of their positions. Not committed."""
        stored = (cache.keys[0], cache.values[0], cache.length)
        packed = self.packed if len(normed) > FEW_ROWS else []
        found: Tensor = _last_row()(normed, x[-1:], *rope, *stored, self.layer, packed, self.heads, self.eps)
        return found

    def grow(
        self,
        hidden: Tensor,
        growth: TreeConfig,
        floor: float,
        mass: float,
        end: int,
        position: int,
        tables: list[Tensor],
        cache: KVCache,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As the function `grow`, behind the committed rows of `cache`; nothing is committed."""
        how = (growth.width, growth.levels, floor, mass, end, position, list(growth.shape))
        weights = (self.fuse, self.layer, self.out, self.heads, self.eps)
        found: tuple[Tensor, Tensor, Tensor] = _grow()(hidden, *how, tables, stored_in(cache), cache.length, *weights)
        return found


class CrossedKernel(DraftKernel):
    """The same of DREAM's head: `first` and `last` layer, between them the crossing's, whose norms and gates (after tanh) come
    as `more`, the final norm behind them."""

    blocks = 3

    def __init__(self, first: Layer, cross: Layer, last: Layer, more: list[Tensor], out: list[Tensor]) -> None:
        super().__init__([], first, out)
        asked, remembered = cross.heads * cross.head_dim, last.heads * last.head_dim
        blocks, crossing = [*layer_weights(first), *layer_weights(cross), *layer_weights(last)], cross.qkv.weight.detach()
        self.layer = [*blocks, *more, crossing[:asked], crossing[asked:], blocks[13][remembered:]]
        fit = all(usable_for(weight) for weight in self.layer)
        self.packed = [packed_weight(w) if i in READ else w[:0] for i, w in enumerate(self.layer)] if fit else []

    def read(self, normed: Tensor, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """As `DraftKernel.read`, of embeddings and features [T, D]: the predicted feature behind the last pair [1, D]."""
        rows, start = len(normed), cache.length
        mask = None
        if start and rows > 1:
            masked = torch.ones(rows, start + rows, dtype=torch.bool, device=x.device).triu_(start + 1)
            mask = x.new_zeros(rows, start + rows).masked_fill_(masked, -torch.inf)
        packed = self.packed if rows > FEW_ROWS else []
        how = (stored_in(cache), start, mask, self.layer, packed, self.heads, self.eps)
        found: Tensor = _crossed_read()(normed, x, *rope, *how)
        return found


def layer_weights(layer: Layer) -> list[Tensor]:
    """A decoder layer's tensors in the order of `nn.decode`."""
    parts = (layer.input_norm, layer.qkv, layer.out, layer.post_norm, layer.gate_up, layer.down)
    return [part.detach() if isinstance(part, Tensor) else part.weight.detach() for part in parts]


def stored_in(cache: KVCache) -> list[Tensor]:
    """Keys and values of every layer in turn."""
    return [part for pair in zip(cache.keys, cache.values, strict=True) for part in pair]
