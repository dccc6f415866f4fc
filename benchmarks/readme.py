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
LEAST = 2_000_000
"""Tokens that are to be compared of the weights that ship."""
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
    methods, together, where = found["methods"], shared["methods"], found["environment"]
    own, base, prior, hybrid = (methods[name] for name in ("cross-modal", "autoregressive", "prior", "hybrid"))
    rows = "\n".join(row(says, together.get(name), methods[name]) for name, says in ROWS.items())
    assert all(
        one["methods"][name]["identical"] == one["n"] for one in (found, shared) for name in ROWS if name in one["methods"]
    )
    plain, chosen = (together[name] for name in ("autoregressive", "auto"))
    early, first = own["first_provisional_ms"], base["first_committed_ms"]
    kept, by_prior, by_others = (one["provisional_kept"] for one in (own, prior, methods["cross-modal, shuffled events"]))
    gains = (
        f"{where['processor']}, {where['cores']} cores, n = {found['n']}; the answers of each row are the target's own. By "
        "default cores are shared out: a target that nobody drafts beside has all of them. An answer then takes "
        f"{plain['total_ms']:.0f} ms, with `auto` {chosen['total_ms']:.0f}, of a ceiling of {chosen['ceiling']:.2f}x. The "
        f"event camera is not why: `auto` is {times(chosen, 'prior')} as fast as the blind `prior` and "
        f"{times(chosen, 'auto, shuffled events')} as fast as with another clip's events. With one core a model, as on two "
        f"accelerators, the ceiling is {own['ceiling']:.2f}x, and `hybrid` is {times(hybrid, 'prior')} as fast as `prior` and "
        f"{times(hybrid, 'hybrid, shuffled events')} as fast as with another clip's events. {1 - prior['vision_share']:.0%} of "
        f"the tokens can be guessed blind. A first guess that has seen the scene comes after {early:.0f} ms, where the "
        f"target's first token comes after {first:.0f}; {kept:.0%} of the guesses are confirmed ({by_prior:.0%} of the "
        f"prior's, {by_others:.0%} with another clip's events)."
    )
    return f"""{BEGIN}
| method | speedup (95 %), cores shared out | speedup, one core a model | first guess | first token | tau |
|---|---|---|---|---|---|
{rows}

{textwrap.fill(gains, 128)}

{textwrap.fill(exact(where["pair_sha256"]), 128)}
{END}"""


def exact(weights: str) -> str:
    """What was compared token by token: with the weights that ship, or with earlier ones until that is done."""
    runs = [
        run for machine in json.loads(IDENTITY.read_text()).values() for name, run in machine.items() if name.startswith("temp")
    ]
    own = [run for run in runs if run["weights"] == weights]
    runs, which = (own, "") if sum(run["tokens"] for run in own) >= LEAST else (runs, " with earlier weights of this pair")
    tokens, plain, differ = (sum(run[what] for run in runs) for what in ("tokens", "plain_tokens", "different"))
    ways = max(run["arms"] for run in runs)
    return (
        f"In fp32, sampled and greedy, {ways} methods, heads and trees were compared with plain decoding{which}, over "
        f"{tokens / 1e6:.1f} million tokens (answers of {plain:,} tokens, drafted in each way): {differ} answers differ."
    )


def times(own: dict[str, Any], control: str) -> str:
    """How many times as fast as a control, with its interval."""
    ratio, low, high = own["against"][control]
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})"


def row(says: str, shared: dict[str, Any] | None, apart: dict[str, Any]) -> str:
    """One line of the table: a method on both placements; times are those with one core a model."""
    speeds = [
        "-" if one is None else "{:.2f} ({:.2f} to {:.2f})".format(one["speedup"], *one["speedup_ci95"])
        for one in (shared, apart)
    ]
    early = apart["first_provisional_ms"]
    guess = "-" if early is None else f"{early:.0f} ms"
    cells = [says, *speeds, guess, f"{apart['first_committed_ms']:.0f} ms", f"{apart['tau']:.2f}"]
    return f"| {' | '.join(cells)} |"


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
