"""Heads: small modules that draft from what the target computed, one module a family, and their folders."""

from eventspec.drafters.heads.checkpoint import load_head as load_head
from eventspec.drafters.heads.families import FAMILIES as FAMILIES
from eventspec.drafters.heads.families import RECIPES as RECIPES
from eventspec.drafters.heads.families import family_of as family_of
from eventspec.drafters.heads.head import Drafting as Drafting
from eventspec.drafters.heads.head import Head as Head
from eventspec.drafters.heads.head import Recipe as Recipe
from eventspec.drafters.heads.head import TargetSizes as TargetSizes
