"""Any of our own language models as a Target: a recording's visual rows and key-value prefix, one forward per round, a cache
that keeps the accepted path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
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
from eventspec.models.prompt import FrameEncoder, Frames, Prompt, PromptEncoder, timed_vision
from eventspec.nn import KVCache, Llama
from eventspec.nn.cache import LentCache, Loan
from eventspec.nn.runner import Rows
from eventspec.process_lock import ProcessLock
from eventspec.tree import depths, is_chain, tree_mask

_DRAFT_ROWS = 160
"""Rows of a cache for draft nodes: they are dropped again, but they lie there while they are verified."""
_PROBE = 32
SPARE = 128
"""Rows by which caches grow: a prompt that is a few tokens longer than the last one needs no copy of what was read."""


class LanguageTarget(Target):
    """A vision-language model that verifies: `encoder` makes its prompt, its language model reads it."""

    lossless = True

    def __init__(self, encoder: PromptEncoder, lossless: bool = True) -> None:
        self.encoder, self.language, self.lossless = encoder, encoder.language, lossless
        self._rows: WeakKeyDictionary[Media, Tensor] = WeakKeyDictionary()

    @cached_property
    def limits(self) -> Limits:
        config = self.language.config
        return Limits(config.vocab_size, config.num_hidden_layers, True, rounding_of(self.language), batches=True)

    def encode(self, media: Media, trace: Trace) -> LanguageContext:
        rows = self.encoder.encode(media, trace, "target")
        return LanguageContext(self.encoder, rows, partial(self._rows.__setitem__, media))

    def seen(self, media: Media) -> Tensor | None:
        """The visual rows of a recording that was encoded, as long as its `Media` lives; from any thread."""
        rows = self._rows.get(media)
        return None if rows is None or not len(rows) else rows

    def score(self, batch: Sequence[tuple[TargetSession, Proposal]]) -> list[Scores]:
        if len(batch) == 1:
            return [batch[0][0].score(batch[0][1])]
        sessions = [session for session, _ in batch]
        assert all(isinstance(session, LanguageSession) for session in sessions), "this target's own sessions"
        return score_together(sessions, [proposal for _, proposal in batch])  # type: ignore[arg-type]


@dataclass
class Reading:
    """What has been read of a prompt, in `cache`: so many `rows`, and what the layers that `outputs` names (from 1, 0 = the
    embedding) gave for each, in parts. capacity: rows of a cache for this prompt and its answer alone."""

    prompt: Prompt
    cache: KVCache
    capacity: int
    outputs: dict[int, list[Tensor]] = field(default_factory=dict)
    rows: int = 0

    def add(self, rows: int, outputs: Mapping[int, Tensor]) -> None:
        """So many more rows were read; the layers' outputs begin with theirs."""
        self.rows += rows
        for layer, parts in self.outputs.items():
            parts.append(outputs[layer][:rows])


class Prefix:
    """The latest reading's cache, cut to what does not depend on the question, for `language`. Several threads may ask."""

    def __init__(self, language: Llama) -> None:
        self.language = language
        self._latest: Reading | None = None
        self._lent: LentCache | None = None
        self._lock = ProcessLock()

    def begin(self, prompt: Prompt, capacity: int, layers: Collection[int] = ()) -> tuple[Reading, Loan]:
        """A reading of a prompt that keeps the outputs of `layers`, and has as much of it as was read before; `capacity` rows
        are for all that is to come. Its cache is the reader's until the loan is dropped."""
        capacity += -capacity % SPARE
        with self._lock:
            rows = self._known(prompt, layers)
            if self._lent is None or (not rows and self._lent.taken):
                self._lent = LentCache(self.language.new_cache(capacity))
            latest = self._latest
            kept = {layer: [_first(latest.outputs[layer], rows)] if rows and latest else [] for layer in layers}
            cache, loan = self._lent.lend(rows, capacity)
            reading = Reading(prompt, cache, capacity, kept, rows)
            if latest is not None and self._covers(latest, prompt, reading):
                latest.cache = self._lent.cache  # the same rows, in a larger cache maybe
            elif cache is self._lent.cache:
                self._latest = reading
        return reading, loan

    @staticmethod
    def _covers(latest: Reading, prompt: Prompt, reading: Reading) -> bool:
        """Whether the latest reading has all rows that a new one will leave, and outputs that the new one will not."""
        visual = reading.rows >= prompt.visual[1] == latest.prompt.visual[1]
        return visual and latest.outputs.keys() > reading.outputs.keys()

    def _known(self, prompt: Prompt, layers: Collection[int]) -> int:
        """How many rows the latest reading shares with a prompt; none where outputs of `layers` are wanted that it lacks."""
        latest = self._latest
        if latest is None or not latest.outputs.keys() >= set(layers):
            return 0
        rows = min(latest.prompt.visual[1], latest.rows, latest.cache.length, prompt.visual[1])
        return rows if rows and torch.equal(latest.prompt.rows[:rows], prompt.rows[:rows]) else 0


