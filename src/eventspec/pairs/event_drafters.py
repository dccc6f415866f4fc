"""Another event drafter for a pair: one of the pair's own, or any checkpoint folder, with the target's tokenizer or one of its
own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eventspec.core import BadInput, Drafter
from eventspec.drafters import LanguageDrafter, Retokenized
from eventspec.drafters.language_model import Guess
from eventspec.drafters.retokenized import WAYS, Speaker
from eventspec.models.embedded import EOS, drafter_rows
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.folder import load_folder
from eventspec.models.loading import Loading, Reader, VisionLanguage
from eventspec.pairs.pair import Pair
from eventspec.text import Vocabulary, first_difference

METHOD = "cross-modal"
VOCABULARY_WAYS = ("auto", "same", *WAYS)


def with_drafter(pair: Pair, which: str, vocabulary: str = "auto", how: Loading | None = None) -> Pair:
    """The same target with another event drafter: a name from the pair's `[drafters]`, or a checkpoint folder.

    vocabulary: see `joined`. Raises BadInput and BadCheckpoint, one line each.
    """
    if not which:
        raise BadInput("the name of the drafter is empty: give a folder or a name")
    if which in pair.others:
        folder = pair.others[which]
        drafting = embedded_drafter(folder, Vocabulary.load(folder / "tokenizer.json"))
    elif Path(which).is_dir():
        drafting = load_folder(Path(which), how or Loading())
    else:
        known = f", or one of {', '.join(pair.others)}" if pair.others else ""
        raise BadInput(f"no drafter '{which}' for pair {pair.name}: give the folder of a checkpoint{known}")
    if drafting.sees != "events":
        raise BadInput(f"{which} sees {drafting.sees}: the drafter of method {METHOD} must see events")
    made, note = joined(Speaker(pair.vocabulary, pair.end), drafting, vocabulary, (which, f"pair {pair.name}"))
    notes = {**pair.notes, METHOD: (*pair.notes.get(METHOD, ()), note)}
    return replace(pair, drafters={**pair.drafters, METHOD: made}, notes=notes)


def embedded_drafter(folder: Path, vocabulary: Vocabulary) -> VisionLanguage:
    """The folder of an embedded pair's drafter, with its prompts."""
    model = load_eventgpt(folder, rows=vocabulary.size)
    reader = Reader(model.language, drafter_rows(model, vocabulary.encode))
    return VisionLanguage.of("EventGPT", reader, vocabulary, (EOS,), (), "events")


def joined(
    ours: Speaker, drafter: VisionLanguage, way: str, names: tuple[str, str], guess: Guess | None = None
) -> tuple[Drafter, str]:
    """A drafter whose proposals are in the target's ids, and one sentence on how; `names` are drafter and target, for errors.

    way: `auto` shares ids where all text pieces agree and re-encodes drafts where not; `same` refuses what differs, with
    BadInput that names the first differing id and both pieces; `retokenize` and `intersect` are `drafters.retokenized`'s.
    `guess` is read ahead where ids are shared.
    """
    if way not in VOCABULARY_WAYS:
        raise BadInput(f"vocabulary '{way}' is unknown: choose one of {', '.join(VOCABULARY_WAYS)}")
    if (reader := drafter.reader) is None:
        raise BadInput(f"{names[0]} is a {drafter.name}: it can be a target, drafts come from EventGPT and Video-LLaVA folders")
    theirs, pieces = drafter.vocabulary, ours.vocabulary.text_size
    different = first_difference(theirs, ours.vocabulary)
    hears_all = theirs.text_size >= pieces  # what the target says must be a row of the drafter's embedding
    if different is None and hears_all and drafter.end == ours.end and way in ("auto", "same"):
        extent = "all" if theirs.text_size == pieces else "the target's"
        shared = LanguageDrafter(METHOD, reader.language, reader.rows, drafter.end, pieces, guess)
        return shared, f"vocabulary: both tokenizers agree on {extent} {pieces} text pieces, ids are shared"
    where = "they agree, but this way was asked for"
    if not hears_all and different is None:
        more = ours.vocabulary.piece(theirs.text_size)
        where = f"id {theirs.text_size} is {more!r} for the target, the drafter's text pieces end before it"
    elif different is not None:
        where = f"id {different[0]} is {different[1]!r} for the drafter and {different[2]!r} for the target"
    elif drafter.end != ours.end:
        where = f"an answer ends with id {drafter.end} for the drafter and with id {ours.end} for the target"
    if way == "same":
        raise BadInput(
            f"the tokenizers of {names[0]} and {names[1]} differ: {where}; choose --vocabulary auto, retokenize or intersect"
        )
    chosen = "retokenize" if way == "auto" else way
    plain = LanguageDrafter(METHOD, reader.language, reader.rows, drafter.end, theirs.text_size)
    wrapped = Retokenized(plain, Speaker(theirs, drafter.end), ours, chosen)
    how = "drafts are spelled and encoded again" if chosen == "retokenize" else f"{len(wrapped.to_ours)} pieces are shared"
    return wrapped, f"vocabulary: {chosen}, {how} ({where})"
