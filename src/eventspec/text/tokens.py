"""A model's tokens: the vocabulary, the ids that end an answer, those that are never generated, and grammars of answers.

A grammar is a JSON schema or a regular expression, through llguidance (MIT), which is an extra. It is about the answer's text:
the space that many tokenizers put before a first word is allowed and not part of it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from eventspec.core import BadInput, Sampling
from eventspec.files import parsed
from eventspec.text.vocabulary import Vocabulary, first_difference


@dataclass(frozen=True)
class TokenSpace:
    """What ids mean to one model. `eos_id` ends an answer, as do `extra_eos_ids`; no method generates `banned_ids`. `usual`:
    settings of a request that says nothing else, as the checkpoint's generation_config.json has them."""

    vocabulary: Vocabulary
    eos_id: int
    extra_eos_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    usual: Sampling = field(default_factory=Sampling)

    def means(self, other: TokenSpace) -> bool:
        """Whether every id that `other` may say means the same here."""
        alike = first_difference(self.vocabulary, other.vocabulary) is None and self.eos_id == other.eos_id
        return alike and self.vocabulary.text_size >= other.vocabulary.text_size

    def settings(self, whole: Sampling | None, given: Mapping[str, Any]) -> Sampling:
        """A request's settings: the `given` ones, the others as `whole` has them, or without it as is usual here."""
        most = given.get("max_new_tokens")
        if whole is None and isinstance(most, int | np.integer) and most < self.usual.min_new_tokens:
            given = {"min_new_tokens": max(0, most), **given}  # as in transformers, the longest length is kept to
        return (whole or self.usual).but(**given)

    def sampling(self, sampling: Sampling) -> Sampling:
        """With the ids that are never generated banned and the end tokens as stops; BadInput for an id that does not exist."""
        biased, words = list(sampling.logit_bias), [i for word in sampling.bad_words for i in word]
        size = self.vocabulary.size
        for name, ids in (
            ("stop id", sampling.stop_ids),
            ("banned id", sampling.banned_ids),
            ("logit_bias id", biased),
            ("bad_words id", words),
        ):
            if unknown := [i for i in ids if not 0 <= i < size]:
                raise BadInput(f"{name} {unknown[0]} is not in the vocabulary: ids are 0 to {size - 1}")
        banned = {*sampling.banned_ids, *self.banned_ids}
        if all(i in banned for i in range(size)):  # a model's rows beyond them may be said, but are no text
            raise BadInput(f"banned_ids leave no token: all {size} of the vocabulary are banned")
        stops = (*sampling.stop_ids, self.eos_id, *self.extra_eos_ids)
        return replace(sampling, stop_ids=stops, banned_ids=(*sampling.banned_ids, *self.banned_ids))

    def json_schema(self, schema: str | bool | Mapping[str, Any]) -> Grammar:
        """A constraint for `Sampling`: answers are JSON that fits the schema, with at most one space between its parts.
        BadInput for what is no schema, cannot be satisfied, or uses keywords that could not be kept to."""
        return self._compiled("JSON schema", schema_grammars(schema))

    def regex(self, pattern: str) -> Grammar:
        """A constraint for `Sampling`: answers match the pattern as a whole. The syntax is Rust's: no look-around, no
        back-references; a digit is 0 to 9. BadInput for what is no pattern."""
        return self._compiled("regular expression", regex_grammars(pattern))

    def _compiled(self, what: str, grammars: tuple[str, str]) -> Grammar:
        """The second grammar, with room for a space before it; BadInput when it makes no sense without."""
        for grammar in grammars:
            matcher = _library().LLMatcher(_tokenizer(self.vocabulary, self.eos_id), grammar, log_level=0)
            found = Grammar(matcher, self.vocabulary.size)
            if not found.mask().any():
                raise BadInput(f"the {what} cannot be used: no token of this vocabulary begins such an answer")
        return found

    def bad_words(self, *texts: str) -> tuple[tuple[int, ...], ...]:
        """`bad_words` of `Sampling`: these texts in the tokenizer's own spelling, after a space and without."""
        check_words(texts)
        return tuple(ids for text in texts for ids in self.vocabulary.spellings(text))


