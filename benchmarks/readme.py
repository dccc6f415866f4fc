r"""Writes the README's figures from benchmarks/results/main-job.json, so that no number in it is typed by hand.

python benchmarks/readme.py            # rewrite the block between the markers
python benchmarks/readme.py --check    # exit 1 when the block is not what the results say

The results are what this prints on a quiet machine:

eventspec scenes make --clips 100 --split test --seed 8800 --out street
eventspec bench compare --questions street/qa.jsonl --limit 200 --device-plan two --out rows.jsonl --json \
    --method autoregressive --method cross-modal --method eagle --method specvlm --method prior --method ngram \
    --events real --events shuffled --events blank --drafter fine:retokenize --drafter fine:intersect \
    --head eagle3 --head eagle1 --head eagle:chain --compress pool:3 --compress packer:2 > benchmarks/results/main-job.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/main-job.json"
BEGIN, END = "<!-- figures: benchmarks/readme.py -->", "<!-- end of figures -->"
HEADS = (
    "method",
    "speedup (95 %)",
    "tau",
    "accepted of drafted levels",
    "first choice right where the prior is wrong",
    "first provisional, ms",
    "of them kept",
    "first committed, ms",
    "identical",
)


def block() -> str:
    """The README's figures."""
    found = json.loads(RESULTS.read_text())
    methods, where = found["methods"], found["environment"]
    own, base, prior = methods["cross-modal"], methods["autoregressive"], methods["prior"]
    rows = "\n".join(f"| {' | '.join(row(name, figures))} |" for name, figures in methods.items())
    return f"""{BEGIN}
{found["n"]} held-out questions about {found["recordings"]} scenes, one core for each model ({where["processor"]}, fp32,
pair `{where["pair"]}`), one interleaved run, ratios of sums: `cross-modal` answers **{own["speedup"]:.2f}x** as fast as the
target alone, of a ceiling of **{own["ceiling"]:.2f}x**, and {own["against"]["prior"][0]:.2f}x as fast as with drafts from the
blind text prior. Its first provisional token comes after {own["first_provisional_ms"]:.0f} ms, {own["provisional_kept"]:.0%} of
such tokens are kept; the first committed one comes after {own["first_committed_ms"]:.0f} ms, {later(own, base)} than without a
draft. {own["identical"]} of {found["n"]} answers are identical to the target's.

| {" | ".join(HEADS)} |
|{"---|" * len(HEADS)}
{rows}

{prior["vision_share"]:.0%} of the answer tokens ({prior["vision_tokens"]}) are ones that the blind prior gets wrong.
The target answers {base["exact_match_short"]:.0%} of the short questions exactly right ({base["exact_match"]:.0%} of all).
{END}"""


def later(own: dict[str, Any], base: dict[str, Any]) -> str:
    milliseconds = own["first_committed_ms"] - base["first_committed_ms"]
    return f"{abs(milliseconds):.1f} ms {'later' if milliseconds > 0 else 'sooner'}"


def row(name: str, found: dict[str, Any]) -> list[str]:
    """One line of the table."""
    low, high = found["speedup_ci95"]
    right = None if name == "prior" else found["acceptance_vision"]  # the prior is wrong there by definition
    early = found["first_provisional_ms"]
    return [
        name,
        f"{found['speedup']:.2f} ({low:.2f} to {high:.2f})",
        f"{found['tau']:.2f}",
        share(found["acceptance"]),
        share(right),
        "-" if early is None else f"{early:.0f}",
        share(found["provisional_kept"]),
        f"{found['first_committed_ms']:.0f}",
        str(found["identical"]),
    ]


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def main() -> int:
    path = ROOT / "README.md"
    text = path.read_text()
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    fresh = text[:begin] + block() + text[end:]
    if "--check" in sys.argv:
        return int(fresh != text)
    path.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
