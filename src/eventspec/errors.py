"""What the user can mend, said in one line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping


class EventspecError(Exception):
    """Something the user can mend: one line that says what is wrong, where, and what to do. The command line exits 2."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # what is quoted, such as the name of a file, may have several


class BadInput(EventspecError):
    """A file, field, option or argument that cannot be used."""


class BadSetting(BadInput):
    """A setting that cannot be used: its `name`, which the command line has as an option, and what is `wrong` with it."""

    def __init__(self, name: str, wrong: str) -> None:
        super().__init__(name, wrong)
        self.name, self.wrong = name, wrong

    def __str__(self) -> str:
        return f"{self.name} {self.wrong}"


class BadCheckpoint(EventspecError):
    """A model or pair folder that misses a file, or holds tensors that do not fit."""


class NonFiniteLogits(BadCheckpoint):
    """A target whose logits hold NaN or infinity: whatever is drawn from them is not what it would say."""


def several(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: 1 clip, 2 clips; `many` where an s does not do, or a verb follows."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def check_known(what: str, given: Iterable[str], known: Collection[str], meant: Mapping[str, str] | None = None) -> None:
    """BadInput for a name that does not exist, with the one that is probably meant: others' word for it, or the nearest."""
    for name in given:
        if name not in known:
            near = (meant or {}).get(name) or next(iter(difflib.get_close_matches(str(name), known, 1, 0.5)), None)
            hint = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
            raise BadInput(f"unknown {what} '{name}': {hint}")


def check_scale(scale: int, side: int) -> None:
    """BadInput for the scale of a packer that a grid of `side` x `side` patches does not have."""
    if scale < 2 or side % scale:
        fitting = ", ".join(str(size) for size in range(2, side + 1) if side % size == 0)
        raise BadInput(f"packer scale {scale} does not divide the {side} x {side} patches of a frame: choose one of {fitting}")


def check_squares(kind: str, size: int, side: int) -> None:
    """BadInput for a compression of squares that are larger than a grid of `side` x `side` patches."""
    if size > side:
        raise BadInput(f"{kind}:{size} is more than a frame has: its grid is {side} x {side}, choose a smaller number")


def check_risk(risk: float) -> float:
    """The risk itself, a share of wrong answers that is allowed; BadInput unless it lies between 0 and 1."""
    if isinstance(risk, bool) or not isinstance(risk, int | float) or not 0 < risk < 1:
        raise BadInput(f"a risk of {risk}: give the share of answers that may differ, above 0 and below 1, such as 0.05")
    return float(risk)
