"""Answers that follow a JSON schema or a regular expression, through llguidance (MIT), which is an extra.

The grammar is about the answer's text: the space that many tokenizers put before a first word is allowed and not part of it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.text.vocabulary import Vocabulary


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


def json_schema(schema: str | bool | Mapping[str, Any], vocabulary: Vocabulary, end: int) -> Grammar:
    """Answers are JSON that fits the schema, with at most one space between its parts. `end` is the end token's id. BadInput
    for what is no schema, cannot be satisfied, or uses keywords that could not be kept to."""
    try:
        content = json.loads(schema) if isinstance(schema, str) else schema
        # A model may generate spaces for ever where any number is allowed.
        rules = {"x-guidance": {"whitespace_pattern": " ?"}, **content} if isinstance(content, Mapping) else content
        body = json.dumps(rules)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"the JSON schema is not valid JSON ({error})") from None
    return _compiled("JSON schema", f"start: %json {body}", f'start: " "? %json {body}', vocabulary, end)


def regex(pattern: str, vocabulary: Vocabulary, end: int) -> Grammar:
    """Answers match the pattern as a whole. The syntax is Rust's: no look-around, no back-references; a digit is 0 to 9. `end`
    is the end token's id. BadInput for what is no pattern."""
    bare = pattern.removeprefix("^")
    if bare.endswith("$") and not _escapes(bare[:-1]):  # what matches as a whole needs no anchors
        bare = bare[:-1]
    if not bare or _escapes(bare):
        raise BadInput("the regular expression is empty or ends within an escape: give a pattern, such as 'Yes|No'")
    bare = _library().regex_to_lark(bare, "d")  # and escaped, to stand between two slashes
    return _compiled("regular expression", f"start: /{bare}/", f"start: / ?(?:{bare})/", vocabulary, end)


def _escapes(pattern: str) -> bool:
    """Whether the next character would be escaped: an odd number of backslashes at the end."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def _compiled(what: str, bare: str, spaced: str, vocabulary: Vocabulary, end: int) -> Grammar:
    """The grammar with room for a space before it; BadInput when it makes no sense without."""
    for grammar in (bare, spaced):
        if complaint := _library().LLMatcher.validate_grammar(grammar):
            raise BadInput(f"the {what} cannot be used: {_first_line(complaint)}")
        found = Grammar(_library().LLMatcher(_tokenizer(vocabulary, end), grammar, log_level=0), vocabulary.size)
        if not found.mask().any():
            raise BadInput(f"the {what} cannot be used: no token of this vocabulary begins such an answer")
    return found


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
