r"""Several answers in one forward: what one answer pays for the batch axis, and what several save.

python benchmarks/batch.py            # 1, 2, 4 and 8 answers of the bundled pair, trees of 1, 4 and 16 rows

Ratios of sums over interleaved forwards, 95 % intervals by bootstrap over blocks of them. Writes its part of
benchmarks/results/batch.json, by processor. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.ask.generation import media_of
from eventspec.core import Proposal, Sampling, Trace
from eventspec.experiments.compare import environment
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.files import write_text
from eventspec.models.session import LanguageSession, score_together
from eventspec.nn.runner import Rows
from eventspec.pairs import load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

RESULTS = Path(__file__).parent / "results/batch.json"
ANSWERS, ROWS = (2, 4, 8), (1, 4, 16)
QUESTIONS = ("Describe the scene.", "What is ahead?", "How many road users are visible?", "Is anybody crossing the road?")
BLOCK = 20


def sessions(count: int) -> list[LanguageSession]:
    """So many answers about one recording, their prompts read."""
    target = load_pair("nano", "one", fit=False).parts.language_target
    context = target.encode(media_of(Recording.open(DATA / "clips/street_scene")), Trace())
    found = []
    for number in range(count):
        session = context.open(QUESTIONS[number % len(QUESTIONS)], Sampling(max_new_tokens=64), 1, Trace())
        assert isinstance(session, LanguageSession)
        found.append(session)
    return found


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratio(one: list[float], other: list[float]) -> dict[str, Any]:
    """Time of `one` over time of `other`."""
    blocks = [f"{number // BLOCK}" for number in range(len(one))]
    return {"ratio": ratio_of_sums(one, other), "ci95": ratio_interval(one, other, blocks), "n": len(one)}


def all_of_it(session: LanguageSession, rows: Rows) -> None:
    """The control: as many rows of one answer, which attend together."""
    hidden, _ = session.language.runner().step(rows)
    session.language.logits(hidden)


def one_by_one(some: list[LanguageSession], draft: Proposal) -> None:
    for session in some:
        session.score(draft)


@torch.inference_mode()
def measured(repeats: int) -> dict[str, Any]:
    many = sessions(max(ANSWERS))
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for rows in ROWS:
        spent: dict[str, list[float]] = {}
        draft = Proposal.chain(rng.integers(0, 200, rows - 1))
        runner, asked = many[0].language.runner(), many[0].asked(draft)
        for turn in range(repeats + 5):
            works: dict[str, Any] = {
                "one": partial(runner.step, Rows(asked.x, asked.cache)),
                "one, batch axis": partial(runner.step_together, [Rows(asked.x, asked.cache)]),
            }
            for count in ANSWERS:
                works[f"{count}"] = partial(score_together, many[:count], [draft] * count)
                works[f"{count} alone"] = partial(one_by_one, many[:count], draft)
                longer = many[0].asked(Proposal.chain(rng.integers(0, 200, rows * count - 1)))
                works[f"{count} times the rows"] = partial(all_of_it, many[0], longer)
            for name in rng.permutation(list(works)):
                took = seconds(works[name])
                if turn >= 5:
                    spent.setdefault(name, []).append(took)
        found[f"{rows} rows"] = {
            "batch axis / none, one answer": ratio(spent["one, batch axis"], spent["one"]),
            **{f"{n} answers alone / together": ratio(spent[f"{n} alone"], spent[f"{n}"]) for n in ANSWERS},
            **{
                f"{n} answers alone / one answer of as many rows (ceiling)": ratio(
                    spent[f"{n} alone"], spent[f"{n} times the rows"]
                )
                for n in ANSWERS
            },
        }
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=200)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    if given.repeats < BLOCK:
        options.error(f"--repeats is {given.repeats}: give at least {BLOCK}")
    torch.set_num_threads(1)
    about = environment(load_pair("nano", "one", fit=False), ["real"])
    told = {"environment": about, "one thread": measured(given.repeats)}
    print(json.dumps(told, indent=1))
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    write_text(given.out, json.dumps({**known, about["processor"]: told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
