"""What methods are built of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from eventspec.core import BadInput, Drafter, Modality, Target
from eventspec.drafters import Mixture, TextPrior
from eventspec.engine import DraftPolicy
from eventspec.models.features import FeatureCache, FeatureFolder
from eventspec.models.folder import load_folder
from eventspec.models.hf_session import HfTarget
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.models.prompt import EventEncoder, FrameEncoder, TextIds
from eventspec.models.session import LanguageTarget
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs.names import EVENT_METHOD
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import Adapters, Packers
from eventspec.text import TokenSpace


@dataclass(frozen=True)
class Parts:
    """What methods are built of: a target with its tokens, and where its drafters lie."""

    target: Target
    tokens: TokenSpace
    target_needs: Modality = "frames"
    policy: DraftPolicy = field(default_factory=DraftPolicy)
    """What an independent drafter may draft beside this target."""
    notes: tuple[str, ...] = ()
    """What the trace says of every method."""
    prior: TextPrior | None = None
    heads: Mapping[str, Path] = field(default_factory=dict)
    head_chosen: bool = False
    """Whether a head was chosen by the caller: mixes then have it too."""
    drafters: Mapping[str, Path] = field(default_factory=dict)
    """Further event drafters by name."""
    packers: Packers | None = None
    adapters: Adapters | None = None
    mixture: Mixture = field(default_factory=Mixture)
    """How the drafts of several become one tree."""
    event_drafter: Drafter | None = None
    """Drafts in method cross-modal, from events, in the target's ids."""
    event_note: str | None = None
    """What the trace says of it."""
    open_drafter: Callable[[Path, LoadOptions], VisionLanguage] = load_folder
    """Opens one of `drafters`."""
    drafting: LoadOptions = field(default_factory=LoadOptions)
    """How, and where, checkpoints that draft are loaded."""
    sees_events: str = EVENT_METHOD
    """The method whose drafter sees events in method hybrid."""

    @classmethod
    def of(cls, target: VisionLanguage, drafting: VisionLanguage | None, file: PairFile | None) -> Parts:
        """A target, what a pair's file lists beside it, and an event model, which adapters read."""
        parts, frames = cls(target.target, target.tokens, target.modality, notes=target.notes), target.encoder
        events = None if drafting is None else drafting.encoder
        if file is None:
            return parts
        prior, mixture = (file.place(name) if name in file.files else None for name in ("prior", "mixture"))
        ours = frames if isinstance(frames, FrameEncoder) and frames.vision is not None else None
        theirs = events if isinstance(events, EventEncoder) and events.vision is not None else None
        other_ids = None if drafting is None or drafting.tokens.means(target.tokens) else drafting.tokens
        return replace(
            parts,
            prior=None if prior is None else TextPrior.load(prior),
            heads=file.places("heads"),
            drafters=file.places("drafters"),
            packers=None if ours is None else Packers(ours, file.places("packers")),
            adapters=None if theirs is None or ours is None else Adapters(theirs, ours, file.places("adapters"), other_ids),
            mixture=Mixture.load(mixture) if mixture is not None and mixture.is_file() else Mixture(),
        )

    @property
    def language_target(self) -> LanguageTarget:
        """The target as one of our own models; BadInput where it is another's."""
        if not isinstance(self.target, LanguageTarget):
            raise BadInput(
                "this needs a target of our own (Video-LLaVA, EventGPT or a bundled pair), transformers opened this one"
            )
        return self.target

    @property
    def frame_encoder(self) -> FrameEncoder:
        """The prompts of a target of our own that sees frames; BadInput for any other."""
        encoder = self.language_target.encoder
        if not isinstance(encoder, FrameEncoder):
            raise BadInput("this needs a target that sees frames")
        return encoder

    @property
    def ends(self) -> LanguageEnds:
        """What heads share with the target; BadInput for a target that has none."""
        if isinstance(self.target, LanguageTarget):
            return self.target.language
        if isinstance(self.target, HfTarget):
            return self.target.ends
        raise BadInput("heads draft for language models of our own and of transformers, this target is neither")

    @property
    def text_ids(self) -> TextIds | None:
        """The text of the target's prompt in ids, for a target of our own that sees frames; else None: it is not known."""
        encoder = self.target.encoder if isinstance(self.target, LanguageTarget) else None
        return encoder.text if isinstance(encoder, FrameEncoder) else None


def keeping(target: Target, limit: int, folder: Path | None = None) -> Target:
    """A target that does not encode a frame again that it has seen, sharing its model with `target`: it keeps at most `limit`
    bytes of rows, and all of them in a `folder`. One that is not ours, or sees no frames, as it is. BadInput for a folder that
    cannot be written."""
    if not isinstance(target, LanguageTarget) or not isinstance(target.encoder, FrameEncoder):
        return target
    with torch.inference_mode():
        kept = FeatureCache(limit, None if folder is None else FeatureFolder(folder, target.encoder.see))
    made = copy(target)  # what one has seen is known to both
    made.encoder = target.encoder.keeping(kept)
    return made
