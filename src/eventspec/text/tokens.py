"""A model's tokens: the vocabulary, the ids that end an answer, and those that are never generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eventspec.core import BadInput, Constraint, Sampling
from eventspec.text.grammar import json_schema, regex
from eventspec.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class TokenSpace:
    """What ids mean to one model. `eos_id` ends an answer, as do `extra_eos_ids`; no method generates `banned_ids`."""

    vocabulary: Vocabulary
    eos_id: int
    extra_eos_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()

    def sampling(self, sampling: Sampling) -> Sampling:
        """With the ids that are never generated banned and the end tokens as stops; BadInput for an id that does not exist."""
        biased, words = list(sampling.logit_bias), [i for word in sampling.bad_words for i in word]
        size = self.vocabulary.size
        for name, ids in (("banned id", sampling.banned_ids), ("logit_bias id", biased), ("bad_words id", words)):
            if unknown := [i for i in ids if not 0 <= i < size]:
                raise BadInput(f"{name} {unknown[0]} is not in the vocabulary: ids are 0 to {size - 1}")
        banned = {*sampling.banned_ids, *self.banned_ids}
        if size <= len(banned) and banned.issuperset(range(size)):  # a model's spare rows, after these, are banned as well
            raise BadInput(f"banned_ids leave no token: all {size} of the vocabulary are banned")
        stops = (*sampling.stop_ids, self.eos_id, *self.extra_eos_ids)
        return replace(sampling, stop_ids=stops, banned_ids=(*sampling.banned_ids, *self.banned_ids))

    def json_schema(self, schema: str | bool | Mapping[str, Any]) -> Constraint:
        """A constraint for `Sampling`: answers are JSON of this schema. BadInput for a schema that cannot be kept to."""
        return json_schema(schema, self.vocabulary, self.eos_id)

    def regex(self, pattern: str) -> Constraint:
        """A constraint for `Sampling`: answers match this pattern as a whole. BadInput for what is no pattern."""
        if not isinstance(pattern, str):
            raise BadInput(f"the regular expression is a {type(pattern).__name__}: it must be a text")
        _must_be_utf8("the regular expression", pattern)
        return regex(pattern, self.vocabulary, self.eos_id)

    def bad_words(self, *texts: str) -> tuple[tuple[int, ...], ...]:
        """`bad_words` of `Sampling`: these texts in the tokenizer's own spelling, after a space and without."""
        for text in texts:
            if not isinstance(text, str) or not text:
                raise BadInput(f"bad word {text!r} is no text, or an empty one: name what must not be said")
            _must_be_utf8("a bad word", text)
        return tuple(ids for text in texts for ids in self.vocabulary.spellings(text))


def _must_be_utf8(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{what} is not valid UTF-8: type it again") from None
