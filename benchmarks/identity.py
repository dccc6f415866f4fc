r"""Long answers of every method, head and kind of tree, token by token beside plain decoding: how many differ?

python benchmarks/identity.py --tokens 1000000 --temperature 2     # sampled
python benchmarks/identity.py --tokens 1000000 --temperature 0     # greedy
python benchmarks/identity.py --ties 460                           # answers with a tie of the two best tokens

Writes its part of benchmarks/results/identity.json, behind every question what was seen so far, and goes on from there when it
is started again (`--anew`: from the start). One thread; `--core N` pins it, so that two runs can share a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from eventspec.core import Sampling, write_text
from eventspec.experiments.compare import environment
from eventspec.experiments.identity import Asked, Tally, compare_answers, heads_of, methods_of, tie_of, verdict
from eventspec.pairs import load_pair
from eventspec.pairs.pair import DATA
from eventspec.recordings import Recording

RESULTS = Path(__file__).parent / "results/identity.json"
QUESTIONS = ("Describe the scene.", "What is ahead?", "How many road users are visible?", "Is anybody crossing the road?")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pair", default="nano")
    options.add_argument("--tokens", type=int, default=1_000_000)
    options.add_argument("--temperature", type=float, default=2.0)
    options.add_argument("--ties", type=int, default=0)
    options.add_argument("--length", type=int, default=400)
    options.add_argument("--seed", type=int, default=5000)
    options.add_argument("--core", type=int)
    options.add_argument("--anew", action="store_true")
    options.add_argument("--out", type=Path, default=RESULTS)
    found = options.parse_args()
    torch.set_num_threads(1)
    if found.core is not None:
        os.sched_setaffinity(0, {found.core})
    pair = load_pair(found.pair, "one")
    arms = [*methods_of(pair), *heads_of(pair)]
    recordings = [Recording.open(path) for path in sorted((DATA / "clips").iterdir())]

    kind = "ties" if found.ties else f"temperature {found.temperature:g}"
    known = json.loads(found.out.read_text()) if found.out.exists() else {}
    before = {} if found.anew else known.get(kind, {})
    if before and (before["seed"], before["weights"]) != (found.seed, pair.fingerprint()):
        sys.exit(f"{found.out} was measured with other seeds or weights: add --anew")
    tallies = {name: Tally(**told) for name, told in before.get("by_arm", {}).items()}
    place = before.get("questions", 0)

    def asked() -> Iterator[Asked]:
        nonlocal place
        number = place
        while True:
            recording, question = recordings[number % len(recordings)], QUESTIONS[number // len(recordings) % len(QUESTIONS)]
            name = f"{recording.name}, {question}, {found.seed + number}"
            if found.ties:
                at = number // (len(recordings) * len(QUESTIONS))
                sampling = tie_of(pair, recording, question, at, 64)
            else:
                # Greedy answers of one question are one answer: a penalty that differs makes them many.
                drawn = {"seed": found.seed + number} if found.temperature else {"frequency_penalty": 0.01 * (number // 8)}
                sampling = Sampling(temperature=found.temperature, max_new_tokens=found.length, banned_ids=(pair.end,), **drawn)
            number += 1
            if sampling is not None:
                place = number
                yield Asked(name, recording, question, sampling)

    began = time.monotonic()
    for _ in compare_answers(pair, arms, asked(), tallies=tallies):
        different, failed, tokens = verdict(tallies)
        answers = sum(tally.answers for name, tally in tallies.items() if name != "autoregressive")
        told = {
            "arms": len(arms),
            "questions": place,
            "answers": answers,
            "tokens": tokens,
            "different": different,
            "failed": failed,
            "near_ties": sum(tally.near_ties for tally in tallies.values()),
            "rounding": pair.target.limits.rounding,
            "minutes": round(before.get("minutes", 0.0) + (time.monotonic() - began) / 60, 1),
            "seed": found.seed,
            "weights": pair.fingerprint(),
            "environment": environment(pair, ["real"]),
            "by_arm": {name: tally.as_json() for name, tally in tallies.items()},
        }
        known = json.loads(found.out.read_text()) if found.out.exists() else {}  # another run may write its part
        write_text(found.out, json.dumps({**known, kind: told}, indent=1) + "\n")
        print(f"{tokens} tokens, {answers} answers, {different} differ, {failed} drafters failed", file=sys.stderr, flush=True)
        if (answers >= found.ties * len(arms)) if found.ties else (tokens >= found.tokens):
            break
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
