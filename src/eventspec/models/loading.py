"""How a checkpoint folder is loaded, and what comes out of it: what answers, what may draft, and which ids mean what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from eventspec.core import BadInput, Target
from eventspec.models.session import LanguageTarget, Rows
from eventspec.nn import Llama
from eventspec.text import Vocabulary


@dataclass(frozen=True)
class Loading:
    """How a folder is loaded. dtype None keeps the file's; frames None takes config.json's number; `compat` and
    `feature_bytes` (size of the frame cache, 0 = none) concern one architecture each; `quantized` those that transformers
    opens, on CUDA. BadInput for a device that is not there: before any weight is read."""

    dtype: torch.dtype | None = torch.float32
    device: str = "cpu"
    frames: int | None = None
    allow_extrapolation: bool = False
    compat: bool = False
    feature_bytes: int = 0
    quantized: Literal["nf4", "int8"] | None = None

    def __post_init__(self) -> None:
        try:
            usable = torch.empty(0, device=self.device).device.type != "meta"
            why = "it has shapes and no numbers"
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            usable, why = False, str(error).splitlines()[0][:100]
        if not usable:
            raise BadInput(f"device '{self.device}' cannot be used ({why}): choose cpu, or what `eventspec doctor` finds")


@dataclass(frozen=True)
class Reader:
    """A language model of our own, and how a request becomes its prompt: all that a drafter needs."""

    language: Llama
    rows: Rows


@dataclass(frozen=True)
class VisionLanguage:
    """A loaded checkpoint. `reader` is None where it can answer but not draft; `ends` are further ids that end an answer;
    without `trees` the target reads chains only; dtype and weight_bytes are those of what a decoding step reads."""

    name: str
    target: Target
    vocabulary: Vocabulary
    end: int
    banned: tuple[int, ...]
    sees: Literal["frames", "events"]
    dtype: torch.dtype
    weight_bytes: int
    reader: Reader | None = None
    ends: tuple[int, ...] = ()
    trees: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        reader: Reader,
        vocabulary: Vocabulary,
        ends: tuple[int, ...],
        banned: tuple[int, ...],
        sees: Literal["frames", "events"],
        notes: tuple[str, ...] = (),
    ) -> VisionLanguage:
        """One of our own models: it answers, and it drafts. What ends an answer is never banned."""
        target, weights = LanguageTarget(reader.language, reader.rows), list(reader.language.parameters())
        size = sum(weight.nbytes for weight in weights)
        said = tuple(token for token in banned if token not in ends)
        return cls(name, target, vocabulary, ends[0], said, sees, weights[0].dtype, size, reader, ends[1:], notes=notes)
