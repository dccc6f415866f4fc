"""The table of families: every row is whole, and every head finds its own."""

from __future__ import annotations

import pytest
from torch import nn

from eventspec.drafters.heads import FAMILIES, RECIPES, TargetSizes, family_of
from eventspec.drafters.heads.head import Head
from eventspec.nn import LlamaConfig

SIZES = TargetSizes(LlamaConfig(40, 16, 24, 8, 2, 1, max_position_embeddings=64), tuple(range(20)), 2)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_a_head_of_its_own_family(name: str) -> None:
    head = RECIPES[name].make(SIZES)
    family = family_of(head)
    assert type(head) is family.head
    assert family.recipes[name] is RECIPES[name]
    assert family.sources(head)
    assert family.about(head)["head"]


def test_rows_cannot_be_mistaken_for_each_other() -> None:
    assert len(RECIPES) == sum(len(family.recipes) for family in FAMILIES)
    kinds = [family.kind for family in FAMILIES if family.kind is not None]
    assert len(set(kinds)) == len(kinds)
    assert len({family.title for family in FAMILIES}) == len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_heads_stand_two_levels_below_modules() -> None:
    for family in FAMILIES:
        assert family.head.__bases__ == (Head,)
    assert Head.__bases__ == (nn.Module,)
