"""What a reader sees while an answer grows."""

from __future__ import annotations

import io

from rich.console import Console

from eventspec.cli.show import Shown, joined, replay
from eventspec.core import Committed, Provisional, Retracted, Update

UPDATES: list[tuple[float, Update]] = [
    (0.010, Provisional((1,))),
    (0.020, Provisional((2, 3))),
    (0.030, Provisional((4,))),
    (0.050, Committed((1, 2))),
    (0.050, Retracted(2)),
    (0.060, Committed((7,))),
]


def letters(ids: object) -> str:
    return "".join(chr(96 + i) for i in ids)  # type: ignore[attr-defined]


def test_a_page_keeps_committed_provisional_and_retracted_apart() -> None:
    page = Shown()
    for _, update in UPDATES[:5]:
        page.take(update)
    assert (page.committed, page.provisional, page.retracted) == ([1, 2], [], [3, 4])
    page.take(UPDATES[5][1])
    assert page.committed == [1, 2, 7]


def test_provisional_neighbours_are_joined_and_nothing_else_changes() -> None:
    found = joined(UPDATES)
    assert found[0] == (0.010, Provisional((1, 2, 3, 4)))
    assert found[1:] == UPDATES[3:]
    one, two = Shown(), Shown()
    for _, update in UPDATES:
        one.take(update)
    for _, update in found:
        two.take(update)
    assert one == two


def test_lines_say_when_what_happened() -> None:
    page = io.StringIO()
    replay(Console(file=page, width=100), joined(UPDATES), letters, slower=1.0)
    lines = [line.split() for line in page.getvalue().splitlines()]
    assert lines == [
        ["10.0", "ms", "provisional", "abcd"],
        ["50.0", "ms", "committed", "ab"],
        ["50.0", "ms", "retracted", "…cd"],
        ["60.0", "ms", "committed", "…g"],
    ]


def test_a_line_tells_where_a_word_goes_on() -> None:
    page, pieces = io.StringIO(), ["", "A", " cy", "clist", ".", " Two"]
    updates: list[tuple[float, Update]] = [(0.0, Committed((place,))) for place in range(1, 6)]
    replay(Console(file=page, width=100), updates, lambda ids: "".join(pieces[i] for i in ids), slower=1.0)
    assert [line.split()[-1] for line in page.getvalue().splitlines()] == ["A", "cy", "…clist", ".", "Two"]
