"""A pair of a pair.toml, which is bundled or in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventspec.core import BadCheckpoint, BadInput
from eventspec.costs import fitted
from eventspec.drafters import LanguageDrafter, Mixture, TextPrior
from eventspec.engine import DraftPolicy
from eventspec.engine.policy import GUESSED
from eventspec.lanes.workers import Workers
from eventspec.models.embedded import EOS, drafter_encoder, target_encoder
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.loading import LoadOptions
from eventspec.models.session import LanguageTarget
from eventspec.models.video_llava import load_video_llava
from eventspec.nn.linear import in_reduced_precision
from eventspec.pairs.folders import load_folders
from eventspec.pairs.methods import build_methods
from eventspec.pairs.names import EVENT_METHOD
from eventspec.pairs.pair import Pair
from eventspec.pairs.pair_file import PairFile, bundled, folder_of, two_meanings
from eventspec.pairs.parts import Parts
from eventspec.pairs.trained import Adapters, Packers
from eventspec.scenes import SOURCE
from eventspec.text import TokenSpace, Vocabulary


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
    frames, events = target_encoder(target, vocabulary.encode), drafter_encoder(drafter, vocabulary.encode)
    drafting = drafter_encoder(in_reduced_precision(drafter), vocabulary.encode)
    parts = Parts(
        LanguageTarget(frames),
        TokenSpace(vocabulary, EOS),
        policy=DraftPolicy(**dict.fromkeys(GUESSED, True)),  # until `fitted`
        notes=notes,
        prior=prior,
        heads=file.places("heads"),
        drafters=file.places("drafters"),
        packers=Packers(frames, file.places("packers")),
        adapters=Adapters(events, frames, file.places("adapters")),
        mixture=Mixture.load(file.place("mixture")) if file.place("mixture").is_file() else Mixture(),
        event_drafter=LanguageDrafter(EVENT_METHOD, drafting, EOS, lookahead=prior.sure_of, natively=True),
    )
    methods = build_methods(parts)
    shipped = any(file.folder.resolve() == folder.resolve() for folder in bundled().values())
    trained_on = file.trained_on or (SOURCE if shipped else "")  # the weights that ship are older than the entry
    return Pair(file.name, parts, methods, workers, file.folder, file.place("target"), trained_on)
