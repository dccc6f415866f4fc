"""Any transformers vision-language model as a Target: rows go in as `inputs_embeds`, trees as 4-D masks, and what the rule
refuses is taken out of the cache again. Nothing here imports transformers; `hf_target` opens the folders.

`cache.crop` is not used: what a positive number means changed between 5.17 and 5.23, and a tree's path needs a gather anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.engine.numerics import measured_rounding
from eventspec.machine import arrived
from eventspec.models.hf_prompt import HfPrompt, Prompter, alone
from eventspec.models.prompt import Frames
from eventspec.models.session import check_context
from eventspec.nn import LlamaConfig
from eventspec.nn.llama import LanguageEnds, rope_tables
from eventspec.tree import depths, is_chain, tree_mask
from eventspec.video.clip import uniform_indices

LONGEST = 100


@dataclass(frozen=True)
class HfLanguage:
    """The text half of a model: `model` called without pixels, an empty cache that grows, and its limits. context 0: none."""

    model: nn.Module
    new_cache: Callable[[], Any]
    vocabulary: int
    context: int
    trees: bool = True

    @property
    def layers(self) -> int:
        """How many decoder layers there are."""
        decoder: Any = self.model.get_decoder()  # type: ignore[operator]
        return len(decoder.layers)

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [N] -> rows float [N, D], as the model's own forward makes them."""
        rows: Tensor = self.model.get_input_embeddings()(ids)  # type: ignore[operator]
        return rows

    def step(
        self, prompt: HfPrompt, cache: Any, mask: Tensor | None, keep: int, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """One forward on top of the cache, which grows by its rows: logits float [keep, V] of the last rows, and the outputs of
        the layers `taps` (as in `core.Target.prefill`) side by side, [T, F].

        mask bool [T, past + T], True = may look; None: the model makes its own, causal or sliding.
        """
        seen: dict[int, Tensor] = {}
        positions = prompt.positions if len(prompt.positions) == 1 else prompt.positions[:, None]
        if 0 in taps:
            seen[0] = prompt.rows
        with alone(self.model):
            hooks = [self._tapped(layer).register_forward_hook(_keeps(seen, layer)) for layer in taps if layer]
            try:
                found = self.model(
                    inputs_embeds=prompt.rows[None],
                    attention_mask=None if mask is None else additive(mask, prompt.rows.dtype),
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=keep,
                )
            finally:
                for hook in hooks:
                    hook.remove()
        # Layers may lie on several devices: what is tapped comes to where the rows are, as logits do.
        tapped = [seen[layer].to(prompt.rows.device) for layer in taps]
        return found.logits[0, -keep:], torch.cat(tapped, 1) if taps else None

    def _tapped(self, layer: int) -> nn.Module:
        """The module whose output is a layer's; -1: the final norm's, which the head reads."""
        decoder: Any = self.model.get_decoder()  # type: ignore[operator]
        if layer > 0:
            inner: nn.Module = decoder.layers[layer - 1]
            return inner
        found = next((getattr(decoder, name) for name in FINAL_NORMS if hasattr(decoder, name)), None)
        if not isinstance(found, nn.Module):
            raise BadInput(f"{type(self.model).__name__} has no final norm that we know of: no head can draft for it")
        return found


FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
"""What models call the norm after their last layer."""


class HfEnds(LanguageEnds):
    """Both ends of a transformers model, for a draft head; `example` is a prompt to look at them with. BadInput for a model
    whose embedding is not a table, or whose logits are more than a matrix product after its final norm."""

    def __init__(self, language: HfLanguage, example: HfPrompt) -> None:
        super().__init__()
        model: Any = language.model
        self._whole: list[nn.Module] = [model]  # in a list: its parameters are not these ends' own
        embed, head, context = model.get_input_embeddings(), model.get_output_embeddings(), language.context
        if head.weight.device != embed.weight.device:  # of a model that is spread: a draft head runs on one device
            head = _linear(head.weight.to(embed.weight.device), getattr(head, "bias", None))
        ids = torch.arange(min(8, len(embed.weight)), device=embed.weight.device)
        rows, stored = embed(ids), embed.weight[ids]
        # Some models scale what the table gives; a head's passes read the table itself.
        scale = float((rows.float().norm() / stored.float().norm().clamp_min(1e-30)).item())
        if not torch.allclose(rows.float(), stored.float() * scale, rtol=1e-2, atol=1e-3):
            raise BadInput(f"{type(model).__name__} embeds tokens by more than a table: no head can draft for it")
        plain = torch.equal(rows, stored)
        with torch.inference_mode():
            logits, features = language.step(example, language.new_cache(), None, len(example), (-1,))
            own = head(features)
        factor = float((logits.float().norm() / own.float().norm().clamp_min(1e-30)).item())
        if getattr(head, "bias", None) is not None or not torch.allclose(
            logits.float(), own.float() * factor, rtol=2e-2, atol=2e-2 * float(logits.float().abs().max())
        ):
            raise BadInput(f"{type(model).__name__} makes more of its head's output than a scale: no head can draft for it")
        self.head = head
        if abs(factor - 1) > 1e-2:
            self.head = _linear(head.weight * factor)
        self.embed = embed if plain else nn.Embedding.from_pretrained(embed.weight.detach() * scale)
        text, width = model.config.get_text_config(decoder=True), embed.weight.shape[1]
        heads = next(count for count in range(getattr(text, "num_attention_heads", 1), 0, -1) if width % (2 * count) == 0)
        inner, layers = getattr(text, "intermediate_size", None) or 3 * width, len(model.get_decoder().layers)
        context = context or getattr(text, "max_position_embeddings", None) or 4096
        self.config = LlamaConfig(language.vocabulary, width, inner, layers, heads, heads, max_position_embeddings=context)
        cos, sin = rope_tables(self.config, context)
        self.register_buffer("cos", cos.to(embed.weight.device), persistent=False)
        self.register_buffer("sin", sin.to(embed.weight.device), persistent=False)

    @property
    def whole(self) -> nn.Module:
        found: nn.Module = self._whole[0]
        return found


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A product that learns nothing."""
    made = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().to(weight.device), requires_grad=False)
    return made


def _keeps(seen: dict[int, Tensor], layer: int) -> Callable[[Any, Any, Any], None]:
    """A hook that keeps a module's output [T, D]; decoder layers give it alone or first of several."""

    def keep(module: Any, inputs: Any, output: Any) -> None:
        seen[layer] = (output[0] if isinstance(output, tuple) else output)[0]

    return keep


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """bool [Q, K] -> float [1, 1, Q, K], 0 where one may look. Eager attention adds its mask: it takes a bool one silently and
    wrongly."""
    blocked = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return blocked.masked_fill_(~mask, torch.finfo(dtype).min)[None, None]


class HfTarget(Target):
    """A transformers model that verifies: `prompts` makes its prompt of so many `frames`, `language` reads it; `example` is a
    prompt to measure with."""

    lossless = True

    def __init__(self, language: HfLanguage, prompts: Prompter, frames: int, example: HfPrompt) -> None:
        self.language, self.prompts, self.frames, self.example = language, prompts, frames, example

    @cached_property
    def limits(self) -> Limits:
        language, example = self.language, self.example
        with torch.inference_mode():
            rounding = measured_rounding(lambda: fresh_session(language, example), language.vocabulary)
        return Limits(language.vocabulary, language.layers, language.trees, rounding)

    @cached_property
    def ends(self) -> HfEnds:
        """What a draft head shares with the model; BadInput where none can."""
        return HfEnds(self.language, self.example)

    def encode(self, media: Media, trace: Trace) -> HfContext:
        """As `core.Target.encode`; the frames are encoded with the first question about them, as the model does it."""
        if media.frames is None or len(media.frames.frames) == 0:
            raise BadInput("the recording has no frames in this window: the target needs RGB frames to answer")
        height, width = media.frames.frames.shape[1:3]
        if max(height, width) > LONGEST * min(height, width):  # scaled by their short side, they would fill the memory
            raise BadInput(f"frames are {width}x{height}: one side may be {LONGEST} times the other, cut them")
        return HfContext(self, media.frames.frames[uniform_indices(len(media.frames.frames), self.frames)])


@dataclass
class _Reading:
    """What has been read of a prompt, in `cache`, and the outputs of the layers `taps` as they come."""

    cache: Any
    prompt: HfPrompt
    taps: tuple[int, ...] = ()
    rows: int = 0
    features: list[Tensor] = field(default_factory=list)


class HfContext(Context):
    """As `core.Context`. Caches of transformers grow by copying, so sessions share what lies before them."""

    def __init__(self, target: HfTarget, frames: Frames) -> None:
        self.target, self.frames = target, frames
        self._known: tuple[Tensor, HfPrompt] | None = None  # ids and rows of an earlier question
        self._asked: tuple[str, Tensor] | None = None  # the latest question, and the ids of its prompt
        self._latest: _Reading | None = None

    def extend(self, frames: Frames, trace: Trace) -> None:
        together = len(self.frames) + len(frames)
        if together > self.target.frames:
            raise BadInput(f"{together} frames are more than the target takes ({self.target.frames}): begin another recording")
        self.frames, self._known, self._asked = np.concatenate((self.frames, frames)), None, None

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> HfSession:
        """As `core.Context.open`; raises BadInput when prompt and answer do not fit the context."""
        language, prompt = self.target.language, self._prompt(question, trace)
        trace.sizes.update(prompt=len(prompt), visual=prompt.visual)
        if language.context:
            check_context(len(prompt), sampling.max_new_tokens, language.context)
        self._latest = reading = self._begun(prompt, taps)
        session = HfSession(language, reading)
        if len(session.pending) > (waiting := max(1, tail)):
            began = trace.now()
            session.read(len(session.pending) - waiting)  # the last row stays: its forward gives the first logits
            trace.span("prefill", "target", began)
        return session

    def prompt_ids(self, question: str) -> list[int]:
        if self._asked is None or self._asked[0] != question:
            self._asked = question, self.target.prompts.inputs(question, self.frames)["input_ids"][0]
        found: list[int] = self._asked[1].tolist()
        return found

    def _prompt(self, question: str, trace: Trace) -> HfPrompt:
        began, prompts = trace.now(), self.target.prompts
        inputs = prompts.inputs(question, self.frames)
        self._asked = question, inputs["input_ids"][0]
        found = None if self._known is None else prompts.again(self._known[1], self._known[0], inputs)
        if found is None:
            with prompts.explained(len(self.frames), self.frames.shape):
                found = prompts.prompt(inputs)
            trace.span("vision", "target", began)
            self._known = inputs["input_ids"][0], found
        return found

    def _begun(self, prompt: HfPrompt, taps: tuple[int, ...]) -> _Reading:
        """A reading that has as much of the prompt as the latest one read of the same rows."""
        language, latest = self.target.language, self._latest
        reading = _Reading(language.new_cache(), prompt, taps)
        if latest is None or taps not in ((), latest.taps):
            return reading
        most = min(latest.rows, len(latest.prompt), len(prompt) - 1)
        same = (latest.prompt.rows[:most] == prompt.rows[:most]).all(1) & (
            latest.prompt.positions[:, :most] == prompt.positions[:, :most]
        ).all(0)
        different = (~same).nonzero()
        reading.rows = shared = int(different[0]) if len(different) else most
        for number, layer in enumerate(latest.cache.layers):
            if shared and layer.is_initialized:
                reading.cache.update(layer.keys[..., :shared, :], layer.values[..., :shared, :], number)
        reading.features = [torch.cat(latest.features)[:shared]] if shared and taps else []
        return reading


def fresh_session(language: HfLanguage, prompt: HfPrompt) -> HfSession:
    """A session that has read nothing of its prompt yet."""
    return HfSession(language, _Reading(language.new_cache(), prompt))


class HfSession:
    """Pending prompt or bonus rows, the cache before them, and `following`, the position of the next token."""

    def __init__(self, language: HfLanguage, reading: _Reading) -> None:
        self.language, self.cache, self.taps, self._reading = language, reading.cache, reading.taps, reading
        self.length, self.chunked = reading.rows, reading.rows > 0
        self.pending = reading.prompt.part(reading.rows, len(reading.prompt))
        self.following = int(reading.prompt.positions.max()) + 1

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        _, features = self.language.step(self.pending.part(0, rows), self.cache, None, 1, self.taps)
        self._remember(rows, features)
        self.pending, self.chunked = self.pending.part(rows, len(self.pending)), True
        self.length += rows

    @property
    def room(self) -> int:
        """As `core.TargetSession.room`: the cache grows."""
        return 1 << 30

    def fresh_copy(self) -> TargetSession:
        return fresh_session(self.language, self._reading.prompt)

    def prompt(self, visual: bool = True) -> TappedPrompt:
        """As `core.TargetSession.prompt`; copies, because the answer may be read again from these rows."""
        features, rows = self._reading.features, self._reading.prompt.rows
        return TappedPrompt(rows.clone(), torch.cat(features) if features else None, self._reading.prompt.span)

    def _remember(self, rows: int, features: Tensor | None) -> None:
        """Note that rows of the prompt are in the cache, and keep their features."""
        self._reading.rows += rows
        if features is not None:
            self._reading.features.append(features[:rows])

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`; the proposal fits `limits` and `room`."""
        pending, count = self.pending, len(proposal)
        parents = proposal.parents.tolist()
        straight = is_chain(parents)
        keep_rows(self.cache, self.length, [])  # an earlier score may not have been followed by a verdict
        mask = None if straight else tree_mask(parents, self.length, len(pending), pending.rows.device)
        scored = self._extended(pending, proposal.tokens.tolist(), depths(parents))
        logits, features = self.language.step(scored, self.cache, mask, count + 1, self.taps)
        arrived(logits)  # costs are learnt from the time they took
        if self._reading.rows < len(self._reading.prompt):
            self._remember(len(pending), features)
        return Scores(logits, None if features is None else features[len(pending) - 1 :])

    def commit(self, verdict: Verdict) -> None:
        accepted = len(verdict.path)
        self.length += len(self.pending)
        keep_rows(self.cache, self.length, verdict.path.tolist())
        self.length += accepted
        nothing = self.pending.part(0, 0)
        self.pending = self._extended(nothing, verdict.tokens[-1:].tolist(), [accepted])
        self.following += accepted + 1

    def _extended(self, prompt: HfPrompt, tokens: Sequence[int], levels: Sequence[int]) -> HfPrompt:
        """A prompt followed by tokens, each at its level: text has the same position in all rows of M-RoPE."""
        if not tokens:
            return prompt
        device = prompt.rows.device
        rows = self.language.embed(torch.tensor(tokens, device=device)).to(prompt.rows.dtype)
        positions = torch.tensor(levels, device=device) + self.following
        positions = positions.expand(len(prompt.positions), -1)
        return HfPrompt(torch.cat((prompt.rows, rows)), torch.cat((prompt.positions, positions), 1))


def keep_rows(cache: Any, rows: int, path: Sequence[int]) -> None:
    """Keep the first `rows` rows of every layer and those at the offsets `path` after them, ascending; drop the others."""
    for layer in cache.layers:
        if not layer.is_initialized:  # layers that share another's keys have none
            continue
        if list(path) == list(range(len(path))):
            kept = slice(0, rows + len(path))
            layer.keys, layer.values = layer.keys[..., kept, :], layer.values[..., kept, :]
            continue
        places = torch.tensor([*range(rows), *(rows + offset for offset in path)], device=layer.keys.device)
        layer.keys, layer.values = layer.keys.index_select(-2, places), layer.values.index_select(-2, places)
