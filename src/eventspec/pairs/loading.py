"""A pair of a pair.toml, which is bundled or in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventspec.core import BadCheckpoint, BadInput
from eventspec.costs import fitted
from eventspec.drafters import LanguageDrafter
from eventspec.engine import DraftPolicy
from eventspec.engine.policy import GUESSED
from eventspec.lanes.workers import Workers
from eventspec.models.embedded import EOS, drafter_encoder, target_encoder
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.models.video_llava import load_video_llava
from eventspec.nn.linear import in_reduced_precision
from eventspec.pairs.event_drafters import embedded_drafter
from eventspec.pairs.folders import load_folders
from eventspec.pairs.methods import build_methods
from eventspec.pairs.names import AUTO, EVENT_METHOD, USUAL_MAPPING
from eventspec.pairs.pair import Pair
from eventspec.pairs.pair_file import PairFile, bundled, folder_of, two_meanings
from eventspec.pairs.parts import Parts
from eventspec.scenes import SOURCE
from eventspec.text import TokenSpace, Vocabulary


def load_pair(
    where: str | Path = "embedded",
    device_plan: str = "auto",
    fit: bool = True,
    *,
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    method: str = AUTO,
    **options: Any,
) -> Pair:
    """A bundled pair by name, or the folder of a pair.toml; with `target` the pair of two checkpoint folders instead.
    BadInput and BadCheckpoint for a missing or broken file.

    options: for checkpoints, how they are opened, instead of what a pair.toml says: `vocabulary` (see `load_folders`) and the
    fields of `LoadOptions` (dtype by its name, device, drafter_device, frames, ...). method: which one they are loaded for; a
    drafter that it does not need is left out. device_plan: one or two devices, two on a CPU being a core for each model; auto
    shares the cores out for every question, see `lanes.workers`. fit: policies go by what the pair costs on this machine, see
    `costs.fitted`: the first time that takes about a second. Without, and for checkpoints that no pair.toml names or that are
    slow, they go by `DraftPolicy`'s own figures and by what verification is learnt to cost.
    """
    if target is not None:
        if where != "embedded":
            raise BadInput(f"pair {where} and target {target} both say who answers: give one of them")
        drafting = None if drafter is None else _place("drafter", drafter)
        return _of_checkpoints(_place("target", target), drafting, method, options, device_plan)
    file = PairFile.read(folder_of(where if isinstance(where, str) else _place("pair", where)))
    if file.load is not None:
        if drafter is not None:
            raise BadInput(f"pair {where} has its own drafter: leave drafter out, or give the target's folder too")
        file.check_models()
        given, own = {**file.load, **options}, file.place("drafter") if "drafter" in file.files else None
        return _of_checkpoints(file.place("target"), own, method, given, device_plan, file, fit)
    if drafter is not None or options:
        named = [*(["drafter"] if drafter is not None else []), *options]
        raise BadInput(f"{', '.join(named)}: only for checkpoint folders, give target=FOLDER as well")
    pair = _opened(file, Workers(device_plan), two_meanings(where))
    return fitted(pair) if fit else pair


def _of_checkpoints(
    target: Path,
    drafter: Path | None,
    method: str,
    options: Mapping[str, Any],
    device_plan: str,
    file: PairFile | None = None,
    fit: bool = False,
) -> Pair:
    """As `load_folders`, with options by name."""
    named = dict(options)
    vocabulary = named.pop("vocabulary", USUAL_MAPPING)
    more: dict[str, Any] = {"vocabulary": vocabulary, "how": LoadOptions.named(**named), "device_plan": device_plan}
    return load_folders(target, drafter, method=method, **more, file=file, fit=fit)


def _place(what: str, given: object) -> Path:
    """BadInput for what is no path."""
    if not isinstance(given, str | Path):
        raise BadInput(f"the {what} is a {type(given).__name__}: give the path of its folder")
    return Path(given)


def _opened(file: PairFile, workers: Workers, notes: tuple[str, ...]) -> Pair:
    vocabulary = Vocabulary.load(file.place("tokenizer"))
    target, drafter = load_video_llava(file.place("target")), load_eventgpt(file.place("drafter"))
    for name, rows in (("target", target.config.language.vocab_size), ("drafter", drafter.config.language.vocab_size)):
        if rows < vocabulary.size:
            raise BadCheckpoint(
                f"{file.folder}: the tokenizer has {vocabulary.size} ids, the {name} only {rows} rows: "
                "they do not belong together"
            )
    frames, tokens = target_encoder(target, vocabulary.encode), TokenSpace(vocabulary, EOS)
    loaded = VisionLanguage.of("Video-LLaVA", frames, tokens, "frames", notes)
    events = VisionLanguage.of("EventGPT", drafter_encoder(drafter, vocabulary.encode), tokens, "events")
    parts = Parts.of(loaded, events, file)
    assert parts.prior is not None  # a file of ours lists one
    drafting = drafter_encoder(in_reduced_precision(drafter), vocabulary.encode)
    parts = replace(
        parts,
        policy=DraftPolicy(**dict.fromkeys(GUESSED, True)),  # until `fitted`
        open_drafter=embedded_drafter,
        event_drafter=LanguageDrafter(EVENT_METHOD, drafting, EOS, lookahead=parts.prior.sure_of, natively=True),
    )
    methods = build_methods(parts)
    shipped = any(file.folder.resolve() == folder.resolve() for folder in bundled().values())
    trained_on = file.trained_on or (SOURCE if shipped else "")  # the weights that ship are older than the entry
    return Pair(file.name, parts, methods, workers, file.folder, file.place("target"), trained_on)
