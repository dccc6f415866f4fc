"""A target that sees fewer of its own visual rows. It is faster and it answers otherwise: lossy, and every result says so.

One row of `size` stays. prune: every `size`-th; pool: the mean of `size` neighbours; attention: those that the prompt's last
row attends to most, by the mean over heads in the third layer (FastV's ranking, 2403.06764; there rows are dropped from that
layer on and keep their positions, here they never enter, and those that stay move together).
"""

from __future__ import annotations

import torch
from torch import Tensor

from eventspec.compress.pool import Pooling
from eventspec.compress.prune import Pruning
from eventspec.core import BadInput, Request, Trace
from eventspec.models.session import LanguageTarget, Spliced
from eventspec.nn import Llama

KINDS = ("prune", "pool", "attention")
RANKED_BEHIND = 2
"""Layers before the one whose attention ranks the rows: FastV's K."""


class CompressedTarget(LanguageTarget):
    """`target` with its visual rows reduced by `size` in the way `kind`; BadInput for what is no way."""

    lossless = False

    def __init__(self, target: LanguageTarget, kind: str, size: int) -> None:
        if kind not in KINDS:
            raise BadInput(f"compression '{kind}' is unknown: choose one of {', '.join(KINDS)}")
        if size < 1:
            raise BadInput(f"{kind} with {size} leaves no visual token: give a whole number from 1 on")
        super().__init__(target.language, self._reduced, target.name)
        self.inner, self.kind, self.size = target, kind, size

    def _reduced(self, request: Request, trace: Trace, lane: str) -> Spliced:
        prompt = self.inner.rows(request, trace, lane)
        began, (begin, end) = trace.now(), prompt.visual
        rows = prompt.rows[begin:end]
        if self.kind == "attention":
            kept = rows[most_attended(self.language, prompt, -(-len(rows) // self.size))]
        else:
            kept, _ = (Pooling if self.kind == "pool" else Pruning)(self.size).eval()(rows)
        trace.span("compress", lane, began)
        trace.sizes["visual"] = len(kept)
        whole = torch.cat((prompt.rows[:begin], kept, prompt.rows[end:]))
        return Spliced(whole, (begin, begin + len(kept)))


def most_attended(language: Llama, prompt: Spliced, count: int) -> Tensor:
    """Places int64 [count], ascending, of the visual rows that the prompt's last row attends to most."""
    cache = language.new_cache(len(prompt.rows))
    _, tapped = language.step(prompt.rows, cache, taps=(RANKED_BEHIND,))
    layer = language.decoder_layer(RANKED_BEHIND)
    last = len(prompt.rows) - 1
    cos, sin = language.cos[last:], language.sin[last:]
    queries, _, _ = layer.project(layer.normed(tapped[0][last:]), cos[:1], sin[:1])
    keys = cache.keys[RANKED_BEHIND][:, : last + 1].repeat_interleave(layer.heads // layer.kv_heads, 0)
    shares = (queries[0][:, None] @ keys.transpose(1, 2) * layer.head_dim**-0.5).softmax(-1).mean((0, 1))
    begin, end = prompt.visual
    best: Tensor = shares[begin:end].topk(count).indices.sort().values
    return best
