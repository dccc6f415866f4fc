"""How the folder of a head is read and written, but for what all families share (`checkpoint`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from eventspec.drafters.heads.folder import LAYER, HeadFolder
from eventspec.drafters.heads.head import Head
from eventspec.drafters.heads.speculators import Verifier
from eventspec.models import weights
from eventspec.models.configuration import Fields

H = TypeVar("H", bound=Head)


@dataclass(frozen=True)
class Files(Generic[H]):
    """How folders of a family are recognised, read and written. `title`: as its paper writes it."""

    title: str
    read: Callable[[HeadFolder], Callable[[], H]]
    """What makes the head that config and tensors describe, to be called on the meta device; BadField or BadCheckpoint where
    one contradicts the other or the target."""
    kind: str | None = None
    """`eventspec.kind` of config.json, for a head that no other code loads; None: the tensors decide."""
    recognises: Callable[[HeadFolder], bool] = lambda folder: False
    """Whether a folder without a kind is one of this family, by its tensors and fields."""
    own_fields: tuple[str, ...] = ()
    """Fields of `eventspec` in config.json that only this family has."""
    layer_name: str = LAYER
    """What SafeAILab's layout calls its decoder layer."""
    target_width: Callable[[HeadFolder], int] = lambda folder: folder.target.hidden_size
    """The width of the target that a folder's head is for, read without the target: by default the head's own."""
    sources: Callable[[H, str], weights.Sources] = lambda head, layer: {
        name: [(name, 0)] for name, _ in head.named_parameters()
    }
    """Tensors' names in a folder whose layout calls the decoder layer `layer`; by default our own names."""
    fields: Callable[[H], tuple[Fields, Fields]] = lambda head: ({}, {})
    """Fields of SafeAILab's config.json besides the sizes, and of its part `eventspec` besides the kind; BadInput for a head
    that SafeAILab's code would run otherwise."""
    tables: Callable[[H], dict[str, Tensor]] = lambda head: {}
    """Tensors of a folder that are no weights."""
    filled: Callable[[H], None] = lambda head: None
    """Called once the weights are there."""
    speculators: Callable[[H, Verifier, str], Fields] | None = None
    """config.json in the layout of `speculators`, of a head, its target and a dtype's name; None: it has no such layout."""
    details: Callable[[H], dict[str, Any]] = lambda head: {}
    """Further fields of `about`."""

    @property
    def published(self) -> bool:
        """Whether the code of others reads such folders."""
        return self.kind is None and not self.own_fields

    def about(self, head: H) -> dict[str, Any]:
        """What `models check` reports of a head."""
        return {"head": self.title, **self.details(head)}
