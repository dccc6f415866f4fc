"""Who proposes tokens: nobody, the prompt's own n-grams, a text prior, an independent language model, one with another
tokenizer, one cut to chains."""

from eventspec.drafters.chains import Chains
from eventspec.drafters.language_model import LanguageDrafter
from eventspec.drafters.ngram import NgramDrafter
from eventspec.drafters.nothing import Nothing
from eventspec.drafters.prior import PriorDrafter, TextPrior
from eventspec.drafters.retokenized import Retokenized

__all__ = ["Chains", "LanguageDrafter", "NgramDrafter", "Nothing", "PriorDrafter", "Retokenized", "TextPrior"]
