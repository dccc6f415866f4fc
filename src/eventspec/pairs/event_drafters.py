"""Event drafters: one of the pair's own, or any checkpoint folder, with the target's tokenizer or one of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eventspec.core import BadInput, Drafter
from eventspec.drafters import LanguageDrafter, Retokenized
from eventspec.drafters.language_model import Lookahead
from eventspec.errors import check_known
from eventspec.models.embedded import EOS, drafter_encoder
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.folder import load_folder
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.nn.linear import in_reduced_precision
from eventspec.pairs.names import EVENT_METHOD, VOCABULARY_MAPPINGS, folder_named
from eventspec.pairs.parts import Parts
from eventspec.text import TokenSpace, Vocabulary, first_difference


def with_event_drafter(parts: Parts, name: str, which: str, mapping: str, how: LoadOptions | None = None) -> Parts:
    """The parts of pair `name` with another event drafter: one of `Parts.drafters`, or a checkpoint folder.

    mapping: see `in_target_ids`. Raises BadInput and BadCheckpoint, one line each.
    """
    folder = folder_named("drafter", which, parts.drafters)
    opened = parts.open_drafter if which in parts.drafters else load_folder
    drafting = opened(folder, how or parts.drafting)
    if drafting.modality != "events":
        raise BadInput(f"{which} sees {drafting.modality}: the drafter of method {EVENT_METHOD} must see events")
    made, note = in_target_ids(parts.tokens, drafting, mapping, (which, f"pair {name}"))
    return replace(parts, event_drafter=made, event_note=note)


def embedded_drafter(folder: Path, how: LoadOptions | None = None) -> VisionLanguage:
    """The folder of an embedded pair's drafter with a tokenizer of its own, with its prompts; loaded as all of the pair is."""
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    model = in_reduced_precision(load_eventgpt(folder, rows=vocabulary.size))
    return VisionLanguage.of("EventGPT", drafter_encoder(model, vocabulary.encode), TokenSpace(vocabulary, EOS), "events")


def in_target_ids(
    ours: TokenSpace,
    drafter: VisionLanguage,
    mapping: str,
    names: tuple[str, str],
    lookahead: Lookahead | None = None,
) -> tuple[Drafter, str]:
    """A drafter whose proposals are in the target's ids, and one sentence on how; `names` are drafter and target, for errors.

    mapping: `auto` shares ids where all text pieces agree and re-encodes drafts where not; `same` refuses what differs, with
    BadInput that names the first differing id and both pieces; `retokenize` and `intersect` are `drafters.retokenized`'s.
    `lookahead` is read ahead where ids are shared.
    """
    check_known("vocabulary", [mapping], VOCABULARY_MAPPINGS)
    if (encoder := drafter.encoder) is None:
        raise BadInput(f"{names[0]} is a {drafter.name}: it can be a target, drafts come from EventGPT and Video-LLaVA folders")
    theirs, eos_id, pieces = drafter.tokens.vocabulary, drafter.tokens.eos_id, ours.vocabulary.text_size
    different = first_difference(theirs, ours.vocabulary)
    covers_target_vocab = theirs.text_size >= pieces  # what the target says must be a row of the drafter's embedding
    if different is None and covers_target_vocab and eos_id == ours.eos_id and mapping in ("auto", "same"):
        extent = "all" if theirs.text_size == pieces else "the target's"
        shared = LanguageDrafter(EVENT_METHOD, encoder, eos_id, pieces, lookahead)
        return shared, f"vocabulary: both tokenizers agree on {extent} {pieces} text pieces, ids are shared"
    where = "they agree, but this mapping was asked for"
    if not covers_target_vocab and different is None:
        more = ours.vocabulary.piece(theirs.text_size)
        where = f"id {theirs.text_size} is {more!r} for the target, the drafter's text pieces end before it"
    elif different is not None:
        where = f"id {different[0]} is {different[1]!r} for the drafter and {different[2]!r} for the target"
    elif eos_id != ours.eos_id:
        where = f"an answer ends with id {eos_id} for the drafter and with id {ours.eos_id} for the target"
    if mapping == "same":
        raise BadInput(
            f"the tokenizers of {names[0]} and {names[1]} differ: {where}; choose --vocabulary auto, retokenize or intersect"
        )
    chosen = "retokenize" if mapping == "auto" else mapping
    plain = LanguageDrafter(EVENT_METHOD, encoder, eos_id, theirs.text_size)
    wrapped = Retokenized(plain, drafter.tokens, ours, chosen)
    how = "drafts are spelled and encoded again" if chosen == "retokenize" else f"{len(wrapped.to_ours)} pieces are shared"
    return wrapped, f"vocabulary: {chosen}, {how} ({where})"