def check_words(texts: Iterable[object]) -> None:
    """BadInput for what is no text that could be a bad word."""
    for text in texts:
        if not isinstance(text, str) or not text:
            raise BadInput(f"bad word {text!r} is no text, or an empty one: name what must not be said")
        _must_be_utf8("a bad word", text)


def schema_grammars(schema: str | bool | Mapping[str, Any]) -> tuple[str, str]:
    """Answers that fit a JSON schema, as grammars without and with a space before them, whatever the vocabulary; BadInput as
    `TokenSpace.json_schema`."""
    try:
        content = parsed(schema) if isinstance(schema, str) else schema
        # A model may generate spaces for ever where any number is allowed.
        rules = {"x-guidance": {"whitespace_pattern": " ?"}, **content} if isinstance(content, Mapping) else content
        body = json.dumps(rules)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"the JSON schema is not valid JSON ({error})") from None
    return _checked("JSON schema", f"start: %json {body}", f'start: " "? %json {body}')


def regex_grammars(pattern: str) -> tuple[str, str]:
    """The same of a regular expression."""
    if not isinstance(pattern, str):
        raise BadInput(f"the regular expression is a {type(pattern).__name__}: it must be a text")
    _must_be_utf8("the regular expression", pattern)
    bare = pattern.removeprefix("^")
    if bare.endswith("$") and not _escapes(bare[:-1]):  # what matches as a whole needs no anchors
        bare = bare[:-1]
    if not bare or _escapes(bare):
        raise BadInput("the regular expression is empty or ends within an escape: give a pattern, such as 'Yes|No'")
    bare = _library().regex_to_lark(bare, "d")  # and escaped, to stand between two slashes
    return _checked("regular expression", f"start: /{bare}/", f"start: / ?(?:{bare})/")


def _checked(what: str, *grammars: str) -> tuple[str, str]:
    for grammar in grammars:
        if complaint := _library().LLMatcher.validate_grammar(grammar):
            raise BadInput(f"the {what} cannot be used: {_first_line(complaint)}")
    bare, spaced = grammars
    return bare, spaced


def _must_be_utf8(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{what} is not valid UTF-8: type it again") from None


class Grammar:
    """Where a text stands in a compiled grammar over one vocabulary: a `core.ConstraintState`, and the `core.Constraint` of
    what may follow. Its mask is computed once; `after` makes another one.

    The rule and the display ask from two threads, and the library refuses a second borrower: hence the lock.
    """

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher, self._size = matcher, size
        self._mask: np.ndarray[Any, np.dtype[np.bool_]] | None = None
        self._lock = threading.Lock()

    def start(self) -> Grammar:
        return self

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [ids of the vocabulary]; the end token alone once the grammar is complete and cannot go on. BadInput when it is
        too complex to go on."""
        with self._lock:
            if self._mask is None:
                bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
                if self._matcher.is_error():
                    raise BadInput(
                        f"the grammar cannot be followed ({_first_line(self._matcher.get_error())}): make it simpler"
                    )
                self._mask = np.unpackbits(bits, count=self._size, bitorder="little").astype(bool)
            return self._mask

    def after(self, token: int) -> Grammar:
        with self._lock:
            matcher = self._matcher.deep_copy()
        matcher.consume_token(token)
        return Grammar(matcher, self._size)


def _escapes(pattern: str) -> bool:
    """Whether the next character would be escaped: an odd number of backslashes at the end."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


@lru_cache(maxsize=8)
def _tokenizer(vocabulary: Vocabulary, end: int) -> Any:
    try:
        return _library().LLTokenizer(vocabulary.as_json(), eos_token=end)
    except ValueError as error:
        raise BadInput(f"this tokenizer cannot follow a grammar: {_first_line(str(error))}") from None


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise BadInput("JSON schemas and regular expressions need llguidance: pip install 'eventspec[grammar]'") from None
    return llguidance


def _first_line(text: str) -> str:
    """The library's own reason, without its drawings."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "no reason given")
    return re.sub(r"^(error: |at \d+\(\d+\): )(failed to compile JSON schema: )?", "", reason)
