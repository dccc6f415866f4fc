"""The drafting pass of a feature-level head (EAGLE family) as TorchScript: one layer over committed pairs, and a whole draft
tree in one call.

A level of a tree is a forward over a handful of rows; between them lies bookkeeping that in Python would cost more than the
forward. One function serves all kinds of heads; what a head has and what not, its `HeadWeights` say.
"""

from __future__ import annotations

import functools
from copy import copy
from typing import Any, List  # noqa: UP035

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.cache import KVCache
from eventspec.nn.cpu.decoder import packed_layer
from eventspec.nn.cpu.native import NativeHead
from eventspec.nn.cpu.products import FEW_ROWS, packed_weight, usable_for
from eventspec.nn.crossed import crossed_pass, crossed_read
from eventspec.nn.decode import attend, compiled, last_rows, rms_norm
from eventspec.nn.tree_config import TreeConfig as TreeConfig
from eventspec.nn.tree_config import fixed_tree as fixed_tree
from eventspec.nn.weights import CrossWeights, HeadWeights, LayerWeights, Place, Sizes, TreeGrowth


def layer_pass(embeds: Tensor, hidden: Tensor, place: Place, weights: HeadWeights) -> Tensor:
    """Pairs (embeds [T, D] of the next token, hidden [T, D] of this one) through the layer: [T, D].

    place.mask float [T, start + T] is added; None: there is one row, and it sees all of them. The weights are not packed for
    oneDNN: a second layout of them in the processor's caches costs what it saves (4, 6 and 10 rows after a verification on a
    Zen core: packed 1.01, 1.05 and 1.00 times the time, n = 80 each).
    """
    layer, eps = weights.layers[0], weights.eps
    cross, reduction, hidden_norm = weights.cross, weights.reduction, weights.hidden_norm
    if cross is not None:
        return crossed_pass(embeds, hidden, place, weights.layers, cross, Sizes(weights.heads, eps, False))
    if reduction is not None:
        x = F.linear(torch.cat((embeds, hidden), 1), reduction)
        bias = weights.bias
        if bias is not None:
            x = x + bias
        normed = rms_norm(x, layer.input_norm, eps) if layer.input_norm.numel() > 0 else x
    else:
        assert hidden_norm is not None
        seen = rms_norm(hidden, hidden_norm, eps)
        x = seen if weights.norm_residual else hidden
        normed = torch.cat((rms_norm(embeds, layer.input_norm, eps), seen), 1)
    found = F.linear(normed, layer.qkv)
    x = x + F.linear(attend(found, x.size(0), place, 0, weights.heads), layer.out)
    inner = F.linear(rms_norm(x, layer.post_norm, eps), layer.gate_up)
    half = inner.size(1) // 2
    return x + F.linear(F.silu(inner[:, :half]) * inner[:, half:], layer.down)


def next_tokens(hidden: Tensor, width: int, weights: HeadWeights) -> tuple[Tensor, Tensor]:
    """The `width` likeliest next tokens after each row [T, D]: log-probabilities float and target ids int64 [T, width]."""
    norm, ids = weights.out_norm, weights.ids
    if norm is not None:
        hidden = rms_norm(hidden, norm, weights.eps)
    logs, tokens = F.linear(hidden, weights.head).float().log_softmax(-1).topk(min(width, weights.head.size(0)))
    if ids is not None:
        tokens = ids[tokens]
    return logs, tokens


def frontier(reach: Tensor, tokens: Tensor, growth: TreeGrowth) -> Tensor:
    """Which of a level's nodes are expanded, most probable path first; none when the level ends the tree.

    The order is stable: of equal paths the one that was recorded first, so that a tree is the same on every machine.
    """
    ranked, best = reach.masked_fill(tokens == growth.end, -1e30).sort(descending=True, stable=True)
    shares: List[float] = ranked[: growth.width].exp().tolist()  # noqa: UP006 - one wait for the device, TorchScript's spelling
    many, together = 0, 0.0
    for share in shares:
        if share < growth.floor or share == 0.0:
            break
        many += 1
        together += share
    return best[: many if together >= growth.mass else 0]


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
    hidden: Tensor, growth: TreeGrowth, tables: list[Tensor], cached: Place, weights: HeadWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """A draft tree below the root whose predicted feature is `hidden` [1, D] (EAGLE-2, section 4).

    `shape` empty: the `width` likeliest children of every frontier node are recorded, and the `width` nodes of the level with
    the most probable paths are the next frontier; a level ends the tree when its frontier lies below `floor` or has less than
    `mass` together. Otherwise `shape` is a fixed tree: for every level the recorded children (indices into frontier x width),
    then which of those are the next frontier; it is drawn to its end. Else nothing follows the token `end`. `position` is the
    root's. tables: embedding, cos, sin of every position; cached: keys and values after `start` committed rows. Returns tokens,
    parents (-1 = root) and logs of path probabilities, [M] each.
    """
    width, levels, shape, start = growth.width, growth.levels, growth.shape, cached.start
    made: list[list[Tensor]] = [[], [], []]
    nodes = torch.full([1], -1, dtype=torch.int64, device=hidden.device)  # of the frontier
    path, mask, after, recorded = torch.zeros(1, 1, device=hidden.device), hidden.new_empty(0), start, 0
    room = width * levels if len(shape) == 0 else sum([len(inner) for inner in shape[1::2]])
    for level in range(levels):
        logs, tokens = next_tokens(hidden, width, weights)
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
        best = shape[2 * level + 1] if len(shape) > 0 else frontier(reach, tokens, growth)
        if best.size(0) == 0:
            break
        above = (shape[2 * level][best] if len(shape) > 0 else best).div(logs.size(1), rounding_mode="floor")
        # Below a chain one row sees everything: no mask, which would cost as much as the rest of the bookkeeping.
        alone = best.size(0) == 1 and after - start == level
        if not alone:
            mask = ancestry(mask, above, start, after, room)
        end = after + best.size(0)
        given = tables[0].index_select(0, tokens.index_select(0, best))
        below = hidden if alone else hidden.index_select(0, above)
        at = growth.position + 1 + level
        seen = None if alone else mask[:, :end]
        place = Place(tables[1].narrow(0, at, 1), tables[2].narrow(0, at, 1), cached.keys, cached.values, after, seen, 0)
        hidden = layer_pass(given, below, place, weights)
        nodes, path = best + recorded, reach.index_select(0, best)[:, None]
        after, recorded = end, recorded + tokens.size(0)
    return torch.cat(made[0]), torch.cat(made[1]), torch.cat(made[2])


