"""What may be chosen beside a method, as it is typed: NAME[:CHOICE] of heads, event drafters and compressions."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from eventspec.core import BadInput

USUAL_TREE = "dynamic"
"""How a head's draft tree grows."""
USUAL_MAPPING = "auto"
"""How an event drafter's ids become the target's."""


def name_and_choice(text: str, usual: str, known: Container[str] = ()) -> tuple[str, str]:
    """NAME or NAME:CHOICE -> both. A `known` name, and an existing folder, may hold colons of its own."""
    name, mark, choice = text.rpartition(":")
    bare = text in known or Path(text).is_dir() or not mark or "/" in choice
    return (text, usual) if bare else (name, choice)


@dataclass(frozen=True)
class CompressionSpec:
    """Which visual rows a lossy target leaves out: `packer` (trained), or a `kind` of `compress.lossy`; one of `size` stays."""

    kind: str
    size: int

    @classmethod
    def parse(cls, text: str) -> CompressionSpec:
        """KIND:SIZE; BadInput for anything else."""
        kind, _, size = text.partition(":")
        if not size.isdecimal() or len(size) > 6:
            raise BadInput(f"compression '{text}' cannot be read: give KIND:SIZE, such as pool:3")
        return cls(kind, int(size))

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}"
