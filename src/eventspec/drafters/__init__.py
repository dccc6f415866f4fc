"""Who proposes tokens: the prompt's own n-grams, a text prior, an independent language model, a look into what it wrote before,
a model with another tokenizer, one behind a qualifier, a head on the target's features."""

from eventspec.drafters.cascade import Cascade
from eventspec.drafters.heads import (
    Eagle3Config,
    Eagle3Head,
    EagleConfig,
    EagleHead,
    FeatureDrafter,
    TrainedHead,
    Verifier,
    export_speculators,
    load_head,
    save_head,
)
from eventspec.drafters.language_model import LanguageDrafter
from eventspec.drafters.mixture import Mixture
from eventspec.drafters.ngram import NgramDrafter
from eventspec.drafters.prior import PriorDrafter, TextPrior
from eventspec.drafters.reference import ReferenceDrafter
from eventspec.drafters.retokenized import Retokenized
from eventspec.drafters.reused import ReusedDrafter

__all__ = [
    "Cascade",
    "Eagle3Config",
    "Eagle3Head",
    "EagleConfig",
    "EagleHead",
    "FeatureDrafter",
    "LanguageDrafter",
    "Mixture",
    "NgramDrafter",
    "PriorDrafter",
    "ReferenceDrafter",
    "Retokenized",
    "ReusedDrafter",
    "TextPrior",
    "TrainedHead",
    "Verifier",
    "export_speculators",
    "load_head",
    "save_head",
]
