"""What the scripts that write documentation share: blocks between markers, and files that must be what the results say."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from eventspec.files import write_text

ROOT = Path(__file__).resolve().parents[1]


def with_blocks(page: Path, script: str, blocks: Mapping[str, str]) -> str:
    """The text of a page with each block between `<!-- NAME: benchmarks/SCRIPT -->` and `<!-- end of NAME -->`."""
    text = page.read_text()
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: benchmarks/{script} -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(text):
            sys.exit(f"{page} has no place for {name}: it stands between {begin} and {end}")
        before, after = pattern.split(text, maxsplit=1)
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text


def settle(files: Mapping[Path, str], check: bool) -> int:
    """Write these files, or with `check` say which are not what the results say; the exit code."""
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if check:
        for path in stale:
            print(f"{path} is not what the results say: run this without --check", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, files[path])
    return 0


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table with an empty line behind it; intervals, `(0.9 to 1.1)`, are not broken over lines."""
    cells = [[re.sub(r"\((\S+) to (\S+)\)", "(\\1\u00a0to\u00a0\\2)", cell) for cell in row] for row in rows]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in cells), ""]


def spread(found: list[float | None], form: str = ".2f") -> str:
    """A value and its interval."""
    value, low, high = found
    if value is None:
        return "-"
    return f"{value:{form}}" if low is None or high is None else f"{value:{form}} ({low:{form}} to {high:{form}})"
