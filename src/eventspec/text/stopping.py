"""When an answer ends: at a stop token, or at the token that completes a stop string. Both tokens are kept; its text ends
before the string (``text.pieces``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventspec.text.pieces import Decode, Transcript


def stop_rule(
    ids: Sequence[int], strings: Sequence[str] = (), decode: Decode = lambda ids: ""
) -> Callable[[Sequence[int], int], int | None]:
    """The engine's `Stopped`: (answer, how many tokens were checked before) -> how many to keep when it ends there, else
    None."""
    ending = frozenset(ids)
    read, transcript = list[int](), Transcript(decode, strings)

    def stopped(answer: Sequence[int], checked: int) -> int | None:
        nonlocal read, transcript
        kept = next((i + 1 for i in range(checked, len(answer)) if answer[i] in ending), None)
        if not strings:
            return kept
        if read != list(answer[:checked]):  # as a rule what it has read is what was checked
            transcript = Transcript(decode, strings).behind(answer[:checked])
        read = list(answer[:kept])
        if transcript.stopped:
            return kept
        for place in range(checked, len(read)):
            if transcript.add(answer[place]):
                return place + 1
        return kept

    return stopped
