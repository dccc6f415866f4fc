"""Method names: which drafter each one uses. The engine never sees them."""

from __future__ import annotations

from collections.abc import Iterable

from eventspec.core import BadInput

METHODS = {
    "autoregressive": "the baseline: the target alone",
    "cross-modal": "an event VLM drafts while the target encodes; verified in the forward that ends the target's prefill",
    "eagle": "an EAGLE head on the target's own features drafts a tree in every round",
    "specvlm": "the same, and the head sees the visual rows through an elastic compressor",
    "compressed-target": "LOSSY: the target alone, on fewer of its own visual rows",
    "ngram": "control: prompt lookup",
    "prior": "control: what answers to this question usually say, blind to the recording",
}


LOSSY = "compressed-target"
FEATURE_METHODS = ("eagle", "specvlm")
"""Methods whose drafts come from a head on the target's features."""
CHOICES = {"head": FEATURE_METHODS, "drafter": ("cross-modal",), "compress": (LOSSY,)}
"""What may be chosen beside a method, and the methods that use it."""


def check_method(name: str) -> str:
    """The name itself, or BadInput that lists the valid ones."""
    if name not in METHODS:
        raise BadInput(f"unknown method '{name}': choose one of {', '.join(METHODS)}")
    return name


def check_choices(method: str, given: Iterable[str]) -> None:
    """BadInput for one of `CHOICES` that was given and that the method would pass over."""
    for choice in given:
        if method not in CHOICES[choice]:
            raise BadInput(f"--{choice} is nothing to method {method}: it is for --method {' or '.join(CHOICES[choice])}")
