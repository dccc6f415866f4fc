"""EAGLE-3's head (2503.01840): three of the target's layers fused into one feature, one decoder layer that reads it beside the
next token's embedding, and a head of its own over the tokens that answers really use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from eventspec.core import BadCheckpoint, BadInput
from eventspec.drafters.heads import speculators
from eventspec.drafters.heads.feature import feature_drafter
from eventspec.drafters.heads.head import LAYER, Family, Head, HeadConfig, HeadFolder, Recipe, TargetSizes
from eventspec.drafters.heads.unrolled import rollout
from eventspec.drafters.heads.views import PromptView
from eventspec.models import configuration as fields
from eventspec.nn.draft import DraftKernel
from eventspec.nn.layer import layer_weights
from eventspec.nn.linear import Linear, unpacked
from eventspec.nn.llama import LanguageEnds, Layer, rms_norm
from eventspec.nn.weights import HeadWeights


@dataclass(frozen=True)
class Eagle3Config(HeadConfig):
    """Sizes of one layer of the target's width; `taps`: the target's layers whose outputs are fused, ascending; `draft_vocab`:
    tokens the head can name; `norm_before_residual`: the layer adds to the normed feature, as many of `speculators` do, not to
    the feature itself, as the paper's."""

    taps: tuple[int, ...]
    draft_vocab: int
    norm_before_residual: bool = False


def usual_taps(layers: int) -> tuple[int, ...]:
    """Low, middle and high: the residual stream that enters layers 2, n/2 and n - 3 (as the published code counts)."""
    found = (2, layers // 2, layers - 3)
    return found if found[0] < found[1] < found[2] else tuple(sorted({max(1, layers // 4), layers // 2, layers}))


def new_head(sizes: TargetSizes) -> Eagle3Head:
    """With a vocabulary of the tokens that answers really use."""
    used = sorted({*sizes.used})
    config = Eagle3Config(sizes.layer, usual_taps(sizes.language.num_hidden_layers), len(used))
    return Eagle3Head(config, torch.tensor(used))


class Eagle3Head(Head):
    """Fusion of the tapped layers, one decoder layer over [embedding, feature], norm and head."""

    family = "eagle3"
    drafter = feature_drafter
    vocab_ids: Tensor

    def __init__(self, config: Eagle3Config, vocab_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config: Eagle3Config = config
        width = config.language.hidden_size
        self.taps = config.taps
        self.fc = Linear(len(config.taps) * width, width, bias=False)
        self.hidden_norm = nn.Parameter(torch.ones(width))
        self.layer = Layer(config.language, reads=2)
        self.norm = nn.Parameter(torch.ones(width))
        self.head = Linear(width, config.draft_vocab, bias=False)
        # d2t of the published layout is this minus the row's number.
        self.register_buffer("vocab_ids", torch.arange(config.draft_vocab) if vocab_ids is None else vocab_ids)
        self.view = PromptView()

    def features(self, tapped: Tensor) -> Tensor:
        fused: Tensor = self.fc(tapped)
        return fused

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert embedding_only is None  # here they are side by side, there is nothing to leave out
        eps = self.config.language.rms_norm_eps
        seen = rms_norm(hidden, self.hidden_norm, eps)
        return torch.cat((self.layer.normed(embeds), seen), -1), seen if self.config.norm_before_residual else hidden

    def scores(self, hidden: Tensor, target: LanguageEnds) -> Tensor:
        logits: Tensor = self.head(rms_norm(hidden, self.norm, self.config.language.rms_norm_eps))
        return logits

    def kernel(self, target: LanguageEnds) -> DraftKernel:
        layer = self.layer
        weights = HeadWeights(
            [layer_weights(layer)],
            unpacked(self.head),
            layer.heads,
            layer.eps,
            hidden_norm=self.hidden_norm.detach(),
            norm_residual=self.config.norm_before_residual,
            out_norm=self.norm.detach(),
            ids=self.vocab_ids,
        )
        return DraftKernel(weights)


def _fields(head: Eagle3Head) -> tuple[fields.Fields, fields.Fields]:
    if head.config.norm_before_residual:
        raise BadInput("the head has norm_before_residual, which SafeAILab's code has not: export it for speculators")
    top = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": head.config.draft_vocab}
    return {**top, speculators.TAPS: list(head.taps)}, {}


def _speculators(head: Eagle3Head, verifier: speculators.Verifier, dtype: str) -> fields.Fields:
    config, ids = head.config, head.vocab_ids.cpu()
    if config.draft_vocab == config.language.vocab_size and not torch.equal(ids, torch.arange(len(ids))):
        raise BadInput("the head names the target's tokens in another order, which speculators does not read")
    own = {"draft_vocab_size": config.draft_vocab, "norm_before_residual": config.norm_before_residual}
    return speculators.described(config.language, config.taps, own, verifier, dtype)


def _read(folder: HeadFolder) -> Callable[[], Eagle3Head]:
    sizes, data = folder.layer_sizes(), folder.data
    rows = folder.shape("lm_head.weight", 2, (1, folder.target.vocab_size))[0]
    folder.agrees("draft_vocab_size", rows, "the rows of lm_head.weight")
    for name in speculators.SWITCHES:
        folder.agrees(name, False, "our EAGLE-3 head has no such norm")
    normed = data.get("norm_before_residual", False)
    fields.require(data, "norm_before_residual", isinstance(normed, bool), "true or false")
    return partial(Eagle3Head, Eagle3Config(sizes, _taps(folder), rows, normed), _vocab_ids(folder, rows))


def _taps(folder: HeadFolder) -> tuple[int, ...]:
    """The layers that config.json names, or the usual ones."""
    data, layers = folder.data, folder.target.num_hidden_layers
    found, inner = data.get(speculators.TAPS), data.get("eagle_config")
    if found is None and isinstance(inner, dict):
        found = inner.get(speculators.TAPS)
    if found is None:
        return usual_taps(layers)
    wanted = f"ascending layers of the target, 0 to {layers}"
    return fields.ascending({speculators.TAPS: found}, speculators.TAPS, 0, wanted, layers)


def _vocab_ids(folder: HeadFolder, rows: int) -> Tensor:
    """Target ids of the head's rows, from d2t; without it the vocabularies are one."""
    most, checkpoint, path = folder.target.vocab_size, folder.checkpoint, folder.path
    if "d2t" not in checkpoint.at:
        if rows != most:
            raise BadCheckpoint(f"{path}: the head names {rows} tokens of {most} and has no table d2t of which ones")
        return torch.arange(rows)
    shape = checkpoint.at["d2t"].shape
    if shape != [rows]:
        raise BadCheckpoint(f"{path}: d2t is {shape}, wanted [{rows}]: a number for every row of lm_head.weight")
    ids = checkpoint.integers("d2t") + torch.arange(rows)
    if bool((ids < 0).any()) or bool((ids >= most).any()) or len(ids.unique()) != len(ids):
        raise BadCheckpoint(f"{path}: d2t does not name {rows} tokens of the target's {most}: it belongs to another vocabulary")
    return ids


FAMILY = Family[Eagle3Head](
    name="eagle3",
    title="EAGLE-3",
    head=Eagle3Head,
    recipes={"eagle3": Recipe(new_head, unroll=4, words=1.0, feature=0.0)},
    rollout=rollout,
    read=_read,
    recognises=lambda folder: "lm_head.weight" in folder.checkpoint.at,
    layer_name="midlayer.",
    names={"norm": "norm.weight", "head.": "lm_head.", "hidden_norm": f"{LAYER}hidden_norm.weight"},
    fields=_fields,
    speculators=_speculators,
)
