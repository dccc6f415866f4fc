"""How the heads that are not of EAGLE's shape see a batch in training: ViSpec, DREAM, MASSV. What `unrolled.steps` is to
others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

from eventspec.drafters.dream import DreamHead
from eventspec.drafters.small_vlm import SmallVlm
from eventspec.drafters.vispec import VispecHead
from eventspec.nn import Llama
from eventspec.nn.llama import packed_attention
from eventspec.train.unrolled import ahead, shifted, steps, without
from eventspec.train.views import TargetBatch, View, few, hidden_where

Turns = tuple[Tensor, Tensor]
"""cos and sin [B, T, 1, d]."""


def vispec_steps(head: VispecHead, language: Llama, seen: TargetBatch, count: int) -> Iterator[Tensor]:
    """As `unrolled.steps`: few vectors for the visual rows, and the vector of them all in every feature behind."""
    vectors, whole = head.adaptor(seen.rows[:, seen.visual : seen.prefix])
    view = few(seen, head.taps, vectors)
    rope = language.cos[view.positions], language.sin[view.positions]
    whole = whole[:, None]
    behind = torch.arange(view.embeds.shape[1], device=whole.device)[:, None] >= seen.visual - 1
    hidden = head.fuse_global(view.tapped, whole * behind)
    return steps(
        head, view.embeds, hidden, rope, view.prefix, view.mask, count, view.plain, lambda out: head.fuse_global(out, whole)
    )


def first_block(head: DreamHead, view: View, rope: Turns) -> Tensor:
    """DREAM's first layer over the embeddings alone, [B, P + R, D]: no step changes it."""
    queries, keys, values = (part.transpose(1, 2) for part in head.first.project(head.first.normed(view.embeds), *rope))
    attended = packed_attention(queries, keys, values, view.prefix, view.mask)
    return head.first.finish(view.embeds, attended.transpose(1, 2).flatten(-2))


def dream_steps(head: DreamHead, rows: Tensor, view: View, rope: Turns, count: int) -> Iterator[Tensor]:
    """As `unrolled.steps`; `rows` are those of `first_block`."""
    prefix, mask = view.prefix, view.mask
    cross, last, (cos, sin) = head.cross, head.last, rope
    queries, keys, values = (part.transpose(1, 2) for part in cross.project(rows, head.features(view.tapped), cos, sin))
    seen = keys, values
    attended = packed_attention(queries, keys, values, prefix, mask)
    x = cross.finish(rows, attended.transpose(1, 2).flatten(-2))
    queries, keys, values = (part.transpose(1, 2) for part in last.project(last.normed(x), cos, sin))
    said = keys, values
    attended = packed_attention(queries, keys, values, prefix, mask)
    out = head.normed(last.finish(x, attended.transpose(1, 2).flatten(-2)))[:, prefix:]
    yield out
    rows, cos, sin = rows[:, prefix:], cos[:, prefix:], sin[:, prefix:]
    own_seen: list[tuple[Tensor, Tensor]] = []
    own_said: list[tuple[Tensor, Tensor]] = []
    for step in range(1, count):
        known = without(mask, prefix, step)
        queries, keys, values = (part.transpose(1, 2) for part in cross.project(rows, shifted(out, 1), cos, sin))
        own_seen.append((keys, values))
        attended = ahead(queries, seen, known, own_seen)
        x = cross.finish(rows, attended.transpose(1, 2).flatten(-2))
        queries, keys, values = (part.transpose(1, 2) for part in last.project(last.normed(x), cos, sin))
        own_said.append((keys, values))
        attended = ahead(queries, said, known, own_said)
        out = head.normed(last.finish(x, attended.transpose(1, 2).flatten(-2)))
        yield out


@torch.no_grad()
def sharpest(language: Llama, seen: TargetBatch, layers: tuple[int, ...]) -> Tensor:
    """Of every branch row the output of that one of the target's `layers` whose attention has the lowest entropy, the mean over
    its heads (DREAM, section 3.2): [B, R, D]."""
    prefix = seen.prefix
    mask = hidden_where(~seen.packed.mask.to(seen.logits.device))
    rope = language.cos[seen.positions], language.sin[seen.positions]
    entropies = []
    for number in layers:
        layer = language.decoder_layer(number - 1)
        queries, keys, _ = layer.project(layer.normed(seen.taps[number - 1]), *rope)
        keys = keys.repeat_interleave(layer.heads // layer.kv_heads, 2).transpose(1, 2)
        queries = queries[:, prefix:].transpose(1, 2) * layer.head_dim**-0.5
        logs = (queries @ keys.transpose(-1, -2) + mask.to(queries.dtype)).float().log_softmax(-1)
        entropies.append(-(logs.exp() * logs.clamp_min(-1e4)).sum(-1).mean(1))
    best = torch.stack(entropies).argmin(0)
    outputs = torch.stack([seen.taps[number][:, prefix:] for number in layers])
    return outputs.gather(0, best[None, ..., None].expand(1, *outputs.shape[1:]))[0]


def small_steps(head: SmallVlm, seen: TargetBatch, count: int) -> Iterator[Tensor]:
    """The small model's outputs, normed, behind each branch row's next token [B, R, d]: its own text is the target's as long as
    it is right, so every step ahead gives the same."""
    rows = head.rows(seen.ids, seen.rows.to(head.up.weight.dtype))
    hidden = head.language(rows, seen.positions, seen.prefix, seen.packed.mask.to(rows.device))
    return repeat(head.language.normed(hidden[:, seen.prefix :].roll(-1, 1)), count)