def _first(parts: list[Tensor], rows: int) -> Tensor:
    """The first rows of several parts; most often those of the first part."""
    return parts[0][:rows] if len(parts[0]) >= rows else torch.cat(parts)[:rows]


class LanguageContext:
    """As `core.Context`: a recording's visual rows, and the prefix of the prompts about it."""

    def __init__(self, encoder: PromptEncoder, visual: Tensor, tell: Callable[[Tensor], None] = lambda visual: None) -> None:
        self.encoder, self.language, self.visual, self.prefix = encoder, encoder.language, visual, Prefix(encoder.language)
        self._whole, self._tell = False, tell  # who else looks at its rows, now and whenever there are more
        tell(visual)

    def keep_outputs(self) -> None:
        """As `core.Context.keep_outputs`: what the last layer gives for a prompt's rows, so that a head that comes later need
        not have them read again."""
        self._whole = True

    def extend(self, frames: Frames, trace: Trace) -> None:
        self.visual = timed_vision(trace, "target", lambda: self.encoder.extend(self.visual, frames))
        self._tell(self.visual)

    def prompt_ids(self, question: str) -> list[int]:
        """As `core.Context.prompt_ids`: of the models that transformers has too."""
        encoder = self.encoder
        if not isinstance(encoder, FrameEncoder) or encoder.place is None:
            return []
        before, after = encoder.text(question)
        return [*before, *[encoder.place] * len(self.visual), *after]

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> LanguageSession:
        """As `core.Context.open`; raises BadInput when prompt and answer do not fit the context."""
        prompt = self.encoder.prompt(question, self.visual)
        total, most = len(prompt.rows), sampling.max_new_tokens
        trace.sizes.update(prompt=total, visual=prompt.visual[1] - prompt.visual[0])
        check_context(total, most, self.language.config.max_position_embeddings)
        layers = kept_layers(self.language, taps, self._whole)
        session = LanguageSession(self.language, *self.prefix.begin(prompt, total + most + _DRAFT_ROWS, layers), taps)
        waiting = len(session.pending)
        if (rows := waiting - max(1, tail)) > 0:  # the last row stays: its forward gives the first logits
            began = trace.now()
            session.read(min(self.language.runner().backend.whole(rows), waiting - 1))
            arrived(session.pending)
            trace.span("prefill", "target", began)
        return session


def kept_layers(language: Llama, taps: tuple[int, ...], whole: bool) -> set[int]:
    """The layers whose outputs for a prompt's rows are kept, for drafters that read `taps`. Where the last one is not computed
    as a `whole`, the one before it stands for it: what it gives can be had from that later, for the rows that are looked at."""
    last = language.config.num_hidden_layers
    kept = {last - 1 if tap in (-1, last) and not whole else last if tap < 0 else tap for tap in taps}
    return {*kept, last} if whole else kept


_ROUNDING: WeakKeyDictionary[Llama, tuple[object, float]] = WeakKeyDictionary()


