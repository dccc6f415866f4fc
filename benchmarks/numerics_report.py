r"""Writes the figures of docs/numerics.md from benchmarks/results/rounding.json, identity.json and invariance.json.

python benchmarks/numerics_report.py            # rewrite the blocks between the markers
python benchmarks/numerics_report.py --check    # exit 1 when a block is not what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from pages import ROOT, settle, with_blocks

PAGE = ROOT / "docs/numerics.md"
KINDS = {
    "temperature 2": "sampled at temperature 2, 400 tokens an answer",
    "temperature 0": "greedy, 400 tokens an answer",
    "ties": "greedy, with a bias that makes the two best tokens equal at one position",
    "ties, not settled": "the same, near ties only counted (control)",
}


def results(name: str) -> dict[str, Any]:
    path = ROOT / "benchmarks/results" / name
    if not path.exists():
        sys.exit(f"{path} is missing: the benchmark of that name writes it")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def identity() -> str:
    rows = ["| answers | processor | plain answers (tokens) | arms | compared with them | tokens | near ties | differ |"]
    rows += ["|---|---|---|---|---|---|---|---|"]
    found = results("identity.json")
    for kind, words in KINDS.items():
        for machine, kinds in found.items():
            if one := kinds.get(kind):
                plain = f"{one['plain_answers']:,} ({one['plain_tokens']:,})"
                figures = (plain, one["arms"], f"{one['answers']:,}", f"{one['tokens']:,}", f"{one['near_ties']:,}")
                rows.append(f"| {words} | {machine} | {' | '.join(map(str, figures))} | {one['different']} |")
    rounding = sorted({f"{one['rounding']:.1e}" for kinds in found.values() for one in kinds.values()})
    return "\n".join([*rows, "", f"fp32; near ties are those closer than {', '.join(rounding)}."])


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


def rounding() -> str:
    rows = ["| processor | rows | largest difference | largest move of a gap | margin |", "|---|---|---|---|---|"]
    for machine, one in results("rounding.json").items():
        figures = (f"{one['rows']:,}", *(f"{one[name]:.1f}" for name in ("largest_of_load", "largest_gap_of_load", "margin")))
        rows.append(f"| {machine} | {' | '.join(figures)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    blocks = {"rounding": rounding(), "identity": identity(), "invariance": invariance()}
    return settle({PAGE: with_blocks(PAGE, "numerics_report.py", blocks)}, options.check)


if __name__ == "__main__":
    sys.exit(main())
