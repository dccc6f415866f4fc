"""No block of code stands in two files. Only literal repetition is seen: the same lines, whatever their indentation."""

from __future__ import annotations

LINES = 12


def code_lines(text: str) -> list[tuple[int, str]]:
    """Line number and normalised text of what counts: no blank lines, comments or imports."""
    stripped = ((number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in stripped if line and not line.startswith(("#", "import ", "from "))]


def duplicates(modules: dict[str, str]) -> list[str]:
    """One line for each pair of files that share LINES consecutive lines of code, where it first shows."""
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    found: dict[tuple[str, str], str] = {}
    for name, text in modules.items():
        lines = code_lines(text)
        for start in range(len(lines) - LINES + 1):
            block = tuple(line for _, line in lines[start : start + LINES])
            other, where = seen.setdefault(block, (name, lines[start][0]))
            if other != name:
                found.setdefault((other, name), f"{name}:{lines[start][0]} repeats {other}:{where}")
    return list(found.values())


def test_no_block_stands_in_two_files(modules: dict[str, str]) -> None:
    # Examples are left out: each must be readable, and copied, alone.
    found = duplicates({name: text for name, text in modules.items() if not name.startswith("examples/")})
    assert not found, "\n".join(found)


def test_a_planted_copy_is_found() -> None:
    block = [f"x{i} = {i}" for i in range(LINES)]
    first = "\n".join(block)
    second = "def f():\n" + "\n\n".join(f"    {line}" for line in block)
    assert duplicates({"a.py": first, "b.py": second}) == ["b.py:2 repeats a.py:1"]
    assert duplicates({"a.py": first, "b.py": second.replace("x5", "y5")}) == []
