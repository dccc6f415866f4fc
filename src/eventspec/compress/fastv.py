"""FastV as published (ECCV 2024, 2403.06764, section 4): visual rows that the prompt's last row attends to least in layer K
leave the forward behind that layer. Those that stay keep their positions, and the layers up to K keep them all.

The decoder is run as two: the layers up to K over the whole prompt, the others over what stays; each with a cache of its own.
LOSSY: it answers otherwise than the target that reads all rows in every layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eventspec.compress.reductions import attention_of_last
from eventspec.core import (
    BadInput,
    Context,
    Limits,
    Media,
    Proposal,
    Sampling,
    Scores,
    TappedPrompt,
    Target,
    Trace,
    Verdict,
)
from eventspec.machine import arrived
from eventspec.models.prompt import Frames, Prompt, PromptEncoder
from eventspec.models.session import check_context, rounding_of
from eventspec.nn import KVCache, Llama
from eventspec.nn.runner import DecoderRunner, Rows
from eventspec.tree import depths, is_chain, tree_mask

BEHIND = 2
"""The paper's K: layers that see every row. The scores are those of the last one of them, as in its released code."""
NODES = 160
"""Rows of a cache for draft nodes."""


class FastVTarget(Target):
    """`encoder`'s target, of whose visual rows one of `size` stays behind layer `behind`."""

    lossless = False

    def __init__(self, encoder: PromptEncoder, size: int, behind: int = BEHIND) -> None:
        self.encoder, self.language, self.size = encoder, encoder.language, size
        count = self.language.config.num_hidden_layers
        if not 1 <= behind < count:
            raise BadInput(f"fastv drops rows behind layer {behind}: the target has {count}, one must be left behind it")
        self.behind = behind
        layers = [self.language.decoder_layer(number) for number in range(count)]
        tables = self.language.cos, self.language.sin
        self.parts = DecoderRunner(layers[:behind], *tables), DecoderRunner(layers[behind:], *tables)

    @property
    def limits(self) -> Limits:
        config = self.language.config
        return Limits(config.vocab_size, config.num_hidden_layers, True, rounding_of(self.language))

    def encode(self, media: Media, trace: Trace) -> FastVContext:
        return FastVContext(self, self.encoder.encode(media, trace, "target"))


class FastVContext(Context):
    """As `core.Context`. Which rows stay depends on the question, so none shares a prefix with another."""

    def __init__(self, target: FastVTarget, visual: Tensor) -> None:
        self.target, self.visual = target, visual

    def extend(self, frames: Frames, trace: Trace) -> None:
        self.visual = self.target.encoder.extend(self.visual, frames)

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> FastVSession:
        """As `core.Context.open`: the whole prompt but its last row is read at once. BadInput where there are fewer visual rows
        than one of which is to stay, and where prompt and answer do not fit the context."""
        target = self.target
        prompt = target.encoder.prompt(question, self.visual)
        rows = prompt.visual[1] - prompt.visual[0]
        if target.size > rows:
            raise BadInput(f"fastv:{target.size} is more than the {rows} visual rows of the prompt: choose a smaller number")
        trace.sizes.update(prompt=len(prompt.rows), visual=rows)
        check_context(len(prompt.rows), sampling.max_new_tokens, target.language.config.max_position_embeddings)
        began = trace.now()
        session = FastVSession(target, prompt, len(prompt.rows) + sampling.max_new_tokens + NODES, taps)
        arrived(session.upper.pending)
        trace.span("prefill", "target", began)
        return session


@dataclass
class Part:
    """One of the two stacks of layers, its cache, and the rows float [T, D] that it has not read yet with their positions int64
    [T] in the prompt and the answer."""

    runner: DecoderRunner
    cache: KVCache
    pending: Tensor
    positions: Tensor


