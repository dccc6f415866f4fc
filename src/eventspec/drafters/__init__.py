"""What proposes tokens: the prompt's own n-grams, a text prior, an independent language model and what it wrote before, a model
with another tokenizer, one with a qualifier, a head on the target's features."""

from eventspec.drafters.cascade import Cascade as Cascade
from eventspec.drafters.heads.checkpoint import TrainedHead as TrainedHead
from eventspec.drafters.heads.checkpoint import export_speculators as export_speculators
from eventspec.drafters.heads.checkpoint import load_head as load_head
from eventspec.drafters.heads.checkpoint import save_head as save_head
from eventspec.drafters.heads.eagle import EagleConfig as EagleConfig
from eventspec.drafters.heads.eagle import EagleHead as EagleHead
from eventspec.drafters.heads.eagle3 import Eagle3Config as Eagle3Config
from eventspec.drafters.heads.eagle3 import Eagle3Head as Eagle3Head
from eventspec.drafters.heads.feature import FeatureDrafter as FeatureDrafter
from eventspec.drafters.heads.speculators import Verifier as Verifier
from eventspec.drafters.language_model import LanguageDrafter as LanguageDrafter
from eventspec.drafters.mixture import Mixture as Mixture
from eventspec.drafters.prior import PriorDrafter as PriorDrafter
from eventspec.drafters.prior import TextPrior as TextPrior
from eventspec.drafters.respelled import RespelledDrafter as RespelledDrafter
from eventspec.drafters.retokenized import Retokenized as Retokenized
from eventspec.drafters.texts import NgramDrafter as NgramDrafter
from eventspec.drafters.texts import ReferenceDrafter as ReferenceDrafter
from eventspec.drafters.texts import ReusedDrafter as ReusedDrafter
