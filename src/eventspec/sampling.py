"""How the next token is drawn and when an answer ends: the settings of one request, read strictly. `core` names them too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Real
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from eventspec.errors import BadSetting, check_known

MOST_TOKENS = (1 << 31) - 1
"""Of an answer."""


class ConstraintState(Protocol):
    """Where an answer stands in what it may say. It never changes: every branch of a draft tree has its own."""

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [V], which tokens may come next: the end token too where the answer may end, no id after the mask's end."""

    def after(self, token: int) -> ConstraintState:
        """The state after one more token that the mask allowed."""


class Constraint(Protocol):
    """What answers must look like: a grammar, a list of choices. One may serve many answers at once."""

    def start(self) -> ConstraintState: ...


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise _wrong(name, value, "a whole number")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _wrong(name, value, "true or false")
    return bool(value)


def _number(name: str, value: Any) -> float:
    # A bool is a whole number to Python, and a mistake here.
    if isinstance(value, Real) and str(value) not in ("True", "False"):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _wrong(name, value, "a number")


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(name, value, "a sequence of token ids")
    return tuple(_whole(name, token) for token in value)


def _words(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(name, value, "sequences of token ids, as Pair.bad_words makes them")
    words = tuple(value)
    if any(isinstance(word, str | bytes) for word in words):
        raise _wrong(name, value, "sequences of token ids, as Pair.bad_words makes them")
    return tuple(_ids(name, word) for word in words)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Collection) else (None,)
    if isinstance(value, bytes | Mapping) or not all(isinstance(text, str) for text in found):
        raise _wrong(name, value, "a text or a sequence of texts")
    if any("\ud800" <= letter <= "\udfff" for text in found for letter in text):
        raise _wrong(name, value, "valid UTF-8")
    return found


def _biases(name: str, value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping of token ids to numbers")
    # A read-only copy: drafters get the same settings as the rule.
    return MappingProxyType({_whole(name, token): _number(name, bias) for token, bias in value.items()})


def _constraint(name: str, value: Any) -> Constraint | None:
    if value is not None and not callable(getattr(value, "start", None)):
        raise _wrong(name, value, "a constraint, as Pair.json_schema and Pair.regex make them")
    found: Constraint | None = value
    return found


def _wrong(name: str, value: Any, wanted: str) -> BadSetting:
    texts = isinstance(value, tuple) and bool(value) and all(isinstance(text, str) for text in value)
    shown = ", ".join(map(repr, value)) if texts else repr(value)
    return BadSetting(name, f"is {shown if len(shown) <= 60 else shown[:57] + '...'}: it must be {wanted}")


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the target's logits, and when to stop. Temperature 0 is greedy. Frequency and presence
    penalty go by the answer's own tokens; repetition penalty, n-grams and bad words, as in transformers, by `prompt_ids` too,
    which a target fills in that knows its prompt's ids. `min_new_tokens` holds back the `stop_ids` only. In which order:
    ``engine.distribution``. Without `skip_special_tokens` an answer's text shows special tokens too.

    BadInput names the field whose value has the wrong type or lies out of range. Nothing in it can be changed afterwards.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    banned_ids: tuple[int, ...] = ()
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    constraint: Constraint | None = None
    no_repeat_ngram_size: int = 0
    prompt_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, read in _READ.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))
        most = self.max_new_tokens
        ids = {name: getattr(self, name) for name in ("stop_ids", "banned_ids", "logit_bias", "prompt_ids")}
        rules = (
            *((name, min(given, default=0) >= 0, "of ids from 0 on") for name, given in ids.items()),
            ("temperature", 0 <= self.temperature < math.inf, "at least 0 and finite"),
            ("top_k", self.top_k >= 0, "at least 0 (0 switches it off)"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p < 1, "in [0, 1)"),
            # Beyond these a logit overflows, and no comparison of two infinities means anything.
            ("repetition_penalty", 1e-3 <= self.repetition_penalty <= 1e3, "in [0.001, 1000] (1 switches it off)"),
            ("max_new_tokens", 1 <= self.max_new_tokens <= MOST_TOKENS, f"from 1 to {MOST_TOKENS}"),
            ("seed", self.seed >= 0, "at least 0"),
            ("stop_strings", all(self.stop_strings), "texts that are not empty"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2] (0 switches it off)"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2] (0 switches it off)"),
            ("logit_bias", all(-100 <= bias <= 100 for bias in self.logit_bias.values()), "in [-100, 100] for every id"),
            ("bad_words", all(self.bad_words), "without empty sequences"),
            ("bad_words", all(token >= 0 for word in self.bad_words for token in word), "of ids from 0 on"),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "at least 0 (0 switches it off)"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= most, f"from 0 to max_new_tokens, {most}"),
        )
        for name, holds, wanted in rules:
            if not holds:
                value = getattr(self, name)
                raise _wrong(name, dict(value) if isinstance(value, Mapping) else value, wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled field by field: the view of `logit_bias` itself cannot be."""
        values = {name: getattr(self, name) for name in _READ}
        return partial(Sampling, **{**values, "logit_bias": dict(self.logit_bias)}), ()

    def but(self, **settings: Any) -> Sampling:
        """The same with other settings; BadInput for one that does not exist, with the name that was probably meant."""
        check_known("setting", settings, _READ, _MEANT)
        return replace(self, **settings)


def check_settings(settings: Mapping[str, Any]) -> None:
    """BadInput for fields of `Sampling` that are wrong whatever the others are, which a checkpoint may know better."""
    Sampling().but(**{"max_new_tokens": MOST_TOKENS, **settings})


_READERS: dict[Any, Callable[[str, Any], Any]] = {
    "bool": _flag,
    "int": _whole,
    "float": _number,
    "tuple[int, ...]": _ids,
    "tuple[tuple[int, ...], ...]": _words,
    "tuple[str, ...]": _strings,
    "Mapping[int, float]": _biases,
    "Constraint | None": _constraint,
}
_READ = {field.name: _READERS[field.type] for field in fields(Sampling)}
"""How each field is read: as its type says, or BadInput."""
_MEANT = {
    "stop": "stop_strings",
    "bad_word": "bad_words=pair.bad_words(...)",
    "json_schema": "constraint=pair.json_schema(...)",
    "regex": "constraint=pair.regex(...)",
}
"""What the command line calls some of them, and others may."""