class FastVSession:
    """As `core.TargetSession`. The lower layers have read the whole prompt when it opens; the last row waits before the upper
    ones. Of the layers `taps` a drafter gets what they gave for the rows that stay."""

    chunked = False

    def __init__(self, target: FastVTarget, prompt: Prompt, capacity: int, taps: tuple[int, ...] = ()) -> None:
        self.target, self.language, self.taps = target, target.language, taps
        self._prompt, self._capacity, behind = prompt, capacity, target.behind
        caches = [_cache(target.language, len(runner.layers), capacity) for runner in target.parts]
        read = tuple(sorted({behind - 1, *(tap for tap in taps if 0 <= tap < behind)}))
        out, tapped = target.parts[0].step(Rows(prompt.rows, caches[0]), read)
        caches[0].keep(len(prompt.rows), [])
        lower = {**dict(zip(read, tapped, strict=True)), behind: out}
        kept = self.kept = _kept(target, prompt, lower[behind - 1])
        self.lower = Part(target.parts[0], caches[0], out[:0], kept[:0])
        self.upper = Part(target.parts[1], caches[1], out[kept], kept)
        self._below = {layer: part[kept] for layer, part in lower.items()}  # of what waits before the upper layers
        self._features: Tensor | None = None
        if len(kept) > 1:
            self._features = self._read(len(kept) - 1)

    @property
    def room(self) -> int:
        return self._capacity - self.lower.cache.length - len(self.lower.pending)

    def fresh_copy(self) -> FastVSession:
        return FastVSession(self.target, self._prompt, self._capacity)

    def prompt(self, visual: bool = True) -> TappedPrompt:
        """As `core.TargetPrompt.prompt`, of the rows that stay."""
        begin, end = self._prompt.visual
        gone = len(self._prompt.rows) - len(self.kept)
        return TappedPrompt(self._prompt.rows[self.kept], self._features if self.taps else None, (begin, end - gone))

    def _read(self, rows: int) -> Tensor | None:
        """Move the first rows that wait before the upper layers into their cache; their features [T, F]."""
        upper, below = self.upper, self._below
        out, outputs = self._above(Rows(upper.pending[:rows], upper.cache, upper.positions[:rows]))
        upper.cache.keep(rows, [])
        upper.pending, upper.positions = upper.pending[rows:], upper.positions[rows:]
        self._below = {layer: part[rows:] for layer, part in below.items()}
        return self._tapped({**{layer: part[:rows] for layer, part in below.items()}, **outputs}, self.language.normed(out))

    def _above(self, rows: Rows, wanted: int | None = None) -> tuple[Tensor, dict[int, Tensor]]:
        """What the last layer gives for the last `wanted` rows through the upper ones, and the tapped layers for all."""
        behind, runner = self.target.behind, self.upper.runner
        last = len(runner.layers)
        inner = tuple(sorted({tap - behind for tap in self.taps if behind < tap < behind + last}))
        out, found = runner.step(rows, inner, None if self.taps else wanted)
        return out, {**{layer + behind: part for layer, part in zip(inner, found, strict=True)}, behind + last: out}

    def _tapped(self, outputs: dict[int, Tensor], normed: Tensor) -> Tensor | None:
        return torch.cat([normed if tap < 0 else outputs[tap] for tap in self.taps], 1) if self.taps else None

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: logits float [N+1, V]."""
        lower, upper, count = self.lower, self.upper, len(proposal)
        device = lower.pending.device
        nodes = self.language.embed(torch.from_numpy(proposal.tokens).to(device))
        x = torch.cat((lower.pending, nodes)) if count else lower.pending
        parents, first = proposal.parents.tolist(), lower.cache.length + len(lower.pending)
        levels = torch.tensor([first + depth for depth in depths(parents)], dtype=torch.int64, device=device)
        positions = torch.cat((lower.positions, levels))
        read = tuple(sorted(self._below.keys() - {self.target.behind}))
        hidden, tapped = lower.runner.step(_rows(x, lower.cache, positions, parents), read) if len(x) else (x, [x] * len(read))
        below = {**dict(zip(read, tapped, strict=True)), self.target.behind: hidden}
        below = {layer: torch.cat((self._below[layer], part)) for layer, part in below.items()}
        positions = torch.cat((upper.positions, positions))
        out, outputs = self._above(_rows(below[self.target.behind], upper.cache, positions, parents), count + 1)
        normed = self.language.normed(out[len(out) - count - 1 :])
        own = {layer: part[len(part) - count - 1 :] for layer, part in {**below, **outputs}.items()}
        features = self._tapped(own, normed)
        if features is not None and len(upper.pending) and self._features is not None:
            self._features = torch.cat((self._features, features[:1]))  # the prompt's last row
        return Scores(self.language.head(normed), features)

    def commit(self, verdict: Verdict) -> None:
        path, tokens = verdict.path.tolist(), torch.from_numpy(verdict.tokens)
        bonus = self.language.embed(tokens[-1:].to(self.lower.pending.device))
        self.lower.cache.keep(len(self.lower.pending), path)
        # What waited before the upper layers went through the lower ones in the same forward, but for the prompt's last row.
        self.upper.cache.keep(len(self.upper.pending) + len(self.lower.pending), path)
        at = torch.full((1,), self.lower.cache.length, device=bonus.device)
        self.lower.pending, self.lower.positions = bonus, at
        self.upper.pending, self.upper.positions = bonus[:0], at[:0]
        self._below = {layer: part[:0] for layer, part in self._below.items()}


def _cache(language: Llama, layers: int, capacity: int) -> KVCache:
    config, weight = language.config, language.embed.weight
    return KVCache(layers, config.num_key_value_heads, config.head_dim, capacity, weight.dtype, weight.device)


def _kept(target: FastVTarget, prompt: Prompt, entering: Tensor) -> Tensor:
    """Places int64 [T'], ascending, of the rows that stay: all of text, and the most attended visual ones, by what goes into
    layer K, float [T, D]."""
    begin, end = prompt.visual
    count = -(-(end - begin) // target.size)
    shares = attention_of_last(target.language, target.behind - 1, entering)
    best = begin + shares[begin:end].topk(count).indices.sort().values
    text = torch.arange(len(prompt.rows), device=best.device)
    return torch.cat((text[:begin], best, text[end:]))


def _rows(x: Tensor, cache: KVCache, positions: Tensor, parents: list[int]) -> Rows:
    """New rows whose last ones are the nodes of a tree."""
    waiting = len(x) - len(parents)
    if not parents or is_chain(parents):
        return Rows(x, cache, positions)
    return Rows(x, cache, positions, tree_mask(parents, cache.length + waiting, device=x.device), waiting)
