"""EAGLE-1's head (2401.15077, section 4) and its vision-language form EagleVLM (2509.11815, section 3): one decoder layer that
predicts the target's next feature from this feature and the next token, and the target's own head to name tokens. MSD
(2505.14260) is the same, but for visual rows.

A feature is the vector that the target's head reads: the last layer's output after the final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from eventspec.drafters.heads.feature import feature_drafter
from eventspec.drafters.heads.head import LAYER, Family, Head, HeadConfig, HeadFolder, Recipe
from eventspec.drafters.heads.unrolled import rollout
from eventspec.drafters.heads.views import HeadInputs, PromptView
from eventspec.nn.draft import DraftKernel
from eventspec.nn.layer import layer_weights
from eventspec.nn.linear import Linear, unpacked
from eventspec.nn.llama import LanguageEnds, Layer
from eventspec.nn.weights import HeadWeights


@dataclass(frozen=True)
class EagleConfig(HeadConfig):
    """Sizes of one layer of the target's width. `input_norm`: EagleVLM's added norm, which EAGLE-1 lacks. `bias`: of the
    reduction, which vLLM's loader does not know."""

    input_norm: bool = True
    bias: bool = True


class EagleHead(Head):
    """Reduction of (embedding, feature) to one width, then one decoder layer; families that are EAGLE's head with another view
    of the prompt differ in `family`."""

    drafter = feature_drafter

    def __init__(self, config: EagleConfig, view: PromptView | None = None, family: str = "eagle") -> None:
        super().__init__()
        self.config: EagleConfig = config
        self.family = family
        width = config.language.hidden_size
        self.fc = Linear(2 * width, width, bias=config.bias)
        self.layer = Layer(config.language)
        if not config.input_norm:
            none = torch.empty(0, device="cpu")  # a tensor that no folder holds, so that it is never left without memory
            self.layer.input_norm = nn.Parameter(none, requires_grad=False)
        self.view = view or PromptView()

    def features(self, tapped: Tensor) -> Tensor:
        """They are what is tapped."""
        return tapped

    def force(self, branch: str) -> None:
        self.view.force(branch)

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `FeatureHead.fuse_inputs`; without a feature the layer reads the embedding as it is."""
        x = self.fc(torch.cat((embeds, hidden), -1))
        if embedding_only is not None:
            x = torch.where(embedding_only[..., None], embeds.to(x.dtype), x)
        return (self.layer.normed(x) if self.config.input_norm else x), x

    def kernel(self, target: LanguageEnds) -> DraftKernel:
        bias, layer = self.fc.bias, self.layer
        parts = ([layer_weights(layer)], unpacked(target.head), layer.heads, layer.eps)
        return DraftKernel(HeadWeights(*parts, unpacked(self.fc), None if bias is None else bias.detach()))


def eagle_config(folder: HeadFolder) -> EagleConfig:
    """Of a folder in EAGLE-1's layout; what it has is read off its tensors; BadField where config.json contradicts them."""
    sizes, bias = folder.layer_sizes(), "fc.bias" in folder.checkpoint.at
    folder.agrees("draft_vocab_size", None, "there is no lm_head.weight")
    folder.agrees("bias", bias, f"fc.bias is {'there' if bias else 'not there'}")
    return EagleConfig(sizes, f"{LAYER}input_layernorm.weight" in folder.checkpoint.at, bias)


FAMILY = Family[EagleHead](
    name="eagle",
    title="EAGLE",
    head=EagleHead,
    recipes={
        "eagle": Recipe(lambda sizes: EagleHead(EagleConfig(sizes.layer)), unroll=3),  # EagleVLM
        "eagle1": Recipe(lambda sizes: EagleHead(EagleConfig(sizes.layer, input_norm=False))),  # the paper's head
    },
    rollout=rollout,
    read=lambda folder: partial(EagleHead, eagle_config(folder)),
    recognises=lambda folder: "lm_head.weight" not in folder.checkpoint.at and "compressor" not in folder.own,
    # True is what SafeAILab's code takes for granted; vLLM would make attention biases of it.
    fields=lambda head: ({} if head.config.bias else {"bias": False}, {}),
)


class VisualAlone(PromptView):
    """Pairs whose next row is visual are that row alone."""

    def pairs(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        order = torch.arange(inputs.embeds.shape[-2], device=inputs.embeds.device)
        return replace(inputs, embedding_only=(order >= visual[0] - 1) & (order < visual[1] - 1))


def msd_head(config: EagleConfig) -> EagleHead:
    """EAGLE's head for text, decoupled from vision (MSD, 2505.14260): a visual row is the layer's input as it is, without a
    feature and without the reduction."""
    return EagleHead(config, VisualAlone(), "msd")


MSD = replace(
    FAMILY,
    name="msd",
    title="MSD",
    recipes={"msd": Recipe(lambda sizes: msd_head(EagleConfig(sizes.layer)), unroll=3, begins_with="eagle")},
    read=lambda folder: partial(msd_head, eagle_config(folder)),
    kind="msd",
)
