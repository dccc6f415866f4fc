"""A pair of checkpoint folders: a target, and a drafter that may have another tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from eventspec.core import BadInput
from eventspec.costs import fitted, learning, store_of
from eventspec.engine import DraftPolicy
from eventspec.engine.policy import GUESSED
from eventspec.errors import check_known
from eventspec.lanes.workers import Workers
from eventspec.models.folder import load_folder
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.pairs.event_drafters import in_target_ids
from eventspec.pairs.methods import build_methods
from eventspec.pairs.names import AUTO, EVENT_METHOD, SEEING_EVENTS, VOCABULARY_MAPPINGS, check_method
from eventspec.pairs.pair import Pair
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.parts import Parts

WEIGHT_BYTES_PER_SECOND = {"cpu": 1e10, "cuda": 2e12}
"""What a decoding step reads its weights at, roughly; waiting times only, no result depends on it."""
QUICK_STEP = 0.05
"""Seconds of a step, by that, up to which costs are measured when a pair is loaded: some hundred steps."""


def load_folders(
    target: Path,
    drafter: Path | None = None,
    *,
    method: str = AUTO,
    vocabulary: str = "auto",
    how: LoadOptions | None = None,
    device_plan: str = "auto",
    file: PairFile | None = None,
    fit: bool = False,
) -> Pair:
    """The pair of a target's and a drafter's checkpoint folder, ready for `method`; the drafter is loaded only if it is used.

    vocabulary: see `event_drafters.in_target_ids`. file: the pair.toml that they and what was trained for them are from. fit:
    policies go by what was measured, see `costs.fitted`, unless a step takes longer than `QUICK_STEP`; else, and without, by
    guesses and what rounds teach. Raises BadInput and BadCheckpoint, one line each.
    """
    check_method(method)
    check_known("vocabulary", [vocabulary], VOCABULARY_MAPPINGS)
    how = how or LoadOptions()
    workers = Workers(device_plan, how.first, how.drafting.device)
    if method == EVENT_METHOD and drafter is None:
        raise BadInput(f"method {method} needs a drafter: give --drafter FOLDER, or --method autoregressive")
    loaded = load_folder(target, replace(how, drafter_device=None))
    drafting = load_folder(drafter, how.drafting) if drafter is not None and method in SEEING_EVENTS else None
    policy, parts = _policy(loaded, how), Parts.of(loaded, drafting, file)
    parts = replace(parts, policy=policy, notes=parts.notes + _precision(loaded, how), drafting=how.drafting)
    if drafting is not None:
        lookahead = None if parts.prior is None else parts.prior.sure_of
        made, note = in_target_ids(parts.tokens, drafting, vocabulary, (f"{drafter}", f"{target}"), lookahead)
        parts = replace(parts, event_drafter=made, event_note=note)
    name, folder = (target.resolve().name, None) if file is None else (file.name, file.folder)
    pair = Pair(name, parts, build_methods(parts), workers, folder, target)
    path = store_of(pair, drafter, (how, loaded.notes))
    return fitted(pair, path) if fit and policy.step_seconds <= QUICK_STEP else learning(pair, path, warm=False)


def _precision(target: VisionLanguage, how: LoadOptions) -> tuple[str, ...]:
    """What the trace says where rounding decides near-ties: a chunk's forward and a single step's differ there."""
    if how.quantized is None and target.dtype in (torch.float32, torch.float64):
        return ()
    name = how.quantized or str(target.dtype).removeprefix("torch.")
    return (f"the target runs in {name}: identity is claimed in fp32 only",)


def _policy(target: VisionLanguage, how: LoadOptions) -> DraftPolicy:
    """The usual policy with waiting times for a model of this size: a decoding step reads every weight once."""
    step = target.weight_bytes / WEIGHT_BYTES_PER_SECOND["cuda" if how.first.startswith("cuda") else "cpu"]
    usual = DraftPolicy(**dict.fromkeys(GUESSED, True))
    # In lower precision near ties are so many that settling them would be a second decoding.
    settle = not _precision(target, how)
    return replace(usual, step_seconds=max(usual.step_seconds, step), deadline=max(usual.deadline, 400 * step), settle=settle)
