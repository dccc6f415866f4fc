"""How a checkpoint folder is loaded, and what comes out of it: what answers, what may draft, and which ids mean what."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from eventspec.core import BadInput, Modality, Target
from eventspec.errors import several
from eventspec.machine import SPREAD, unusable
from eventspec.models.prompt import PromptEncoder
from eventspec.models.session import LanguageTarget
from eventspec.text import TokenSpace

PRECISIONS = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadOptions:
    """How a folder is loaded. dtype None keeps the file's; frames None takes config.json's number; `compat` and
    `feature_bytes` (size of the frame cache, 0 = none) concern one architecture each; `quantized` those that transformers
    opens, on CUDA. `ignore_generation_config`: of generation_config.json nothing counts but the ids that end an answer.
    `device` "auto": over all CUDA devices, layer by layer, for targets that transformers opens and that fit no single one.
    `drafter_device`: where a drafter beside it runs, None for the same device, or the first one. BadInput for a device
    that is not there: before any weight is read."""

    dtype: torch.dtype | None = torch.float32
    device: str = "cpu"
    frames: int | None = None
    allow_extrapolation: bool = False
    compat: bool = False
    feature_bytes: int = 0
    quantized: Literal["nf4", "int8"] | None = None
    ignore_generation_config: bool = False
    drafter_device: str | None = None

    @classmethod
    def named(cls, dtype: str = "float32", **others: Any) -> LoadOptions:
        """With a precision by name: float32, bfloat16, float16, auto (as stored), nf4, int8 (of the target; the drafter's is
        bfloat16 then). BadInput for another name, or for an option that there is not."""
        known = {item.name for item in fields(cls)} - {"quantized"}
        if unknown := sorted(set(others) - known):
            raise BadInput(f"there is no option '{unknown[0]}' for checkpoints: choose from {', '.join(sorted(known))}")
        if not isinstance(dtype, str):
            raise BadInput(f"dtype is a {type(dtype).__name__}: give its name, such as 'bfloat16'")
        if dtype in ("nf4", "int8"):
            return cls(torch.bfloat16, quantized="nf4" if dtype == "nf4" else "int8", **others)
        if dtype not in PRECISIONS:
            raise BadInput(f"dtype '{dtype}' is unknown: choose one of {', '.join([*PRECISIONS, 'nf4', 'int8'])}")
        return cls(PRECISIONS[dtype], **others)

    def __post_init__(self) -> None:
        if self.frames is not None and (type(self.frames) is not int or self.frames < 1):
            raise BadInput(f"frames is {self.frames!r}: give a whole number from 1 on, or None")
        for device in (self.first, self.drafter_device or self.first):
            _check_device(device)

    @property
    def first(self) -> str:
        """The first of its devices."""
        return first_of(self.device)

    @property
    def drafting(self) -> LoadOptions:
        """How a drafter beside it is loaded."""
        own = replace(self, frames=None, allow_extrapolation=False, quantized=None, drafter_device=None)
        return replace(own, device=self.drafter_device or self.first)


def first_of(device: str) -> str:
    """The device itself, or the first one of those that a model is spread over."""
    return "cuda:0" if device == SPREAD else device


def _check_device(device: str) -> None:
    """BadInput for one that is not there."""
    if not isinstance(device, str):
        raise BadInput(f"device is a {type(device).__name__}: give its name, such as cpu or cuda:1")
    why = unusable(device)
    if why is None:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError):
            cards = several(torch.cuda.device_count(), "CUDA device is", "CUDA devices are")
            why = f"{cards} found" if device.startswith("cuda") else "torch finds none"
    if why is not None:
        raise BadInput(f"device '{device}' cannot be used ({why}): choose cpu, or what `eventspec doctor` finds")


@dataclass(frozen=True)
class VisionLanguage:
    """A loaded checkpoint."""

    name: str
    target: Target
    tokens: TokenSpace
    modality: Modality
    dtype: torch.dtype
    """Of what a decoding step reads."""
    weight_bytes: int
    """Of what a decoding step reads."""
    encoder: PromptEncoder | None = None
    """None where it can answer but not draft."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, encoder: PromptEncoder, tokens: TokenSpace, modality: Modality, notes: tuple[str, ...] = ()
    ) -> VisionLanguage:
        """One of our own models: it answers, and it drafts."""
        weights = list(encoder.language.parameters())
        size = sum(weight.nbytes for weight in weights)
        return cls(name, LanguageTarget(encoder), tokens, modality, weights[0].dtype, size, encoder, notes)
