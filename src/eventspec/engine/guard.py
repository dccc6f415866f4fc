"""What a drafter may touch, and what it says of itself, read without running more of its code than needed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from eventspec.core import TappedPrompt, TargetSession
from eventspec.tree import exact_text

T = TypeVar("T")


class DrafterFailed(Exception):
    """A failure in words."""


def in_words(work: Callable[[], T]) -> T:
    """What a drafter's code returns; DrafterFailed for what it raises, put into words where it ran: they are its code too."""
    try:
        return work()
    except BaseException as error:
        raise DrafterFailed(described(error)) from None


class PromptOf:
    """All of a target's session that a drafter may touch."""

    def __init__(self, session: TargetSession) -> None:
        self._session = session

    def prompt(self, visual: bool = True) -> TappedPrompt:
        """As `core.TargetPrompt.prompt`."""
        return self._session.prompt(visual)


def usable_taps(taps: Any, layers: int) -> tuple[int, ...]:
    """The layers that a drafter reads; ValueError for one that the target does not have."""
    found = tuple(operator.index(layer) for layer in islice(taps, layers + 3))
    if len(found) > layers + 2:
        raise ValueError(f"taps: more layers than the target has ({layers})")
    if wrong := [layer for layer in found if not -1 <= layer <= layers]:
        raise ValueError(f"taps layer {wrong[0]}: the target's are 0 (embeddings) to {layers}, and -1 (behind the final norm)")
    return found


def described(error: BaseException) -> str:
    """What happened, one line: after a traceback of other code, as TorchScript's texts have it, it stands last."""
    kind, lines = "error: ", list[str]()
    try:
        kind = f"{exact_text(type(error).__name__, 80)}: "
        lines = [line.strip() for line in exact_text(error, 10_000).splitlines() if line.strip()]
    except BaseException:  # even its name and text may be the drafter's own code
        pass
    return f"failed: {kind}{lines[-1].removeprefix(kind)[:300] if lines else '(no text)'}"
