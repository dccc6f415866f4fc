"""Runs a decoder for inference: packed weights, caches and the compiled pass behind one small interface.

TorchScript on a CPU; on a GPU the same functions, until captured graphs take their place here.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eventspec.nn.cache import KVCache
from eventspec.nn.decode import (
    attention,
    before_attention,
    compiled,
    decode,
    decode_together,
    finish,
    queries_of,
)
from eventspec.nn.layer_weights import LayerWeights
from eventspec.nn.linear import FEW_ROWS, filled, packed_weight, spare_rows, unpacked, works
from eventspec.nn.long_prompts import has_native_attention
from eventspec.nn.native import attend_many

if TYPE_CHECKING:
    from eventspec.nn.llama import Layer

_decode = functools.cache(lambda: compiled(decode))
_decode_together = functools.cache(lambda: compiled(decode_together))
_before_attention = functools.cache(lambda: compiled(before_attention))
_finish = functools.cache(lambda: compiled(finish))
_queries = functools.cache(lambda: compiled(queries_of))
_attention = functools.cache(lambda: compiled(attention))


@dataclass(frozen=True)
class Rows:
    """New rows float [T, D] of one sequence behind its cached ones. positions int64 [T] (default: cache.length + 0..T-1); mask
    bool [T - leading, cache.length + T], True = may look (default: causal), is of the rows behind the first `leading`, which
    are causal. They are written to the cache but not committed: call `cache.keep`."""

    x: Tensor
    cache: KVCache
    positions: Tensor | None = None
    mask: Tensor | None = None
    leading: int = 0

    def __post_init__(self) -> None:
        """Machine code reads a mask by its own count of rows, so one of another shape would be read past its end."""
        if self.mask is not None:
            rows = len(self.x)
            assert self.mask.shape == (rows - self.leading, self.cache.length + rows), "the mask is not these rows'"

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
        """The mask of the rows behind the `causal` ones as numbers to be added [T - causal, cache.length + T]; None: it would
        hide nothing, there are no such rows, or they are causal behind the cached ones and the kernel knows `chains`."""
        rows, start, mask = len(self.x), self.cache.length, self.mask
        if mask is None:
            chained = rows if start and rows > 1 and not chains else 0
        else:
            chained = self.leading - self.causal
        if chained:
            chain = torch.ones(chained, start + rows, dtype=torch.bool, device=self.x.device).tril_(start)
            mask = chain if mask is None else torch.cat((chain, mask))
        return None if mask is None else self._biases(mask)

    def native_mask(self) -> tuple[int, Tensor | None]:
        """For `attention.c`, where rows may be causal behind cached ones too: how many of the first rows are, and the mask of
        those behind them as numbers to be added [T - causal, cache.length + T]."""
        if self.mask is None:
            return len(self.x), None
        return self.leading, self._biases(self.mask)

    def _biases(self, mask: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=self.x.dtype, device=self.x.device).masked_fill_(~mask, -torch.inf)


class DecoderRunner:
    """The layers of a decoder whose weights are final, of `heads` query and `kv_heads` key-value heads; cos, sin: the rotation
    of every position [context, 1, head_dim]."""

    def __init__(self, layers: Sequence[Layer], cos: Tensor, sin: Tensor) -> None:
        first = layers[0]
        self.heads, self.kv_heads, self.head_dim, self.eps = first.heads, first.kv_heads, first.head_dim, first.eps
        self.cos, self.sin = cos, sin
        self.layers = [layer_weights(layer) for layer in layers]
        weight = self.layers[0].qkv
        self.dtype, self.device = weight.dtype, weight.device
        if self.device.type == "cuda":
            # cuDNN's attention is planned anew for every number of rows, which no two steps of an answer have alike: 40 ms
            # each on an H200, where a step takes 6. The other kernels need no plan.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.chains = self.device.type == "cuda" and knows_chains(
            self.device, self.dtype, self.heads, self.kv_heads, self.head_dim
        )
        self.reduced = first.qkv.in_bfloat16
        self.packed = [final_weights(layer) for layer in layers] if first.qkv.packs else None
        kind = torch.bfloat16 if self.reduced else self.dtype
        query, remembered = layers[-1].qkv.weight.detach().to(kind).tensor_split([self.heads * self.head_dim])
        self.query = None if self.packed is None else packed_weight(query)
        self.remembered = None if self.packed is None else packed_weight(remembered)
        self._opening: tuple[Tensor, Tensor] | None = None

    def whole(self, rows: int) -> int:
        """A number of rows, `rows` or some 15 more, whose products are not filled up with rows of zeros; few rows stay as they
        are, since next to none are filled up."""
        return rows if self.packed is None or rows <= 64 else rows + spare_rows(rows)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one sequence of at most `capacity` rows."""
        return KVCache(len(self.layers), self.kv_heads, self.head_dim, capacity, self.dtype, self.device)

    def step(self, rows: Rows, taps: tuple[int, ...] = (), wanted: int | None = None) -> tuple[Tensor, list[Tensor]]:
        """The last layer's output for the last `wanted` rows [wanted, D], by default for all of them, which takes longer; and
        the outputs [T, D] of the layers `taps` (0 = the embedding), ascending. Where the last layer is among `taps`, all rows
        have to be wanted."""
        cache, many = rows.cache, len(rows.x)
        wanted = many if wanted is None else wanted
        if has_native_attention(many, cache.keys[0]):
            return self._long_step(rows, taps, wanted)
        layers, packed = self._for(many)
        where = (*rows.rope(self.cos, self.sin), cache.keys, cache.values, cache.length, rows.added(self.chains), rows.causal)
        asked = (list(taps), wanted, self.remembered if packed else None)
        found: tuple[Tensor, list[Tensor]] = _decode()(rows.x, *where, layers, packed, self.heads, self.eps, *asked)
        return found

    def _long_step(self, rows: Rows, taps: tuple[int, ...], wanted: int) -> tuple[Tensor, list[Tensor]]:
        """As `step`, layer by layer, with attention from `attention.c`: a crossing between Python and torch takes some ten
        microseconds, which many rows do not feel."""
        cache, start, many = rows.cache, rows.cache.length, len(rows.x)
        layers, packed = self._for(many)
        (cos, sin), x = rows.rope(self.cos, self.sin), filled(rows.x, packed)
        causal, mask = rows.native_mask()
        tapped = [rows.x] if 0 in taps else []
        whole = len(layers) if wanted == many else len(layers) - 1
        for number, (layer, keys, values) in enumerate(zip(layers[:whole], cache.keys, cache.values, strict=False), 1):
            place = (cos, sin, keys, values, start)
            queries = _before_attention()(x, many, *place, layer, packed, self.heads, self.eps)
            attended = attend_many(queries, keys, values, start, causal, mask, self.heads, len(x) - many)
            x = _finish()(x, attended, layer, packed, self.eps)
            if number in taps:
                tapped.append(x[:many])
        if whole == len(layers):
            return x[:many], tapped
        # Most of the last layer is left out.
        last = (cos, sin, cache.keys[whole:], cache.values[whole:], start, mask, causal, layers[whole:], packed)
        nothing: list[int] = []
        remembered = self.remembered if packed else None
        return _decode()(x[:many], *last, self.heads, self.eps, nothing, wanted, remembered)[0], tapped

    def last_outputs(self, entering: Tensor, places: Tensor | None, cache: KVCache) -> Tensor:
        """What the last layer gives [T, D] for cached rows of which it has keys and values only: `entering` float [T, D] is
        what the layer before gave for them; places int64 [T] in the cache, None: they are its first T rows."""
        rows, last = len(entering), len(self.layers) - 1
        layers, packed = self._for(rows)
        where = slice(rows) if places is None else places
        rope = self.cos[where].to(entering.dtype), self.sin[where].to(entering.dtype)
        queries = _queries()(entering, *rope, layers[last], self.query if packed else None, self.heads, self.eps)
        keys, values = cache.keys[last], cache.values[last]
        if places is None and has_native_attention(rows, keys):
            attended = attend_many(queries, keys, values, 0, rows, None, self.heads, 0)
        else:
            many, causal = (rows, rows) if places is None else (int(places.max()) + 1, 0)
            mask = None if places is None else no_later(places, many, entering)
            found = _attention()(queries.transpose(0, 1), keys[:, :many], values[:, :many], mask, causal)
            attended = found.transpose(0, 1).reshape(rows, -1)
        made: Tensor = _finish()(entering, attended, layers[last], packed, self.eps)
        return made

    def opening(self, rows: Tensor, entering: Tensor, cache: KVCache) -> Tensor:
        """As `last_outputs` of a sequence's first `rows` float [T, D], which is worked out again only when they are others."""
        known = self._opening
        if known is None or not torch.equal(known[0], rows):
            known = self._opening = rows.clone(), self.last_outputs(entering, None, cache) if len(rows) else entering
        return known[1]

    def step_together(self, several: Sequence[Rows], taps: tuple[int, ...] = ()) -> list[tuple[Tensor, list[Tensor]]]:
        """As `step`, of new rows of several sequences in one forward, as many of each as there are."""
        counts = [len(rows.x) for rows in several]
        ropes = [rows.rope(self.cos, self.sin) for rows in several]
        layers, packed = self._for(sum(counts))
        hidden, tapped = _decode_together()(
            torch.cat([rows.x for rows in several]),
            torch.cat([cos for cos, _ in ropes]),
            torch.cat([sin for _, sin in ropes]),
            counts,
            [rows.cache.keys for rows in several],
            [rows.cache.values for rows in several],
            [rows.cache.length for rows in several],
            [rows.added(self.chains) for rows in several],
            [rows.causal for rows in several],
            layers,
            packed,
            self.heads,
            self.eps,
            list(taps),
        )
        # Copies: whoever keeps its own rows would keep everybody's.
        apart = [[own.clone() for own in part.split(counts)] for part in (hidden, *tapped)]
        return [(own[0], list(own[1:])) for own in zip(*apart, strict=True)]

    def _for(self, rows: int) -> tuple[list[LayerWeights], bool]:
        """The weights in the layout that is fastest for so many rows, and whether they are packed."""
        few = rows < FEW_ROWS and not self.reduced
        return (self.layers, False) if self.packed is None or few else (self.packed, True)


