"""Methods whose heads learn while they draft; what a method shares with another learns once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from eventspec.core import BadInput, Drafter
from eventspec.drafters.heads.learning import LearningDrafter, can_learn
from eventspec.engine.method import Method
from eventspec.errors import several
from eventspec.files import check_empty
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs.names import CHOICES


def learning(
    methods: Mapping[str, Method], wanted: Iterable[str] = (), make: Callable[..., LearningDrafter] = LearningDrafter
) -> dict[str, Method]:
    """The methods, with heads that learn. BadInput unless each of the `wanted` ones that `--learn` is for has one, by itself or
    in a method that it chooses."""
    made = _with_heads(methods, can_learn, make)
    for name in wanted:
        if name not in made or name not in CHOICES["learn"]:
            continue
        choice = made[name].choice
        if not learning_heads(made[one] for one in (name, *(choice.methods if choice else ()))):
            raise BadInput(f"method {name} has no head that learns: that takes one decoder layer on the target's features")
    return made


def beginning_anew(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The methods, their heads that learn as they were before they did."""
    return _with_heads(methods, lambda drafter: isinstance(drafter, LearningDrafter), lambda drafter: type(drafter)(drafter))


def learning_heads(methods: Iterable[Method]) -> list[LearningDrafter]:
    """The heads of methods that learn, each once."""
    found = (one for method in methods for one in method.drafts.after if isinstance(one, LearningDrafter))
    return list(dict.fromkeys(found))


def save_learned(heads: Sequence[LearningDrafter], folder: Path, target: LanguageEnds) -> str:
    """As `Pair.save_learned`, of heads that learn."""
    check_empty(folder)
    if not heads:
        raise BadInput("no head of this pair learns: make it one `with_learning`")
    for head in heads:
        head.wait()
    best = max(heads, key=lambda head: head.updates)
    if not best.updates:
        return f"{folder} was not written: no answer has taught a head anything"
    updates, gain = best.updates, best.gain
    best.save(folder, target)
    unlike = "" if gain > 0 else ", and drafts as it did at first: its update predicted new answers no better"
    unlike = unlike if updates > 1 else ", and drafts as it did at first: its update has not been tried on a new answer yet"
    return f"{folder} holds head {best.called}, which learned from {several(updates, 'answer')}{unlike}"


def _with_heads(
    methods: Mapping[str, Method], which: Callable[[Drafter], bool], make: Callable[..., LearningDrafter]
) -> dict[str, Method]:
    used = {name: method.drafts.after for name, method in methods.items() if name in CHOICES["learn"]}
    heads = {id(one): make(one) for one in {id(one): one for after in used.values() for one in after}.values() if which(one)}
    changed = {name: tuple(heads.get(id(one), one) for one in after) for name, after in used.items()}
    return {
        **methods,
        **{name: replace(methods[name], drafts=replace(methods[name].drafts, after=after)) for name, after in changed.items()},
    }
