"""The drafting pass of a feature-level head (EAGLE family) as TorchScript: one layer over committed pairs, and a whole draft
tree in one call.

A level of a tree is a forward over a handful of rows; between them lies bookkeeping that in Python would cost more than the
forward. One function serves all kinds of heads; what a head has and what not, its `HeadWeights` say. DREAM's (2505.19201) has
three blocks: a decoder layer over embeddings, a gated cross-attention to features, another decoder layer (`crossed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.cache import KVCache
from eventspec.nn.cpu.decoder import packed_layer
from eventspec.nn.cpu.native import NativeHead
from eventspec.nn.cpu.products import FEW_ROWS, packed_weight, product, usable_for
from eventspec.nn.decode import apply_rope, attention, block, compiled, last_rows, rms_norm
from eventspec.nn.runner import Rows
from eventspec.nn.weights import CrossWeights, HeadWeights, LayerWeights, Place, Sizes, TreeGrowth


def crossed(
    embeds: Tensor, features: Tensor, place: Place, layers: list[LayerWeights], cross: CrossWeights, sizes: Sizes
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, features [T, D] of this one) through the first layer and the crossing: [T, D].

    place: keys and values of the three blocks are written. layers: first, crossing, last.
    """
    rows, start, heads, eps, packed = embeds.size(0), place.start, sizes.heads, sizes.eps, sizes.packed
    end = start + rows
    first, layer = layers[0], layers[1]
    x = block(rms_norm(embeds, first.input_norm, eps), embeds, rows, place, 0, first, sizes)
    keys, values = place.keys[1], place.values[1]
    kv_heads, head_dim = keys.size(0), keys.size(2)
    asked = product(rms_norm(x, layer.input_norm, eps), cross.queries, packed).view(rows, heads, head_dim)
    both = product(features, cross.features, packed).view(rows, 2 * kv_heads, head_dim)
    queries = apply_rope(rms_norm(asked, cross.query_norm, eps), place.cos, place.sin)
    rotated = apply_rope(rms_norm(both[:, :kv_heads], cross.key_norm, eps), place.cos, place.sin)
    keys[:, start:end] = rotated.transpose(0, 1)
    values[:, start:end] = both[:, kv_heads:].transpose(0, 1)
    seen = attention(queries.transpose(0, 1), keys[:, :end], values[:, :end], place.mask, place.causal)
    x = x + cross.gates[0] * product(seen.transpose(0, 1).reshape(rows, heads * head_dim), layer.out, packed)
    inner = product(rms_norm(x, layer.post_norm, eps), layer.gate_up, packed)
    half = inner.size(1) // 2
    return x + cross.gates[1] * product(F.silu(inner[:, :half]) * inner[:, half:], layer.down, packed)


def crossed_pass(
    embeds: Tensor, features: Tensor, place: Place, layers: list[LayerWeights], cross: CrossWeights, sizes: Sizes
) -> Tensor:
    """All three blocks, as `crossed`, for the rows of a draft: the predicted features after them, normed, [T, D]."""
    last = layers[2]
    x = crossed(embeds, features, place, layers, cross, sizes)
    x = block(rms_norm(x, last.input_norm, sizes.eps), x, x.size(0), place, 2, last, sizes)
    return rms_norm(x, cross.final_norm, sizes.eps)


def crossed_read(
    embeds: Tensor, features: Tensor, place: Place, layers: list[LayerWeights], cross: CrossWeights, sizes: Sizes
) -> Tensor:
    """All three blocks over committed pairs, as `crossed`: the predicted feature after the last one, [1, D]. Of the others the
    last layer only remembers keys and values. Where `packed`, the last layer's matrices are not, but for
    `CrossWeights.remembered`."""
    x = crossed(embeds, features, place, layers, cross, sizes)
    normed = rms_norm(x, layers[2].input_norm, sizes.eps)
    remembered = cross.remembered if sizes.packed else None
    own = Place(place.cos, place.sin, place.keys, place.values, place.start, None, 0)
    last = last_rows(normed, x[-1:], own, 2, layers[2], Sizes(sizes.heads, sizes.eps, False), remembered)
    return rms_norm(last, cross.final_norm, sizes.eps)


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
    return block(normed, x, x.size(0), place, 0, layer, Sizes(weights.heads, eps, False))


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
    shares: list[float] = ranked[: growth.width].exp().tolist()  # one wait for the device
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


@dataclass(frozen=True)
class TreeConfig:
    """How a tree grows: `width` children of every node are looked at and as many nodes of a level are expanded, down to
    `levels`. `shape` is a fixed tree instead (see `grow`). `whole`: it grows to its last level and gets all its nodes, whatever
    they cost or promise, an answer's end among those that are expanded."""

    width: int = 10
    levels: int = 8
    shape: tuple[Tensor, ...] = ()
    whole: bool = False

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
    """The weights of one head, laid out for the passes above; `native` where trees are grown in machine code."""

    def __init__(self, weights: HeadWeights) -> None:
        self.weights = weights
        layer = weights.layers[0]
        width = layer.out.shape[1]  # of all heads together
        remembered = layer.qkv[width:]
        self.packed = packed_weight(remembered) if usable_for(remembered) else None
        self.sizes = Sizes(weights.heads, weights.eps, False)
        self.native: NativeHead | None = None

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

    def with_down(self, down: Tensor) -> DraftKernel:
        """The same of a head of one layer, with another last matrix [D, I]."""
        twin = copy(self)
        twin.weights = self.weights._replace(layers=[self.weights.layers[0]._replace(down=down)])
        twin.native = None if self.native is None else self.native.with_down(down)
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
        place = Place(*rope, cache.keys, cache.values, cache.length, None, 0)
        found: Tensor = compiled(last_rows)(normed, x[-1:], place, 0, self.weights.layers[0], self.sizes, packed)
        return found

    def grow(self, hidden: Tensor, growth: TreeGrowth, tables: list[Tensor], cache: KVCache) -> tuple[Tensor, Tensor, Tensor]:
        """As the function `grow`, after the committed rows of `cache`; nothing is committed."""
        if self.native is not None:
            return self.native.grow(hidden, growth, tables, cache)
        cached = Place(tables[1][:0], tables[2][:0], cache.keys, cache.values, cache.length, None, 0)
        found: tuple[Tensor, Tensor, Tensor] = compiled(grow)(hidden, growth, tables, cached, self.weights)
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
        rows = Rows(x, cache)
        packed = self.reading is not None and len(x) > FEW_ROWS
        layers, cross = self.reading if self.reading is not None and packed else (self.weights.layers, self.weights.cross)
        place = Place(*rope, cache.keys, cache.values, cache.length, rows.added(), rows.causal)
        found: Tensor = compiled(crossed_read)(normed, x, place, layers, cross, self.sizes._replace(packed=packed))
        return found
