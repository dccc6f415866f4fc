"""Pages of the documentation, as their tests read them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

FENCE = re.compile(r"(?:^<!-- run: (?P<how>[^>]*?) -->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; how: "", "long", or "no, " and the reason why it is not run."""

    kind: str
    code: str
    how: str
    line: int


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page that say which language they are in."""
    found = FENCE.finditer(text)
    return [Block(b["kind"], b["code"], b["how"] or "", text[: b.start("code")].count("\n") + 1) for b in found]


def command_lines(text: str) -> list[list[str]]:
    """The words of every line of a page's shell blocks, `\\` at its end joined, comments left out."""
    found = []
    for block in blocks(text):
        if block.kind == "sh":
            for line in block.code.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    found.append(words)
    return found
