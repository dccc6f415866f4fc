"""Heads: small modules that draft from what the target computed, one module a family, and their folders."""

from eventspec.drafters.heads.checkpoint import TrainedHead as TrainedHead
from eventspec.drafters.heads.checkpoint import export_speculators as export_speculators
from eventspec.drafters.heads.checkpoint import load_head as load_head
from eventspec.drafters.heads.checkpoint import save_head as save_head
from eventspec.drafters.heads.eagle import EagleConfig as EagleConfig
from eventspec.drafters.heads.eagle import EagleHead as EagleHead
from eventspec.drafters.heads.eagle3 import Eagle3Config as Eagle3Config
from eventspec.drafters.heads.eagle3 import Eagle3Head as Eagle3Head
from eventspec.drafters.heads.families import FAMILIES as FAMILIES
from eventspec.drafters.heads.families import RECIPES as RECIPES
from eventspec.drafters.heads.families import family_of as family_of
from eventspec.drafters.heads.feature import FeatureDrafter as FeatureDrafter
from eventspec.drafters.heads.head import Drafting as Drafting
from eventspec.drafters.heads.head import Head as Head
from eventspec.drafters.heads.speculators import Verifier as Verifier
from eventspec.drafters.heads.training import Recipe as Recipe
from eventspec.drafters.heads.training import TargetSizes as TargetSizes
