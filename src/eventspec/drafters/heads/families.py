"""The table of families: one row each. A new head is a module in this room and a row here."""

from __future__ import annotations

from typing import Any

from eventspec.core import BadInput
from eventspec.drafters.heads import dream, eagle, eagle3, massv, specvlm, vispec
from eventspec.drafters.heads.head import Family, Head, Recipe

FAMILIES: tuple[Family[Any], ...] = (
    eagle.FAMILY,
    eagle3.FAMILY,
    specvlm.FAMILY,
    eagle.MSD,
    vispec.FAMILY,
    dream.FAMILY,
    massv.FAMILY,
)
"""The first one that recognises a folder reads it."""
RECIPES: dict[str, Recipe] = {name: recipe for family in FAMILIES for name, recipe in family.recipes.items()}
"""How heads are trained, by name."""


def family_of(head: Head) -> Family[Any]:
    """The row of a head's family; BadInput for one that is in no row."""
    found = next((family for family in FAMILIES if family.name == head.family), None)
    if found is None:
        known = ", ".join(family.name for family in FAMILIES)
        raise BadInput(f"head {type(head).__name__} is of family '{head.family}', which is none of {known}: add its row")
    return found
