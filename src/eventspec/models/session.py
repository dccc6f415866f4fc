"""Any of our own language models as a Target: a recording's visual rows and key-value prefix, one forward per round, a cache
that keeps the accepted path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from eventspec.core import (
    BadInput,
    Limits,
    Media,
    Proposal,
    Sampling,
    Scores,
    TappedPrompt,
    Target,
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.engine.numerics import measured_rounding
from eventspec.machine import arrived
from eventspec.models.features import FeatureCache, FeatureFolder
from eventspec.models.prefix import Prefix, Reading
from eventspec.models.prompt import FrameEncoder, Frames, Prompt, PromptEncoder
from eventspec.nn import Llama
from eventspec.nn.cache import Loan
from eventspec.nn.runner import Rows
from eventspec.tree import depths, is_chain, tree_mask

_DRAFT_ROWS = 160
"""Rows of a cache for draft nodes: they are dropped again, but they lie there while they are verified."""
_PROBE = 32


class LanguageTarget:
    """A vision-language model that verifies: `encoder` makes its prompt, its language model reads it."""

    lossless = True

    def __init__(self, encoder: PromptEncoder, lossless: bool = True) -> None:
        self.encoder, self.language, self.lossless = encoder, encoder.language, lossless

    @cached_property
    def limits(self) -> Limits:
        """As `core.Target.limits`."""
        config = self.language.config
        return Limits(config.vocab_size, config.num_hidden_layers, True, rounding_of(self.language))

    def encode(self, media: Media, trace: Trace) -> LanguageContext:
        """As `core.Target.encode`."""
        return LanguageContext(self.encoder, self.encoder.encode(media, trace, "target"))


def keeping(target: Target, limit: int, folder: Path | None = None) -> Target:
    """A target that does not encode a frame again that it has seen, sharing its model with `target`: it keeps at most `limit`
    bytes of rows, and all of them in a `folder`. One that is not ours, or sees no frames, as it is. BadInput for a folder that
    cannot be written."""
    if not isinstance(target, LanguageTarget) or not isinstance(target.encoder, FrameEncoder):
        return target
    with torch.inference_mode():
        kept = FeatureCache(limit, None if folder is None else FeatureFolder(folder, target.encoder.see))
    return LanguageTarget(target.encoder.keeping(kept), target.lossless)


class LanguageContext:
    """As `core.Context`: a recording's visual rows, and the prefix of the prompts about it."""

    def __init__(self, encoder: PromptEncoder, visual: Tensor) -> None:
        self.encoder, self.language, self.visual, self.prefix = encoder, encoder.language, visual, Prefix(encoder.language)
        self._whole = False

    def keep_outputs(self) -> None:
        """More questions are to come, by any method: what the last layer gives for a prompt's rows is kept, so that a head that
        comes later need not have them read again."""
        self._whole = True

    def extend(self, frames: Frames, trace: Trace) -> None:
        """As `core.Context.extend`."""
        began = trace.now()
        self.visual = self.encoder.extend(self.visual, frames)
        arrived(self.visual)
        trace.span("vision", "target", began)

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> LanguageSession:
        """As `core.Context.open`; raises BadInput when prompt and answer do not fit the context."""
        prompt = self.encoder.prompt(question, self.visual)
        total, most = len(prompt.rows), sampling.max_new_tokens
        trace.sizes.update(prompt=total, visual=prompt.visual[1] - prompt.visual[0])
        check_context(total, most, self.language.config.max_position_embeddings)
        whole = self._whole or bool(taps)
        session = LanguageSession(self.language, *self.prefix.begin(prompt, total + most + _DRAFT_ROWS, taps, whole))
        waiting = len(session.pending)
        if (rows := waiting - max(1, tail)) > 0:  # the last row stays: its forward gives the first logits
            began = trace.now()
            session.read(min(self.language.runner().whole(rows), waiting - 1))
            arrived(session.pending)
            trace.span("prefill", "target", began)
        return session


_ROUNDING: WeakKeyDictionary[Llama, tuple[object, float]] = WeakKeyDictionary()


def rounding_of(language: Llama) -> float:
    """How far apart logits may lie and yet change places when a row is scored among others: measured behind a random prompt,
    once for each model, and again when its weights lie elsewhere or have another precision."""
    weight = language.embed.weight
    state, known = (weight.data_ptr(), weight.dtype, weight.device), _ROUNDING.get(language)
    if known is None or known[0] != state:
        known = _ROUNDING[language] = state, _measured_rounding(language)
    return known[1]


def _measured_rounding(language: Llama) -> float:
    config = language.config
    length = min(_PROBE, config.max_position_embeddings // 2)
    device = language.embed.weight.device
    ids = torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).to(device)

    def begin() -> TargetSession:
        return fresh_session(language, Prompt(language.embed(ids), (0, 0)), 2 * length)

    with torch.inference_mode():
        return measured_rounding(begin, config.vocab_size, length - 1)


def check_context(rows: int, most: int, context: int) -> None:
    """BadInput when a prompt of so many rows and an answer of `most` tokens do not fit the context."""
    if rows + most > context:
        raise BadInput(
            f"prompt of {rows} rows and max_new_tokens {most} exceed the context of {context}: "
            "shorten the prompt, or ask for fewer frames or tokens"
        )


def fresh_session(language: Llama, prompt: Prompt, capacity: int) -> LanguageSession:
    """A session that has read nothing of its prompt yet."""
    return LanguageSession(language, Reading(prompt, language.new_cache(capacity), capacity))


