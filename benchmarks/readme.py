"""Writes the README's figures from benchmarks/results/*.json, so that no number in it is typed by hand.

python benchmarks/readme.py            # rewrite the block between the markers
python benchmarks/readme.py --check    # exit 1 when the block is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures: benchmarks/readme.py -->", "<!-- end of figures -->"


def block() -> str:
    """The README's figures."""
    real, shuffled = (
        json.loads((ROOT / f"benchmarks/results/main-job-{name}.json").read_text()) for name in ("real", "shuffled")
    )
    where, own = real["environment"], real["methods"]["cross-modal"]
    base, other = real["methods"]["autoregressive"], shuffled["methods"]["cross-modal"]
    low, high = own["speedup_ci95"]
    methods = {**real["methods"], "cross-modal, another clip's events": other}
    rows = "\n".join(row(name, found) for name, found in methods.items())
    return f"""{BEGIN}
On {real["n"]} held-out scene questions, one core for each model ({where["processor"]}, fp32, pair `{where["pair"]}`, one
interleaved run, ratio of sums): `cross-modal` answers **{own["speedup"]:.2f}x** as fast as the target alone (95 % interval
{low:.2f} to {high:.2f}), of a ceiling of **{own["ceiling"]:.2f}x**. The first provisional token comes after
{own["first_provisional_ms"]:.0f} ms, the first committed one after {own["first_committed_ms"]:.0f} ms.
{own["identical"]} of {real["n"]} answers are identical to the target's own. The blind text prior alone gives
{methods["prior"]["speedup"]:.2f}x, and the same drafter with another clip's events {other["speedup"]:.2f}x. The target on
all cores, without any drafter, is {real["autoregressive_all_cores"]["speedup"]:.2f}x as fast as on one.

| method | speedup | tau | accepted / drafted | accepted where the prior is wrong | identical |
|---|---|---|---|---|---|
{rows}

{methods["prior"]["vision_share"]:.0%} of the answer tokens are ones that the blind prior gets wrong.
The target answers {base["exact_match_short"]:.0%} of the short questions exactly right ({base["exact_match"]:.0%} of all).
{END}"""


def row(name: str, found: dict[str, Any]) -> str:
    accepted = "-" if found["acceptance"] is None else f"{found['acceptance']:.2f}"
    return f"| {name} | {found['speedup']:.2f} | {found['tau']:.2f} | {accepted} | {share(found)} | {found['identical']} |"


def share(found: dict[str, Any]) -> str:
    return "-" if found["acceptance_vision"] is None else f"{found['acceptance_vision']:.2f}"


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
