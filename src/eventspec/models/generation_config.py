"""generation_config.json: the settings that a checkpoint asks for where a request says nothing else, and those not used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventspec.core import BadCheckpoint, Sampling
from eventspec.errors import BadSetting
from eventspec.models.configuration import read_json
from eventspec.text import TokenSpace

NAME = "generation_config.json"
_USED = {
    **{name: name for name in ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "max_new_tokens")},
    **{name: name for name in ("top_k", "top_p", "min_p", "stop_strings")},
    **{"suppress_tokens": "banned_ids", "bad_words_ids": "bad_words"},
}
"""transformers' names -> those of `Sampling`. Not among them: do_sample and temperature, because answers are greedy as long as
no temperature is given."""
_NOT_USED: dict[str, float | None] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "guidance_scale", "encoder_repetition_penalty", "typical_p"), 1),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "min_length", "epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0),
    **dict.fromkeys(("begin_suppress_tokens", "sequence_bias", "constraints", "force_words_ids", "forced_decoder_ids")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "dola_layers")),
    **dict.fromkeys(("penalty_alpha", "top_h", "watermarking_config", "max_time", "max_length", "assistant_ensemble_weight")),
    **dict.fromkeys(("token_healing", "remove_invalid_values"), False),
}
"""Settings by which transformers' `generate` would answer otherwise, and their value that changes nothing. Lengths with the
prompt (max_length, min_length) are among them, as `Sampling` has the answer's own."""
_OVERRULED = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
"""What transformers does not look at where the other is given."""


def stored(folder: Path) -> dict[str, Any]:
    """What the file of a folder says, nothing where there is none; BadCheckpoint for one that cannot be read or followed."""
    data = read_json(folder / NAME) if (folder / NAME).is_file() else {}
    _usual(data, folder)
    return data


def with_settings(tokens: TokenSpace, data: Mapping[str, Any], folder: Path) -> tuple[TokenSpace, tuple[str, ...]]:
    """The same tokens with the settings that `data` has as `usual`, and notes on those that are not used. BadCheckpoint for a
    value that cannot be."""
    usual = _usual(data, folder)
    size, ends = tokens.vocabulary.size, {tokens.eos_id, *tokens.extra_eos_ids}
    # An end is never a bad word to transformers. Ids that the tokenizer does not have may be rows of the model nevertheless.
    words = tuple(word for word in usual.bad_words if not (len(word) == 1 and word[0] in ends))
    nameless = [i for i in (*usual.banned_ids, *(word[0] for word in words if len(word) == 1)) if i >= size]
    banned = tuple(i for i in usual.banned_ids if i < size)
    known = tuple(word for word in words if max(word) < size)
    lost = sum(len(word) > 1 for word in words) - sum(len(word) > 1 for word in known)
    usual = replace(usual, banned_ids=banned, bad_words=known)
    unused = [name for name, nothing in _NOT_USED.items() if data.get(name) not in (None, [], {}, nothing)]
    unused = [name for name in unused if data.get(_OVERRULED.get(name, "")) is None]
    if data.get("cache_implementation") == "quantized":
        unused.append("cache_implementation quantized")
    if lost:
        unused.append(f"bad_words_ids with ids from {size} on, which the tokenizer lacks ({lost})")
    notes = [f"{NAME}: {', '.join(unused)} not used, transformers' generate may answer otherwise"] if unused else []
    if data.get("do_sample"):
        notes.append(f"{NAME}: do_sample is not used, answers are greedy unless a temperature is given")
    return replace(tokens, usual=usual, banned_ids=(*tokens.banned_ids, *nameless)), tuple(notes)


def _usual(data: Mapping[str, Any], folder: Path) -> Sampling:
    """The settings that the file has, as it has them; BadCheckpoint for a value that cannot be."""
    given = {ours: data[theirs] for theirs, ours in _USED.items() if data.get(theirs) is not None}
    least = given.get("min_new_tokens")  # the usual longest answer is longer where that asks for it
    longest = max(Sampling().max_new_tokens, least if type(least) is int else 0)
    try:
        return Sampling(**{"max_new_tokens": longest, **given})
    except BadSetting as error:
        theirs = next((theirs for theirs, ours in _USED.items() if ours == error.name), error.name)
        raise BadCheckpoint(f"{folder / NAME}: {theirs} {error.wrong}: mend it, or give --ignore-generation-config") from None