def no_later(places: Tensor, many: int, like: Tensor) -> Tensor:
    """The mask [T, many] to be added for rows at the places int64 [T] of a sequence, which see no row behind their own."""
    hidden = torch.arange(many, device=places.device) > places[:, None]
    return like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


@functools.cache
@torch.inference_mode()
def knows_chains(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether flash attention, called by its name, takes several rows for a chain behind the cached ones. It is for half
    precision, not on every GPU, and elsewhere (ROCm) its causal mask begins at the first key instead of ending at the last."""
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    drawn = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(count, rows, head_dim, generator=drawn).to(device, dtype)
        for count, rows in ((heads, 5), (kv_heads, 12), (kv_heads, 12))
    )
    hidden = torch.ones(5, 12, dtype=torch.bool, device=device).triu_(8)
    mask = torch.zeros(5, 12, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    wanted = attention(queries, keys, values, mask, 0)
    return works(lambda: attention(queries, keys, values, None, 0), wanted)


def layer_weights(layer: Layer) -> LayerWeights:
    """A decoder layer's tensors."""
    parts = (layer.input_norm, layer.qkv, layer.out, layer.post_norm, layer.gate_up, layer.down)
    return LayerWeights(*(part.detach() if isinstance(part, Tensor) else unpacked(part) for part in parts))


def final_weights(layer: Layer) -> LayerWeights:
    """A decoder layer's tensors, its matrices as `Linear.final` has them: each is laid out once."""
    norms = layer.input_norm.detach(), layer.post_norm.detach()
    return LayerWeights(norms[0], layer.qkv.final(), layer.out.final(), norms[1], layer.gate_up.final(), layer.down.final())


def packed_layer(layer: LayerWeights, unused: Collection[str] = ()) -> LayerWeights:
    """The same with matrices in oneDNN's layout, but for those that are `unused`."""
    wanted = {"qkv", "out", "gate_up", "down"} - set(unused)
    return LayerWeights(**{name: packed_weight(part) if name in wanted else part for name, part in layer._asdict().items()})
