"""DREAM's head (2505.19201): a decoder layer over embeddings alone, a gated cross-attention to the target's features, and a
second decoder layer; the target's own head names tokens.

As published: q and k norms, tanh gates on attention and feed-forward. Here the cross-attention is rotated by position, and a
predicted feature is looked at like a true one when drafts go deeper.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.core import BadInput
from eventspec.drafters.heads.feature import feature_drafter
from eventspec.drafters.heads.head import Family, Head, HeadConfig, Recipe
from eventspec.drafters.heads.unrolled import UnrolledAttention, shifted
from eventspec.drafters.heads.views import PromptView, Rollout, TargetBatch, View, hidden_where
from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.decode import apply_rope
from eventspec.nn.draft import CrossedKernel
from eventspec.nn.layer import layer_weights
from eventspec.nn.linear import unpacked
from eventspec.nn.llama import LanguageEnds, Layer, rms_norm
from eventspec.nn.weights import CrossWeights, HeadWeights


class Crossing(nn.Module):
    """Rows look at features: queries from the rows, keys and values from the features; what was seen joins by a gate."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.layer = Layer(config)
        self.query_norm, self.key_norm = (nn.Parameter(torch.ones(config.head_dim)) for _ in range(2))
        # Of attention and feed-forward; they begin half open: from zero, as published, a short training never opens them.
        self.gates = nn.Parameter(torch.full((2,), 0.5))

    def project(self, rows: Tensor, features: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries of rows [..., T, D]; rotated keys and values of features [..., T, D] at the same positions: [..., T,
        heads, head_dim] each. The weight is one, as in a decoder layer."""
        layer = self.layer
        width = layer.heads * layer.head_dim
        queries = F.linear(layer.normed(rows), layer.qkv.weight[:width].to(rows.dtype)).unflatten(-1, (layer.heads, -1))
        both = F.linear(features, layer.qkv.weight[width:].to(features.dtype)).unflatten(-1, (-1, layer.head_dim))
        keys, values = both.split((layer.kv_heads, layer.kv_heads), -2)
        normed = (rms_norm(x, norm, layer.eps) for x, norm in ((queries, self.query_norm), (keys, self.key_norm)))
        return *(apply_rope(x, cos, sin) for x in normed), values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """As `Layer.finish`, with gates."""
        seen, thought = self.gates.tanh()
        layer = self.layer
        x = x + seen * layer.out(attended)
        gate, up = layer.gate_up(rms_norm(x, layer.post_norm, layer.eps)).chunk(2, -1)
        finished: Tensor = x + thought * layer.down(F.silu(gate) * up)
        return finished


class DreamHead(Head):
    """Embeddings through the first layer, features by the crossing, then the last layer and its norm."""

    family = "dream"
    drafter = feature_drafter

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.first, self.cross, self.last = Layer(config.language), Crossing(config.language), Layer(config.language)
        self.norm = nn.Parameter(torch.ones(config.language.hidden_size))
        self.view = PromptView()

    def features(self, tapped: Tensor) -> Tensor:
        """They are what is tapped."""
        return tapped

    def normed(self, x: Tensor) -> Tensor:
        """The last layer's output -> the predicted feature, [..., D]."""
        return rms_norm(x, self.norm, self.config.language.rms_norm_eps)

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert embedding_only is None  # embedding and feature meet in the crossing, not before
        return embeds, hidden

    def kernel(self, target: LanguageEnds) -> CrossedKernel:
        crossing, heads = self.cross, self.cross.layer.heads
        layers = [layer_weights(layer) for layer in (self.first, crossing.layer, self.last)]
        width, matrix = heads * crossing.layer.head_dim, layers[1].qkv
        norms = (crossing.query_norm.detach(), crossing.key_norm.detach(), crossing.gates.detach().tanh(), self.norm.detach())
        cross = CrossWeights(*norms, matrix[:width], matrix[width:], layers[2].qkv[width:])
        return CrossedKernel(HeadWeights(layers, unpacked(target.head), heads, self.last.eps, cross=cross))


def rollout(head: DreamHead, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
    """As `Family.rollout`. The first layer learns from one in the target's middle: BadInput for a target whose attention
    cannot be had."""
    if not isinstance(target, Llama):
        raise BadInput("a DREAM head learns from attention inside the target: it is for targets of our own")
    view = batch.view(head.taps)
    rope = target.cos[view.positions], target.sin[view.positions]
    # The first layer sees the embeddings alone, [B, P + R, D]: no step changes what it makes of them.
    attended = UnrolledAttention(view)(*head.first.project(head.first.normed(view.embeds), *rope))
    rows = head.first.finish(view.embeds, attended)

    def middle() -> Tensor:
        found, mask = rows[:, view.prefix :], view.loss_mask
        true = sharpest(target, batch, middle_layers(target.config.num_hidden_layers)).roll(-1, 1)
        return F.smooth_l1_loss(found[mask].float(), true[mask].float())

    return Rollout(_steps(head, rows, view, rope, count), view.loss_mask, {"middle": middle})


def _steps(head: DreamHead, rows: Tensor, view: View, rope: tuple[Tensor, Tensor], count: int) -> Iterator[Tensor]:
    """As `unrolled.steps`, of the first layer's rows [B, P + R, D]."""
    cross_attention, self_attention = UnrolledAttention(view), UnrolledAttention(view)

    def step(rows: Tensor, features: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = head.cross.finish(rows, cross_attention(*head.cross.project(rows, features, cos, sin)))
        return head.normed(head.last.finish(x, self_attention(*head.last.project(head.last.normed(x), cos, sin))))

    out = step(rows, view.tapped, *rope)[:, view.prefix :]
    yield out
    rows, cos, sin = (part[:, view.prefix :] for part in (rows, *rope))
    for _ in range(1, count):
        out = step(rows, shifted(out, 1), cos, sin)
        yield out


def middle_layers(layers: int) -> tuple[int, ...]:
    """Of a target of so many layers those that DREAM looks for the sharpest attention in."""
    return tuple(range(2, max(2, int(0.4 * layers) + 1) + 1))


@torch.no_grad()
def sharpest(language: Llama, batch: TargetBatch, layers: tuple[int, ...]) -> Tensor:
    """Of every branch row the output of that one of the target's `layers` whose attention has the lowest entropy, the mean over
    its heads (DREAM, section 3.2): [B, R, D]."""
    prefix = batch.prefix
    mask = hidden_where(~batch.mask)
    rope = language.cos[batch.positions], language.sin[batch.positions]
    entropies = []
    for number in layers:
        layer = language.decoder_layer(number - 1)
        queries, keys, _ = layer.project(layer.normed(batch.taps[number - 1]), *rope)
        keys = keys.repeat_interleave(layer.heads // layer.kv_heads, 2).transpose(1, 2)
        queries = queries[:, prefix:].transpose(1, 2) * layer.head_dim**-0.5
        logs = (queries @ keys.transpose(-1, -2) + mask.to(queries.dtype)).float().log_softmax(-1)
        entropies.append(-(logs.exp() * logs.clamp_min(-1e4)).sum(-1).mean(1))
    best = torch.stack(entropies).argmin(0)
    outputs = torch.stack([batch.taps[number][:, prefix:] for number in layers])
    return outputs.gather(0, best[None, ..., None].expand(1, *outputs.shape[1:]))[0]


RECIPE = Recipe(
    lambda sizes: DreamHead(HeadConfig(sizes.layer)),
    unroll=2,
    words=1.0,
    feature=0.2,
    extra={"middle": 1.0},
    own_targets_only=True,
)
FAMILY = Family[DreamHead](
    name="dream",
    title="DREAM",
    head=DreamHead,
    recipes={"dream": RECIPE},
    rollout=rollout,
    read=lambda folder: partial(DreamHead, HeadConfig(folder.layer_sizes())),
    # Those one of which its first layer learns, and those below.
    layers_read=lambda head, layers: {near for middle in middle_layers(layers) for near in (middle - 1, middle)},
    kind="dream",
)