class LanguageSession:
    """Pending prompt or bonus rows, and the cache behind them, which is borrowed where there is a `loan`; the features of the
    layers `taps` where a drafter reads them."""

    def __init__(self, language: Llama, reading: Reading, loan: Loan | None = None) -> None:
        self.language, self.cache, self.taps, self._reading, self._loan = language, reading.cache, reading.taps, reading, loan
        self.pending = reading.prompt.rows[reading.rows :]
        # `again` reads all at once, in a cache of this capacity (in a larger one keys lie at other strides), and no more of the
        # last layer than it needs.
        self.chunked = reading.rows > 0 or reading.cache.capacity != reading.capacity or reading.whole
        self._runner = language.runner()  # its weights are final for as long as an answer takes

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        hidden, features = self._step(Rows(self.pending[:rows], self.cache), None if self._reading.whole else 0)
        self._reading.add(rows, hidden, features)
        self.cache.keep(rows, [])
        self.pending, self.chunked = self.pending[rows:], True

    def _step(self, rows: Rows, wanted: int | None) -> tuple[Tensor, Tensor | None]:
        """The last layer's outputs of the last `wanted` new rows (None: of all), and the tapped features of all."""
        inner = inner_taps([self]) if self.taps else ()
        hidden, tapped = self._runner.step(rows, inner, wanted)
        return hidden, self.features(hidden, dict(zip(inner, tapped, strict=True))) if self.taps else None

    @property
    def room(self) -> int:
        """As `core.TargetSession.room`."""
        return self.cache.capacity - self.cache.length - len(self.pending)

    def again(self) -> TargetSession:
        """As `core.TargetSession.again`; equal capacity, so that keys lie at equal strides and kernels make equal sums."""
        return fresh_session(self.language, self._reading.prompt, self._reading.capacity)

    def prompt(self) -> TappedPrompt:
        """As `core.TargetSession.prompt`; copies, because the answer may be read again from these rows."""
        features, prompt = self._reading.features, self._reading.prompt
        return TappedPrompt(prompt.rows.clone(), torch.cat(features) if features else None, prompt.visual)

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: logits float [N+1, V]; the proposal fits `limits` and `room`."""
        kept = self.taps or (self._reading.whole and self._unread)
        hidden, features = self._step(self.asked(proposal), None if kept else len(proposal) + 1)
        return self.scored(hidden, features, self.language.logits(hidden[len(hidden) - len(proposal) - 1 :]))

    @property
    def _unread(self) -> bool:
        """Whether prompt rows are pending."""
        return self._reading.rows < len(self._reading.prompt.rows)

    def asked(self, proposal: Proposal) -> Rows:
        """The rows of a forward over what is pending and a proposal."""
        cache, pending = self.cache, self.pending
        count, waiting = len(proposal), len(pending)
        if not count:
            return Rows(pending, cache)
        assert count <= self.room, "the caller cuts proposals to the room there is"
        tokens = torch.from_numpy(proposal.tokens).to(pending.device)
        x = torch.cat((pending, self.language.embed(tokens)))
        parents = proposal.parents.tolist()
        if is_chain(parents):
            return Rows(x, cache)
        start = cache.length
        levels = [start + waiting + depth for depth in depths(parents)]
        positions = torch.tensor([*range(start, start + waiting), *levels], device=x.device)
        return Rows(x, cache, positions, tree_mask(parents, start, waiting, x.device), waiting)

    def scored(self, hidden: Tensor, features: Tensor | None, logits: Tensor) -> Scores:
        """Of the last pending row and the nodes behind it, from a forward over `asked`; logits [N+1, V] of these rows."""
        last = len(self.pending)
        arrived(logits)  # who asked needs them at once, and costs are learnt from the time they took
        if self._unread:
            self._reading.add(last, hidden, features)
        return Scores(logits, None if features is None else features[last - 1 :])

    def features(self, hidden: Tensor, tapped: Mapping[int, Tensor]) -> Tensor | None:
        """The tapped features [T, F] of a forward, if any are asked for, from the outputs of its layers."""
        if not self.taps:
            return None
        found = {**tapped, -1: self.language.normed(hidden)}
        return torch.cat([found[layer] for layer in self.taps], 1)

    def commit(self, verdict: Verdict) -> None:
        """As `core.TargetSession.commit`."""
        self.cache.keep(len(self.pending), verdict.path.tolist())
        bonus = torch.from_numpy(verdict.tokens[-1:]).to(self.pending.device)
        self.pending = self.language.embed(bonus)


def score_together(sessions: Sequence[LanguageSession], proposals: Sequence[Proposal]) -> list[Scores]:
    """As every session's `score` of its proposal, in one forward of the model that they share: trees of any shape, behind
    caches of any length. ValueError for sessions of different models."""
    if len(sessions) < 2:
        return [session.score(proposal) for session, proposal in zip(sessions, proposals, strict=True)]
    language, inner = sessions[0].language, inner_taps(sessions)
    if any(session.language is not language for session in sessions):
        raise ValueError("only sessions of one model share a forward")
    asked = [session.asked(proposal) for session, proposal in zip(sessions, proposals, strict=True)]
    passes = language.runner().step_together(asked, inner)
    wanted = [hidden[len(session.pending) - 1 :] for session, (hidden, _) in zip(sessions, passes, strict=True)]
    logits = language.logits(torch.cat(wanted)).split(list(map(len, wanted)))
    found = []
    for session, (hidden, tapped), own in zip(sessions, passes, logits, strict=True):
        found.append(session.scored(hidden, session.features(hidden, dict(zip(inner, tapped, strict=True))), own))
    return found


def inner_taps(sessions: Sequence[LanguageSession]) -> tuple[int, ...]:
    """The layers whose outputs sessions want, ascending; -1 is no layer."""
    return tuple(sorted({layer for session in sessions for layer in session.taps if layer >= 0}))
