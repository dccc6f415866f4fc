"""What methods are built of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eventspec.core import BadInput, Drafter, Modality, Target
from eventspec.drafters import Mixture, TextPrior
from eventspec.engine import DraftPolicy
from eventspec.models.hf_session import HfTarget
from eventspec.models.prompt import FrameEncoder, TextIds
from eventspec.models.session import LanguageTarget
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs.names import EVENT_METHOD
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
    sees_events: str = EVENT_METHOD
    """The method whose drafter sees events in method hybrid."""

    @property
    def language_target(self) -> LanguageTarget:
        """The target as one of our own models; BadInput where it is another's."""
        if not isinstance(self.target, LanguageTarget):
            raise BadInput(
                "this needs a target of our own (Video-LLaVA, EventGPT or a bundled pair), transformers opened this one"
            )
        return self.target

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
