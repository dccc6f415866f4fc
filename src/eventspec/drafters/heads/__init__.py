"""Heads: small modules that draft from what the target computed, one module a family, and their folders."""

from eventspec.drafters.heads.checkpoint import TrainedHead, export_speculators, load_head, save_head
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead
from eventspec.drafters.heads.eagle3 import Eagle3Config, Eagle3Head
from eventspec.drafters.heads.families import FAMILIES, RECIPES, family_of
from eventspec.drafters.heads.feature import FeatureDrafter
from eventspec.drafters.heads.head import Drafting, Head
from eventspec.drafters.heads.speculators import Verifier
from eventspec.drafters.heads.training import Recipe, TargetSizes

__all__ = [
    "FAMILIES",
    "RECIPES",
    "Drafting",
    "Eagle3Config",
    "Eagle3Head",
    "EagleConfig",
    "EagleHead",
    "FeatureDrafter",
    "Head",
    "Recipe",
    "TargetSizes",
    "TrainedHead",
    "Verifier",
    "export_speculators",
    "family_of",
    "load_head",
    "save_head",
]
