r"""Writes the README's figures from benchmarks/results/shared-cores.json and main-job.json, so that no number in it is typed by
hand.

python benchmarks/readme.py            # rewrite the block between the markers
python benchmarks/readme.py --check    # exit 1 when the block is not what the results say

The results are what this prints on a quiet machine:

eventspec scenes make --clips 100 --split test --seed 8800 --out street
eventspec bench compare --questions street/qa.jsonl --limit 200 --device-plan two --out rows.jsonl --json \
    --method autoregressive --method auto --method cross-modal --method hybrid --method eagle --method specvlm \
    --method prior --method ngram \
    --events real --events shuffled --events blank --drafter fine:retokenize --drafter fine:intersect \
    --head eagle3 --head eagle1 --head eagle:chain --compress pool:3 --compress packer:2 > benchmarks/results/main-job.json
eventspec bench compare --questions street/qa.jsonl --limit 200 --out shared.jsonl --json \
    --method autoregressive --method auto --method cross-modal --method hybrid --method hybrid-blind --method eagle \
    --method prior --events real --events shuffled > benchmarks/results/shared-cores.json
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks/results"
APART, SHARED, IDENTITY = FOLDER / "main-job.json", FOLDER / "shared-cores.json", FOLDER / "identity.json"
BEGIN, END = "<!-- figures: benchmarks/readme.py -->", "<!-- end of figures -->"
ROWS = {
    "autoregressive": "`autoregressive`: the target alone",
    "autoregressive, all cores": "the same with all cores for itself",
    "auto": "`auto`, the default: chooses",
    "hybrid": "`hybrid`: drafts from every source",
    "cross-modal": "`cross-modal`: drafts from the event camera",
    "cross-modal, shuffled events": "the same with another clip's events (control)",
    "prior": "`prior`: drafts from the blind prior (control)",
}
"""Rows of the table, as far as they were measured."""


def block() -> str:
    """The README's figures."""
    found, shared = json.loads(APART.read_text()), json.loads(SHARED.read_text())
    methods, plain, chosen = found["methods"], shared["methods"]["autoregressive"], shared["methods"]["auto"]
    own, base, prior = methods["cross-modal"], methods["autoregressive"], methods["prior"]
    ways = [shared, found]
    rows = "\n".join(row(says, [one["methods"].get(name) for one in ways]) for name, says in ROWS.items())
    assert all(one["methods"][name]["identical"] == one["n"] for one in ways for name in ROWS if name in one["methods"])
    where = found["environment"]
    heads = [
        f"{about}: speedup (95 %) | first guess | first token" for about in ("cores shared out (default)", "one core a model")
    ]
    share, over_prior = prior["vision_share"], own["against"]["prior"][0]
    early, kept = own["first_provisional_ms"], own["provisional_kept"]
    runs = [
        run for machine in json.loads(IDENTITY.read_text()).values() for name, run in machine.items() if name.startswith("temp")
    ]
    compared, differ = (sum(run[what] for run in runs) for what in ("tokens", "different"))
    gains = (
        f"{where['processor']}, {where['cores']} cores, n = {found['n']}; the answers of each row are the target's own. Cores "
        f"shared out, a target alone has all of them, and an answer takes {plain['total_ms']:.0f} ms, with `auto` "
        f"{chosen['total_ms']:.0f}, of a ceiling of {chosen['ceiling']:.2f}x. With one core a model the ceiling is "
        f"{own['ceiling']:.2f}x. On this street "
        f"{1 - share:.0%} of the tokens can be guessed blind: drafts from the event camera are {over_prior:.2f}x as fast as "
        "those of the prior. What the event camera alone gives is an early guess that has seen the scene: after "
        f"{early:.0f} ms, where the target's first token comes after {base['first_committed_ms']:.0f}; {kept:.0%} of the "
        "guessed tokens are confirmed."
    )
    exact = (
        "In fp32 every lossless method was compared with plain decoding, sampled and greedy, over "
        f"{compared / 1e6:.1f} million tokens: {differ} answers differ."
    )
    return f"""{BEGIN}
| method | {" | ".join(heads)} | tau |
|---|{"---|" * (3 * len(ways))}---|
{rows}

{textwrap.fill(gains, 128)}

{textwrap.fill(exact, 128)}
{END}"""


def row(says: str, found: list[dict[str, Any] | None]) -> str:
    """One line of the table: a method on both placements, and its tau on the second."""
    cells = [says]
    for one in found:
        if one is None:
            cells += ["-"] * 3
            continue
        low, high = one["speedup_ci95"]
        early = one["first_provisional_ms"]
        cells += [
            f"{one['speedup']:.2f} ({low:.2f} to {high:.2f})",
            "-" if early is None else f"{early:.0f} ms",
            f"{one['first_committed_ms']:.0f} ms",
        ]
    tau = "-" if found[-1] is None else f"{found[-1]['tau']:.2f}"
    return f"| {' | '.join([*cells, tau])} |"


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
