r"""Writes the figures of docs/numerics.md from benchmarks/results/identity.json and invariance.json.

python benchmarks/numerics_report.py            # rewrite the blocks between the markers
python benchmarks/numerics_report.py --check    # exit 1 when a block is not what the results say
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/numerics.md"
KINDS = {
    "temperature 2": "sampled at temperature 2, 400 tokens an answer",
    "temperature 0": "greedy, 400 tokens an answer",
    "ties": "greedy, with a bias that makes the two best tokens equal at one position",
    "ties, not settled": "the same, near ties only counted (control)",
}


def results(name: str) -> dict[str, Any]:
    path = ROOT / "benchmarks/results" / name
    return json.loads(path.read_text()) if path.exists() else {}


def identity() -> str:
    rows = ["| answers | arms | answers compared | tokens | near ties | differ |", "|---|---|---|---|---|---|"]
    found = results("identity.json")
    for kind, words in KINDS.items():
        if one := found.get(kind):
            figures = (one["arms"], f"{one['answers']:,}", f"{one['tokens']:,}", f"{one['near_ties']:,}", one["different"])
            rows.append(f"| {words} | {' | '.join(map(str, figures))} |")
    machines = sorted({one["environment"]["processor"] for one in found.values()})
    rounding = sorted({f"{one['rounding']:.1e}" for one in found.values()})
    return "\n".join([*rows, "", f"{', '.join(machines)}, fp32; near ties are those closer than {', '.join(rounding)}."])


def invariance() -> str:
    found = results("invariance.json")
    names = list(next(iter(found.values()))["steps"])
    rows = [f"| a step, in steps of today's | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    rows += [f"| {name} | {' | '.join(format(one['steps'][name], '.2f') for one in found.values())} |" for name in names[1:]]
    rows += ["", f"| rows with the bits of a single step: chain, tree | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for name in next(iter(found.values()))["same_bits"]:
        shares = [f"{one['same_bits'][name]['chain']:.0%}, {one['same_bits'][name]['tree']:.0%}" for one in found.values()]
        rows.append(f"| {name} | {' | '.join(shares)} |")
    rows += ["", "Row counts up to 40 with which a product of K x N gives a row other bits than among 64 rows:", ""]
    rows += [f"| N x K | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for shape in next(iter(found.values()))["products"]:
        told = [
            "; ".join(f"{kernel} {', '.join(map(str, counts)) or 'none'}" for kernel, counts in one["products"][shape].items())
            for one in found.values()
        ]
        rows.append(f"| {shape} | {' | '.join(told)} |")
    return "\n".join(rows)


def main() -> int:
    page = PAGE.read_text()
    written = page
    for name, block in (("identity", identity()), ("invariance", invariance())):
        begin, end = f"<!-- {name}: benchmarks/numerics_report.py -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        written = pattern.sub(lambda match, text=f"{begin}\n{block}\n{end}": text, written)  # type: ignore[misc]
    if "--check" in sys.argv[1:]:
        return int(written != page)
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
