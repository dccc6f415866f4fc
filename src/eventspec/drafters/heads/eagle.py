"""EAGLE-1's head (2401.15077, section 4) and its vision-language form EagleVLM (2509.11815, section 3): one decoder layer that
predicts the target's next feature from this feature and the next token, and the target's own head to name tokens. MSD
(2505.14260) is the same, but for visual rows.

A feature is the vector that the target's head reads: the last layer's output after the final norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from eventspec.drafters.heads.feature import FeatureHead
from eventspec.drafters.heads.folder import HeadFolder
from eventspec.drafters.heads.head import LAYER, HeadInputs, Recipe
from eventspec.models import weights
from eventspec.models.checkpoint import without_memory
from eventspec.models.configuration import Fields
from eventspec.nn import LlamaConfig
from eventspec.nn.draft import DraftKernel
from eventspec.nn.layer import layer_weights
from eventspec.nn.linear import Linear, unpacked
from eventspec.nn.llama import LanguageEnds, Layer
from eventspec.nn.weights import HeadWeights


@dataclass(frozen=True)
class EagleConfig:
    """`language`: sizes of the one layer, with the target's width and vocabulary. `input_norm`: EagleVLM's added norm, which
    EAGLE-1 lacks. `bias`: of the reduction, which vLLM's loader does not know."""

    language: LlamaConfig
    input_norm: bool = True
    bias: bool = True


class EagleHead(FeatureHead):
    """Reduction of (embedding, feature) to one width, then one decoder layer."""

    title = "EAGLE"
    recipes: ClassVar[Mapping[str, Recipe]] = {
        # EagleVLM, unrolled for three steps.
        "eagle": Recipe(lambda sizes: EagleHead(EagleConfig(sizes.layer)), unroll=3),
        # The paper's head, one step.
        "eagle1": Recipe(lambda sizes: EagleHead(EagleConfig(sizes.layer, input_norm=False))),
    }

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config: EagleConfig = config
        width = config.language.hidden_size
        self.fc = Linear(2 * width, width, bias=config.bias)
        self.layer = Layer(config.language)
        if not config.input_norm:
            self.layer.input_norm = nn.Parameter(torch.empty(0), requires_grad=False)

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `FeatureHead.fuse_inputs`; without a feature the layer reads the embedding as it is."""
        x = self.fc(torch.cat((embeds, hidden), -1))
        if embedding_only is not None:
            x = torch.where(embedding_only[..., None], embeds.to(x.dtype), x)
        return (self.layer.normed(x) if self.config.input_norm else x), x

    def kernel(self, target: LanguageEnds) -> DraftKernel:
        """As `FeatureHead.kernel`."""
        bias, layer = self.fc.bias, self.layer
        parts = ([layer_weights(layer)], unpacked(target.head), layer.heads, layer.eps)
        return DraftKernel(HeadWeights(*parts, unpacked(self.fc), None if bias is None else bias.detach()))

    @classmethod
    def recognises(cls, folder: HeadFolder) -> bool:
        """As `Head.recognises`."""
        return "lm_head.weight" not in folder.checkpoint.at and "compressor" not in folder.own

    @classmethod
    def read(cls, folder: HeadFolder) -> Self:
        """As `Head.read`."""
        config = eagle_config(folder)
        with without_memory():
            return cls(config)

    def sources(self, layer: str = LAYER) -> weights.Sources:
        """As `Head.sources`."""
        names = {**weights.layer_sources(self.config.language, "layer.", layer), "fc.weight": [("fc.weight", 0)]}
        if not self.config.input_norm:
            del names["layer.input_norm"]
        if self.config.bias:
            names["fc.bias"] = [("fc.bias", 0)]
        return names

    def fields(self) -> tuple[Fields, Fields]:
        """As `Head.fields`."""
        # True is what SafeAILab's code takes for granted; vLLM would make attention biases of it.
        return {} if self.config.bias else {"bias": False}, super().fields()[1]

    def filled(self, folder: HeadFolder) -> None:
        """As `Head.filled`."""
        if not self.config.input_norm:
            self.layer.input_norm = nn.Parameter(torch.empty(0, dtype=self.fc.weight.dtype), requires_grad=False)


def eagle_config(folder: HeadFolder) -> EagleConfig:
    """Of a folder in EAGLE-1's layout; what it has is read off its tensors, and BadField where config.json says otherwise."""
    sizes, bias = folder.layer_sizes(), "fc.bias" in folder.checkpoint.at
    folder.agrees("draft_vocab_size", None, "there is no lm_head.weight")
    folder.agrees("bias", bias, f"fc.bias is {'there' if bias else 'not there'}")
    return EagleConfig(sizes, f"{LAYER}input_layernorm.weight" in folder.checkpoint.at, bias)


class MsdHead(EagleHead):
    """EAGLE's head for text, decoupled from vision (MSD, 2505.14260): a visual row is the layer's input as it is, without a
    feature and without the reduction."""

    title, kind = "MSD", "msd"
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "msd": Recipe(lambda sizes: MsdHead(EagleConfig(sizes.layer)), unroll=3, begins_with="eagle")
    }

    def prompt_view(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        """Pairs whose next row is visual are that row alone."""
        order = torch.arange(inputs.embeds.shape[-2], device=inputs.embeds.device)
        return replace(inputs, embedding_only=(order >= visual[0] - 1) & (order < visual[1] - 1))
