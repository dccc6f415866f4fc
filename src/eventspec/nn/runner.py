"""Runs a decoder for inference: packed weights, caches and the compiled pass behind one small interface.

TorchScript on a CPU; on a GPU the same functions, until captured graphs take their place here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eventspec.nn.cache import KVCache
from eventspec.nn.cpu.decoder import CpuLayers
from eventspec.nn.cuda.decoder import CudaLayers
from eventspec.nn.decode import attention, compiled, decode, decode_together, finish, queries_of
from eventspec.nn.layer import Layer
from eventspec.nn.weights import Backend, Place, Sizes


@dataclass(frozen=True)
class Rows:
    """New rows float [T, D] of one sequence after its cached ones. positions int64 [T] (default: cache.length + 0..T-1); mask
    bool [T - leading, cache.length + T], True = may look (default: causal), is of the rows after the first `leading`, which
    are causal. They are written to the cache but not committed: call `cache.keep`."""

    x: Tensor
    cache: KVCache
    positions: Tensor | None = None
    mask: Tensor | None = None
    leading: int = 0

    def rope(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of their positions, [T, 1, head_dim] each."""
        start, dtype = self.cache.length, self.x.dtype
        places = slice(start, start + len(self.x)) if self.positions is None else self.positions
        return cos[places].to(dtype), sin[places].to(dtype)

    @property
    def causal(self) -> int:
        """How many of the first rows are causal from row 0 of the cache on: their attention skips half of the square."""
        rows = len(self.x) if self.mask is None else self.leading
        return 0 if self.cache.length or len(self.x) == 1 else rows

    def added(self, chains: bool = False) -> Tensor | None:
        """The mask of the rows after the `causal` ones as numbers to be added [T - causal, cache.length + T]; None: it would
        hide nothing, there are no such rows, or they are causal after the cached ones and the kernel knows `chains`."""
        rows, start, mask = len(self.x), self.cache.length, self.mask
        if mask is None:
            chained = rows if start and rows > 1 and not chains else 0
        else:
            chained = self.leading - self.causal
        if chained:
            chain = torch.ones(chained, start + rows, dtype=torch.bool, device=self.x.device).tril_(start)
            mask = chain if mask is None else torch.cat((chain, mask))
        return None if mask is None else biases(mask, self.x)


def biases(seen: Tensor, like: Tensor) -> Tensor:
    """A mask bool as numbers to be added: 0 where a row may look."""
    return like.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)


class DecoderRunner:
    """The layers of a decoder whose weights are final, of `heads` query heads; cos, sin: the rotation of every position
    [context, 1, head_dim]."""

    def __init__(self, layers: Sequence[Layer], cos: Tensor, sin: Tensor) -> None:
        first = layers[0]
        self.heads, self.eps, self.cos, self.sin = first.heads, first.eps, cos, sin
        self.backend: Backend = CudaLayers(layers) if first.qkv.weight.is_cuda else CpuLayers(layers)
        self.layers = self.backend.plain
        self._opening: tuple[Tensor, Tensor] | None = None

    def step(self, rows: Rows, taps: tuple[int, ...] = (), wanted: int | None = None) -> tuple[Tensor, list[Tensor]]:
        """The last layer's output for the last `wanted` rows [wanted, D], by default for all of them, which takes longer; and
        the outputs [T, D] of the layers `taps` (0 = the embedding), ascending. Where the last layer is among `taps`, all rows
        have to be wanted."""
        many = len(rows.x)
        own = self.backend.weights(many)
        how = (self._sizes(own.packed), list(taps), many if wanted is None else wanted, own.remembered)
        found: tuple[Tensor, list[Tensor]] = compiled(decode)(rows.x, self._place(rows), own.layers, *how)
        return found

    def last_outputs(self, entering: Tensor, places: Tensor | None, cache: KVCache) -> Tensor:
        """What the last layer gives [T, D] for cached rows of which it has keys and values only: `entering` float [T, D] is
        what the layer before gave for them; places int64 [T] in the cache, None: they are its first T rows."""
        rows, last = len(entering), len(self.layers) - 1
        own = self.backend.weights(rows)
        sizes, where = self._sizes(own.packed), slice(rows) if places is None else places
        rope = self.cos[where].to(entering.dtype), self.sin[where].to(entering.dtype)
        queries = compiled(queries_of)(entering, *rope, own.layers[last], own.query, sizes)
        many, causal = (rows, rows) if places is None else (int(places.max()) + 1, 0)
        # Rows at places of their own see no row after themselves.
        mask = None if places is None else biases(torch.arange(many, device=places.device) <= places[:, None], entering)
        keys, values = cache.keys[last][:, :many], cache.values[last][:, :many]
        attended = compiled(attention)(queries.transpose(0, 1), keys, values, mask, causal).transpose(0, 1).reshape(rows, -1)
        made: Tensor = compiled(finish)(entering, attended, own.layers[last], sizes)
        return made

    def opening(self, rows: Tensor, entering: Tensor, cache: KVCache) -> Tensor:
        """As `last_outputs` of a sequence's first `rows` float [T, D], which is worked out again only when they are others."""
        known = self._opening
        if known is None or not torch.equal(known[0], rows):
            known = self._opening = rows.clone(), self.last_outputs(entering, None, cache) if len(rows) else entering
        return known[1]

    def step_together(self, several: Sequence[Rows], taps: tuple[int, ...] = ()) -> list[tuple[Tensor, list[Tensor]]]:
        """As `step`, of new rows of several sequences in one forward, as many of each as there are."""
        counts, x = [len(rows.x) for rows in several], torch.cat([rows.x for rows in several])
        own = self.backend.weights(len(x))
        places = [self._place(rows) for rows in several]
        hidden, tapped = compiled(decode_together)(x, counts, places, own.layers, self._sizes(own.packed), list(taps))
        # Copies: a sequence that kept a part of one tensor would keep those of all.
        apart = [[part.clone() for part in whole.split(counts)] for whole in (hidden, *tapped)]
        return [(parts[0], list(parts[1:])) for parts in zip(*apart, strict=True)]

    def _place(self, rows: Rows) -> Place:
        """Where new rows go, and what they see."""
        cache = rows.cache
        mask, causal = rows.added(self.backend.chains), rows.causal
        return Place(*rows.rope(self.cos, self.sin), cache.keys, cache.values, cache.length, mask, causal)

    def _sizes(self, packed: bool) -> Sizes:
        return Sizes(self.heads, self.eps, packed)