def rounding_of(language: Llama) -> float:
    """How far apart logits may lie and yet change places when a row is scored among others: measured after a random prompt,
    once for each model, and again when its weights lie elsewhere or have another precision."""
    weight = language.embed.weight
    state, known = (weight.data_ptr(), weight.dtype, weight.device), _ROUNDING.get(language)
    if known is not None and known[0] == state:
        return known[1]
    config = language.config
    length = min(_PROBE, config.max_position_embeddings // 2)
    ids = torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).to(weight.device)

    def begin() -> TargetSession:
        return fresh_session(language, Prompt(language.embed(ids), (0, 0)), 2 * length)

    with torch.inference_mode():
        rounding = measured_rounding(begin, config.vocab_size, length - 1)
    _ROUNDING[language] = state, rounding
    return rounding


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
    """Pending prompt or bonus rows, and the cache before them, which is borrowed where there is a `loan`; the features of the
    layers `taps` where a drafter reads them."""

    def __init__(self, language: Llama, reading: Reading, loan: Loan | None = None, taps: tuple[int, ...] = ()) -> None:
        self.language, self.cache, self.taps, self._reading, self._loan = language, reading.cache, taps, reading, loan
        self.pending = reading.prompt.rows[reading.rows :]
        self._runner = language.runner()  # its weights are final for as long as an answer takes
        self._last = len(self._runner.layers)
        # `fresh_copy` reads all at once, in a cache of this capacity (in a larger one keys lie at other strides), and no more
        # of the last layer than it needs.
        whole = self._last in reading.outputs
        self.chunked = reading.rows > 0 or reading.cache.capacity != reading.capacity or whole
        self._latest: Tensor | None = None  # what the last layer gave for the prompt's last rows, [T', D]

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        _, outputs = self._step(Rows(self.pending[:rows], self.cache), 0)
        self._reading.add(rows, outputs)
        self.cache.keep(rows, [])
        self.pending, self.chunked = self.pending[rows:], True

    def _step(self, rows: Rows, wanted: int) -> tuple[Tensor, dict[int, Tensor]]:
        """The last layer's outputs of at least the last `wanted` new rows, and those of the layers that are kept, of all."""
        inner = inner_layers([self])
        hidden, tapped = self._runner.step(rows, inner, None if self.whole else wanted)
        return hidden, {**dict(zip(inner, tapped, strict=True)), self._last: hidden}

    @property
    def room(self) -> int:
        return self.cache.capacity - self.cache.length - len(self.pending)

    def fresh_copy(self) -> TargetSession:
        """As `core.TargetSession.fresh_copy`; equal capacity, so that keys lie at equal strides and kernels make equal sums."""
        return fresh_session(self.language, self._reading.prompt, self._reading.capacity)

    def prompt(self, visual: bool = True) -> TappedPrompt:
        """As `core.TargetSession.prompt`; copies, because the answer may be read again from these rows."""
        prompt = self._reading.prompt
        if self.taps and self._reading.rows < len(prompt.rows):
            raise ValueError("the prompt was not read yet: its features come with the first score")
        parts = [self._kept(layer, visual) for layer in self.taps]
        return TappedPrompt(prompt.rows.clone(), torch.cat(parts, 1) if parts else None, prompt.visual)

    def _kept(self, tap: int, visual: bool) -> Tensor:
        """The features [T, D] of the prompt's rows at one of the taps, without `visual` rows maybe not theirs."""
        if 0 <= tap < self._last:
            return torch.cat(self._reading.outputs[tap])
        begin, end = self._reading.prompt.visual
        text_only = not visual and begin < end and self._last not in self._reading.outputs
        outputs = self._outputs_of_text() if text_only else self._outputs_of_last()
        features = self.language.normed(outputs) if tap < 0 else outputs
        if not text_only:
            return features
        found = features.new_zeros(len(self._reading.prompt.rows), features.shape[1])
        found[:begin], found[end:] = features[:begin], features[begin:]
        return found

    def _outputs_of_last(self) -> Tensor:
        """What the last layer gives for the prompt's rows [T, D]."""
        kept = self._reading.outputs
        if self._last in kept:
            return torch.cat(kept[self._last])
        return self._runner.last_outputs(torch.cat(kept[self._last - 1]), None, self.cache)

    def _outputs_of_text(self) -> Tensor:
        """What the last layer gives for the rows before and after the visual ones [T', D], in this order: of those after, the
        forward with a draft has given what it read; those before are the same for every recording."""
        prompt, (begin, end) = self._reading.prompt.rows, self._reading.prompt.visual
        entering = torch.cat(self._reading.outputs[self._last - 1])
        latest = entering[:0] if self._latest is None else self._latest
        latest = latest[max(0, len(latest) - len(prompt) + end) :]
        first = self._runner.opening(prompt[:begin], entering[:begin], self.cache)
        places = torch.arange(end, len(prompt) - len(latest), device=entering.device)
        between = self._runner.last_outputs(entering[places], places, self.cache) if len(places) else entering[:0]
        return torch.cat((first, between, latest))

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: logits float [N+1, V]; the proposal fits `limits` and `room`."""
        count = len(proposal) + 1
        hidden, outputs = self._step(self.asked(proposal), count + self._text_beside(proposal))
        normed = self.language.normed(hidden[len(hidden) - count :])
        return self.scored(outputs, normed, self.language.head(normed))

    def _text_beside(self, proposal: Proposal) -> int:
        """How many prompt rows after the visual ones, besides the last, the last layer is computed for beside a draft: a head
        will read what it gives for them. Here they cost next to nothing, later 1.3 ms (Zen 3). None where nothing is drafted:
        what plain decoding asks for is computed as it computes it."""
        begin, end = self._reading.prompt.visual
        if not len(proposal) or not self._unread or begin == end or not self._taps_last:
            return 0
        return max(0, min(len(self.pending), len(self._reading.prompt.rows) - end) - 1)

    @property
    def _taps_last(self) -> bool:
        """Whether a drafter reads what the last layer gives."""
        return bool({-1, self._last} & set(self.taps))

    @property
    def whole(self) -> bool:
        """Whether the next forward is to give the last layer's outputs for all its rows."""
        return self._unread and self._last in self._reading.outputs

    @property
    def _unread(self) -> bool:
        """Whether prompt rows are pending."""
        return self._reading.rows < len(self._reading.prompt.rows)

    @property
    def inner(self) -> set[int]:
        """The layers below the last whose outputs the next forward is to give."""
        kept = self._reading.outputs.keys() if self._unread else set[int]()
        return {layer for layer in (*self.taps, *kept) if 0 <= layer < self._last}

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
        levels = torch.tensor([start + waiting + depth for depth in depths(parents)])
        positions = torch.cat((torch.arange(start, start + waiting), levels)).to(x.device)
        return Rows(x, cache, positions, tree_mask(parents, start + waiting, device=x.device), waiting)

    def scored(self, outputs: Mapping[int, Tensor], normed: Tensor, logits: Tensor) -> Scores:
        """Of the last pending row and the nodes after it, from the layers' outputs of a forward over `asked`, of its last rows
        at least; normed [N+1, D] and logits [N+1, V] of these rows."""
        arrived(logits)  # the caller needs them at once, and costs are learnt from the time they took
        if self._unread:
            self._reading.add(len(self.pending), outputs)
            if self._taps_last:
                self._latest = outputs[self._last][: len(outputs[self._last]) - len(logits) + 1]
        own = {layer: part[len(part) - len(logits) :] for layer, part in outputs.items()} if self.taps else {}
        found = [normed if tap < 0 else own[tap] for tap in self.taps]
        return Scores(logits, torch.cat(found, 1) if found else None)

    def commit(self, verdict: Verdict) -> None:
        self.cache.keep(len(self.pending), verdict.path.tolist())
        bonus = torch.from_numpy(verdict.tokens[-1:]).to(self.pending.device)
        self.pending = self.language.embed(bonus)


