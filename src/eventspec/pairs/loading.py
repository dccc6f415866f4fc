"""A pair of a pair.toml, which is bundled or in a folder; or of two checkpoint folders: a target and a drafter that may have
another tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadCheckpoint, BadInput
from eventspec.costs import fitted, learning, store_of
from eventspec.drafters import LanguageDrafter, Mixture, TextPrior
from eventspec.engine import DraftPolicy
from eventspec.errors import check_known
from eventspec.lanes.workers import Workers
from eventspec.models.embedded import EOS, drafter_encoder, target_encoder
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.folder import load_folder
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.models.session import LanguageTarget
from eventspec.models.video_llava import load_video_llava
from eventspec.nn.linear import in_reduced_precision
from eventspec.pairs.event_drafters import in_target_ids
from eventspec.pairs.methods import build_methods
from eventspec.pairs.names import AUTO, CHOICES, EVENT_METHOD, VOCABULARY_MAPPINGS, check_method
from eventspec.pairs.pair import Pair
from eventspec.pairs.pair_file import PairFile, bundled, folder_of, two_meanings
from eventspec.pairs.parts import Parts
from eventspec.pairs.trained import Adapters, Packers
from eventspec.scenes import SOURCE
from eventspec.text import TokenSpace, Vocabulary

WEIGHT_BYTES_PER_SECOND = {"cpu": 1e10, "cuda": 2e12}
"""What a decoding step reads its weights at, roughly; waiting times only, no result depends on it."""


def load_pair(
    where: str | Path = "embedded",
    device_plan: str = "auto",
    fit: bool = True,
    *,
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    vocabulary: str = "auto",
    **options: Any,
) -> Pair:
    """A bundled pair by name, or the folder of a pair.toml; with `target` the pair of two checkpoint folders instead, see
    `load_folders` (`vocabulary`) and `LoadOptions` (`options`: dtype by its name, device, frames, ...). BadInput and
    BadCheckpoint for a missing or broken file.

    device_plan: one or two devices, two on a CPU being a core for each model; auto shares the cores out for every question, see
    `lanes.workers`. fit: policies go by what the pair costs on this machine, see `costs.fitted`: the first time that takes
    about a second. Without, they go by `DraftPolicy`'s own figures; for checkpoint folders, on a CPU, from there on by what
    verification is learnt to cost.
    """
    if target is not None:
        if where != "embedded":
            raise BadInput(f"pair {where} and target {target} both say who answers: give one of them")
        how = LoadOptions.named(**options)
        drafting = None if drafter is None else _place("drafter", drafter)
        return load_folders(_place("target", target), drafting, vocabulary=vocabulary, how=how, device_plan=device_plan)
    if drafter is not None or vocabulary != "auto" or options:
        given = [*(["drafter"] if drafter is not None else []), *(["vocabulary"] if vocabulary != "auto" else []), *options]
        raise BadInput(f"{', '.join(given)}: only for checkpoint folders, give target=FOLDER as well")
    folder = folder_of(where if isinstance(where, str) else _place("pair", where))
    pair = _opened(PairFile.read(folder), Workers(device_plan), two_meanings(where))
    return fitted(pair) if fit else pair


def _place(what: str, given: object) -> Path:
    """BadInput for what is no path."""
    if not isinstance(given, str | Path):
        raise BadInput(f"the {what} is a {type(given).__name__}: give the path of its folder")
    return Path(given)


def _opened(file: PairFile, workers: Workers, notes: tuple[str, ...]) -> Pair:
    vocabulary = Vocabulary.load(file.place("tokenizer"))
    target = load_video_llava(file.place("target"))
    drafter = load_eventgpt(file.place("drafter"))
    prior = TextPrior.load(file.place("prior"))
    for name, rows in (("target", target.config.language.vocab_size), ("drafter", drafter.config.language.vocab_size)):
        if rows < vocabulary.size:
            raise BadCheckpoint(
                f"{file.folder}: the tokenizer has {vocabulary.size} ids, the {name} only {rows} rows: "
                "they do not belong together"
            )
    drafting = drafter_encoder(in_reduced_precision(drafter), vocabulary.encode)
    parts = Parts(
        LanguageTarget(target_encoder(target, vocabulary.encode)),
        TokenSpace(vocabulary, EOS),
        policy=DraftPolicy(guessed=True),  # until `fitted`
        notes=notes,
        prior=prior,
        heads=file.places("heads"),
        drafters=file.places("drafters"),
        packers=Packers(target, vocabulary.encode, file.places("packers")),
        adapters=Adapters(drafter, target, vocabulary.encode, file.places("adapters")),
        mixture=Mixture.load(file.place("mixture")) if file.place("mixture").is_file() else Mixture(),
        event_drafter=LanguageDrafter(EVENT_METHOD, drafting, EOS, lookahead=prior.sure_of, natively=True),
    )
    methods = build_methods(parts)
    shipped = any(file.folder.resolve() == folder.resolve() for folder in bundled().values())
    trained_on = file.trained_on or (SOURCE if shipped else "")  # the weights that ship are older than the entry
    return Pair(file.name, parts, methods, workers, file.folder, file.place("target"), trained_on)


def load_folders(
    target: Path,
    drafter: Path | None = None,
    *,
    method: str = AUTO,
    vocabulary: str = "auto",
    how: LoadOptions | None = None,
    device_plan: str = "auto",
) -> Pair:
    """The pair of a target's and a drafter's checkpoint folder, ready for `method`; the drafter is loaded only if it is used.

    vocabulary: see `event_drafters.in_target_ids`. Raises BadInput and BadCheckpoint, one line each.
    """
    check_method(method)
    check_known("vocabulary", [vocabulary], VOCABULARY_MAPPINGS)
    how = how or LoadOptions()
    workers = Workers(device_plan, how.device, how.device)
    if method == EVENT_METHOD and drafter is None:
        raise BadInput(f"method {method} needs a drafter: give --drafter FOLDER, or --method autoregressive")
    loaded = load_folder(target, how)
    parts = Parts(loaded.target, loaded.tokens, loaded.modality, _policy(loaded, how), loaded.notes + _precision(loaded, how))
    if method in CHOICES["drafter"] and drafter is not None:
        drafting = load_folder(drafter, replace(how, frames=None, allow_extrapolation=False, quantized=None))
        made, note = in_target_ids(parts.tokens, drafting, vocabulary, (f"{drafter}", f"{target}"))
        parts = replace(parts, event_drafter=made, event_note=note)
    pair = Pair(target.resolve().name, parts, build_methods(parts), workers, checkpoint=target)
    # The policies' costs are guesses.
    return learning(pair, store_of(pair, drafter, how), warm=False)


def _precision(target: VisionLanguage, how: LoadOptions) -> tuple[str, ...]:
    """What the trace says where rounding decides near-ties: a chunk's forward and a single step's differ there."""
    if how.quantized is None and target.dtype in (torch.float32, torch.float64):
        return ()
    name = how.quantized or str(target.dtype).removeprefix("torch.")
    return (f"the target runs in {name}: identity is claimed in fp32 only",)


def _policy(target: VisionLanguage, how: LoadOptions) -> DraftPolicy:
    """The usual policy with waiting times for a model of this size: a decoding step reads every weight once."""
    step = target.weight_bytes / WEIGHT_BYTES_PER_SECOND["cuda" if how.device.startswith("cuda") else "cpu"]
    usual = DraftPolicy(guessed=True)
    # In lower precision near ties are so many that settling them would be a second decoding.
    settle = not _precision(target, how)
    return replace(usual, step_seconds=max(usual.step_seconds, step), deadline=max(usual.deadline, 400 * step), settle=settle)
