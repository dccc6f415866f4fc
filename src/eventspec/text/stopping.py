"""When an answer ends: at a stop token, or at the token that completes a stop string. Both tokens are kept; who makes text of
them cuts it before the string."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def stop_rule(
    ids: Sequence[int], strings: Sequence[str] = (), decode: Callable[[Sequence[int]], str] = lambda ids: ""
) -> Callable[[Sequence[int], int], int | None]:
    """The engine's `Stopped`: (answer, how many tokens were checked before) -> how many to keep when it ends there, else
    None."""
    ending = frozenset(ids)

    def stopped(answer: Sequence[int], checked: int) -> int | None:
        kept = next((i + 1 for i in range(checked, len(answer)) if answer[i] in ending), None)
        if strings:
            until = len(answer) if kept is None else kept
            for count in range(checked + 1, until + 1):
                text = decode(answer[:count])
                if any(string in text for string in strings):
                    return count
        return kept

    return stopped