def score_together(sessions: Sequence[LanguageSession], proposals: Sequence[Proposal]) -> list[Scores]:
    """As every session's `score` of its proposal, in one forward of the model that they share: trees of any shape, after
    caches of any length. ValueError for sessions of different models."""
    if len(sessions) < 2:
        return [session.score(proposal) for session, proposal in zip(sessions, proposals, strict=True)]
    language, inner = sessions[0].language, inner_layers(sessions)
    if any(session.language is not language for session in sessions):
        raise ValueError("only sessions of one model share a forward")
    asked = [session.asked(proposal) for session, proposal in zip(sessions, proposals, strict=True)]
    passes = language.runner().step_together(asked, inner)
    wanted = [hidden[len(session.pending) - 1 :] for session, (hidden, _) in zip(sessions, passes, strict=True)]
    normed, counts, last = language.normed(torch.cat(wanted)), list(map(len, wanted)), len(language.runner().layers)
    outputs = [{**dict(zip(inner, tapped, strict=True)), last: hidden} for hidden, tapped in passes]
    own = zip(sessions, outputs, normed.split(counts), language.head(normed).split(counts), strict=True)
    return [session.scored(*found) for session, *found in own]


def inner_layers(sessions: Sequence[LanguageSession]) -> tuple[int, ...]:
    """The layers below the last whose outputs sessions want of their next forward, ascending."""
    return tuple(sorted({layer for session in sessions for layer in session.inner}))
