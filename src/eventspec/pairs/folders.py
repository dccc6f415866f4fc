"""A pair of two checkpoint folders: a target, a drafter that may have another tokenizer, and how their ids meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from eventspec.core import BadInput, Drafter
from eventspec.drafters import NgramDrafter, Nothing
from eventspec.drafters.retokenized import Speaker
from eventspec.engine import Plan
from eventspec.engine.lanes import Lanes, choose_plan
from eventspec.models.folder import load_folder
from eventspec.models.loading import Loading, VisionLanguage
from eventspec.pairs.event_drafters import VOCABULARY_WAYS, joined
from eventspec.pairs.methods import FEATURE_METHODS, check_method
from eventspec.pairs.pair import Pair

WEIGHT_BYTES_PER_SECOND = {"cpu": 1e10, "cuda": 2e12}
"""What a decoding step reads its weights at, roughly; waiting times only, no result depends on it."""


def load_folders(
    target: Path,
    drafter: Path | None = None,
    *,
    method: str = "cross-modal",
    vocabulary: str = "auto",
    how: Loading | None = None,
    device_plan: str = "auto",
) -> Pair:
    """The pair of a target's and a drafter's checkpoint folder, ready for `method`; the drafter is loaded only if it is used.

    vocabulary: see `event_drafters.joined`. Raises BadInput and BadCheckpoint, one line each.
    """
    check_method(method)
    if vocabulary not in VOCABULARY_WAYS:
        raise BadInput(f"vocabulary '{vocabulary}' is unknown: choose one of {', '.join(VOCABULARY_WAYS)}")
    how = how or Loading()
    plan = choose_plan(device_plan, how.device, how.device)
    answering = load_folder(target, how)
    encode = answering.vocabulary.encode
    drafters: dict[str, Drafter] = {
        "autoregressive": Nothing(),
        "ngram": NgramDrafter(lambda question: encode(f"\n{question} ASSISTANT:")),
    }
    told = answering.notes + _precision(answering, how)
    notes = dict.fromkeys(("autoregressive", "ngram", "cross-modal", *FEATURE_METHODS), told)
    if method == "cross-modal":
        if drafter is None:
            raise BadInput("method cross-modal needs a drafter: give --drafter FOLDER, or --method autoregressive")
        drafting = load_folder(drafter, replace(how, frames=None, allow_extrapolation=False, quantized=None))
        ours = Speaker(answering.vocabulary, answering.end)
        drafters[method], note = joined(ours, drafting, vocabulary, (f"{drafter}", f"{target}"))
        notes[method] = (*told, note)
    return Pair(
        name=target.resolve().name,
        target=answering.target,
        drafters=drafters,
        vocabulary=answering.vocabulary,
        end=answering.end,
        ends=answering.ends,
        banned=answering.banned,
        budget=_budget(answering, how),
        lanes=Lanes(plan, how.device, how.device),
        notes=notes,
        sees=answering.sees,
        checkpoint=target,
    )


def _precision(target: VisionLanguage, how: Loading) -> tuple[str, ...]:
    """What the trace says where rounding decides near-ties: a chunk's forward and a single step's differ there."""
    if how.quantized is None and target.dtype in (torch.float32, torch.float64):
        return ()
    name = how.quantized or str(target.dtype).removeprefix("torch.")
    return (f"the target runs in {name}: identity is claimed in fp32 only",)


def _budget(target: VisionLanguage, how: Loading) -> Plan:
    """The usual budget with waiting times for a model of this size: a decoding step reads every weight once."""
    step = target.weight_bytes / WEIGHT_BYTES_PER_SECOND["cuda" if how.device.startswith("cuda") else "cpu"]
    usual = Plan()
    # In lower precision near ties are so many that settling them would be a second decoding.
    settle = not _precision(target, how)
    return replace(usual, step_seconds=max(usual.step_seconds, step), deadline=max(usual.deadline, 400 * step), settle=settle)
