"""The table of families: one row each. A new head is a module in this room and a row here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eventspec.drafters.heads import dream, eagle, eagle3, massv, specvlm, vispec
from eventspec.drafters.heads.folder import Files
from eventspec.drafters.heads.head import Head
from eventspec.drafters.heads.training import Recipe, Training


@dataclass(frozen=True)
class Family:
    """What drafts, how it is trained, how its folder is read and written."""

    head: type[Head]
    training: Training[Any]
    files: Files[Any]

    @property
    def tree_policies(self) -> tuple[str, ...]:
        """How draft trees of its heads may grow."""
        return self.head.tree_policies


_TABLE = {
    "eagle": Family(eagle.EagleHead, eagle.TRAINING, eagle.FILES),
    "eagle3": Family(eagle3.Eagle3Head, eagle3.TRAINING, eagle3.FILES),
    "specvlm": Family(eagle.EagleHead, specvlm.TRAINING, specvlm.FILES),
    "msd": Family(eagle.EagleHead, eagle.MSD_TRAINING, eagle.MSD_FILES),
    "vispec": Family(eagle.EagleHead, vispec.TRAINING, vispec.FILES),
    "dream": Family(dream.DreamHead, dream.TRAINING, dream.FILES),
    "massv": Family(massv.SmallVlm, massv.TRAINING, massv.FILES),
}
FAMILIES = tuple(_TABLE.values())
"""The first one that recognises a folder reads it."""
RECIPES: dict[str, Recipe] = {name: recipe for family in FAMILIES for name, recipe in family.training.recipes.items()}
"""How heads are trained, by name."""


def family_of(head: Head) -> Family:
    """The row of a head's family."""
    return _TABLE[head.family]