_last_rows = functools.cache(lambda: compiled(last_rows))
_grow = functools.cache(lambda: compiled(grow))
_crossed_read = functools.cache(lambda: compiled(crossed_read))


class DraftKernel:
    """The weights of one head, laid out for the passes above; `native` where trees are grown in machine code."""

    def __init__(self, weights: HeadWeights) -> None:
        self.weights = weights
        layer, heads = weights.layers[0], weights.heads
        width = layer.out.shape[1]  # of all heads together
        remembered = layer.qkv[width:]
        self.packed = packed_weight(remembered) if usable_for(remembered) else None
        self.heads, self.eps = heads, weights.eps
        self.native: NativeHead | None = None

    @property
    def blocks(self) -> int:
        """Layers of keys and values that its cache needs."""
        return len(self.weights.layers)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What the passes cost depends on, but for the rows of the cache: heads of one shape take the same time."""
        weights = self.weights
        parts = (weights.head, weights.reduction, weights.hidden_norm, *(part for layer in weights.layers for part in layer))
        return tuple(None if part is None else tuple(part.shape) for part in parts)

    def with_reduction(self, reduction: Tensor, bias: Tensor | None) -> DraftKernel:
        """The same, with another way to join an embedding and a feature."""
        twin = copy(self)
        twin.weights = self.weights._replace(reduction=reduction, bias=bias)
        twin.native = None if self.native is None else self.native.with_reduction(reduction, bias)
        return twin

    def natively(self) -> DraftKernel:
        """The same, growing its trees in machine code where that can be. A draft may be wrong, so matrices are in eight bits
        there; what was committed is read with the weights as they are."""
        twin = copy(self)
        twin.native = NativeHead.of(self.weights)
        return twin

    def read(self, normed: Tensor, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """Joined pairs after the cached ones, causal; what the layer makes of the last one [1, D]: normed [T, I] is what the
        attention reads, x [T, D] the residual, `rope` are cos and sin of their positions. Not committed."""
        packed = self.packed if len(normed) > FEW_ROWS else None
        place, sizes = Place(*rope, cache.keys, cache.values, cache.length, None, 0), Sizes(self.heads, self.eps, False)
        found: Tensor = _last_rows()(normed, x[-1:], place, 0, self.weights.layers[0], sizes, packed)
        return found

    def grow(self, hidden: Tensor, growth: TreeGrowth, tables: list[Tensor], cache: KVCache) -> tuple[Tensor, Tensor, Tensor]:
        """As the function `grow`, after the committed rows of `cache`; nothing is committed."""
        if self.native is not None:
            return self.native.grow(hidden, growth, tables, cache)
        cached = Place(tables[1][:0], tables[2][:0], cache.keys, cache.values, cache.length, None, 0)
        found: tuple[Tensor, Tensor, Tensor] = _grow()(hidden, growth, tables, cached, self.weights)
        return found


class CrossedKernel(DraftKernel):
    """The same of DREAM's head, whose layers are the first, the crossing's and the last."""

    def __init__(self, weights: HeadWeights) -> None:
        super().__init__(weights)
        first, cross, last = weights.layers
        assert weights.cross is not None
        own = weights.cross
        # Only what reading a prompt multiplies by is worth another layout.
        used = [first.qkv, first.out, first.gate_up, first.down, cross.out, cross.gate_up, cross.down]
        used += [own.queries, own.features, own.remembered]
        self.reading: tuple[list[LayerWeights], CrossWeights] | None = None
        if all(usable_for(weight) for weight in used):
            one, two, three = map(packed_weight, (own.queries, own.features, own.remembered))
            layers = [packed_layer(first), packed_layer(cross, unused=("qkv",)), last]
            self.reading = layers, own._replace(queries=one, features=two, remembered=three)

    def read(self, normed: Tensor, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """As `DraftKernel.read`, of embeddings and features [T, D]: the predicted feature after the last pair [1, D]."""
        rows, start = len(normed), cache.length
        mask = None
        if start and rows > 1:
            masked = torch.ones(rows, start + rows, dtype=torch.bool, device=x.device).triu_(start + 1)
            mask = x.new_zeros(rows, start + rows).masked_fill_(masked, -torch.inf)
        packed = self.reading is not None and rows > FEW_ROWS
        layers, cross = self.reading if self.reading is not None and packed else (self.weights.layers, self.weights.cross)
        place = Place(*rope, cache.keys, cache.values, start, mask, rows if mask is None and rows > 1 else 0)
        found: Tensor = _crossed_read()(normed, x, place, layers, cross, Sizes(self.heads, self.eps, packed))
        return found
