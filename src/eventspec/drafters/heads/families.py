"""The table of families: one row each. A new head is a module in this room and a row here."""

from __future__ import annotations

from eventspec.drafters.heads.dream import DreamHead
from eventspec.drafters.heads.eagle import EagleHead, MsdHead
from eventspec.drafters.heads.eagle3 import Eagle3Head
from eventspec.drafters.heads.head import Head, Recipe
from eventspec.drafters.heads.massv import SmallVlm
from eventspec.drafters.heads.specvlm import SpecvlmHead
from eventspec.drafters.heads.vispec import VispecHead

FAMILIES: tuple[type[Head], ...] = (EagleHead, Eagle3Head, SpecvlmHead, MsdHead, VispecHead, DreamHead, SmallVlm)
"""The first one that recognises a folder reads it."""


RECIPES: dict[str, Recipe] = {name: recipe for family in FAMILIES for name, recipe in family.recipes.items()}
"""How heads are trained, by name."""
