r"""Long answers of every method, head and kind of tree, token by token beside plain decoding: how many differ?

python benchmarks/identity.py --tokens 1000000 --temperature 2     # sampled
python benchmarks/identity.py --tokens 1000000 --temperature 0     # greedy
python benchmarks/identity.py --ties 460                           # answers with a tie of the two best tokens
python benchmarks/identity.py --ties 460 --unsettled               # the control: near ties are only counted

Writes its part of benchmarks/results/identity.json, by processor: behind every question what was seen so far, and goes on from
there when it is started again (`--anew`: from the start). One thread; `--core N` pins it, so that two runs can share a machine.
Two can also share one measurement: the other begins at another question (`--first 1000 --out FILE`), and what it saw is added
at the end (`--add FILE`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.core import BadInput, EventspecError, Sampling
from eventspec.experiments.compare import environment
from eventspec.experiments.identity import BASE, Asked, Tally, compare_answers, heads_of, methods_of, tie_of, verdict
from eventspec.files import check_writable, write_text
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording

RESULTS = Path(__file__).parent / "results/identity.json"
SUMMED = ("plain_answers", "plain_tokens", "answers", "tokens", "different", "failed", "near_ties", "minutes")
QUESTIONS = ("Describe the scene.", "What is ahead?", "How many road users are visible?", "Is anybody crossing the road?")


def scene(seed: int, index: int) -> Recording:
    """A held-out scene, rendered on the spot."""
    return as_recording(make_clip(split_seed("test", seed, index)), f"scene {index}")


def asked(options: argparse.Namespace, pair: Pair, first: int) -> Iterator[tuple[int, Asked]]:
    """Numbered questions from the `first` on, without end: four about every scene."""
    for number in count(first):
        index, which = divmod(number, len(QUESTIONS))
        if number == first or not which:
            recording = scene(options.seed, index)
        if options.ties:
            place = int(np.random.default_rng((options.seed, number)).integers(64))
            sampling = tie_of(pair, recording, QUESTIONS[which], place, 64)
        else:
            drawn = {"seed": options.seed + number, "max_new_tokens": options.length, "banned_ids": (pair.eos_id,)}
            sampling = Sampling(temperature=options.temperature, **drawn)
        if sampling is not None:
            yield number, Asked(f"{recording.name}, {QUESTIONS[which]}", recording, QUESTIONS[which], sampling)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="nano")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--ties", type=int, default=0)
    parser.add_argument("--unsettled", action="store_true")
    parser.add_argument("--length", type=int, default=400)
    parser.add_argument("--seed", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--add", type=Path)
    parser.add_argument("--core", type=int)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    if options.core is not None and options.core not in cores:
        parser.error(f"--core {options.core} is none of {sorted(cores)}")
    torch.set_num_threads(1)
    if options.core is not None:  # before the pair is loaded: a device plan has as many threads as there are cores
        os.sched_setaffinity(0, {options.core})
    try:
        Sampling(temperature=options.temperature, max_new_tokens=options.length, seed=options.seed)
        if not options.out.parent.is_dir():
            raise BadInput(f"--out {options.out} is no file in a folder that exists")
        check_writable(options.out)
        pair, before = load_pair(options.pair, "one", fit=False), known(options.out)
        if min(options.tokens, options.ties + 1, options.first + 1) < 1 or max(options.first, options.length) > 1_000_000:
            raise BadInput(
                "--tokens, --ties and --first are numbers from 1, 0 and 0 on, --first and --length a million at most"
            )
    except EventspecError as error:
        parser.error(str(error))
    kind = "ties" if options.ties else f"temperature {options.temperature:g}"
    if options.unsettled:
        kind += ", not settled"
        pair = pair.with_policy(settle=False)
    machine = environment(pair, ["real"])["processor"]
    try:
        told = {} if options.anew else part_of(before, machine, kind)
    except BadInput as error:
        parser.error(str(error))
    measured = {"seed": options.seed, "weights": pair.fingerprint(), "length": 64 if options.ties else options.length}
    if options.add is not None:
        try:
            told = together(told, part_of(known(options.add), machine, kind))
            write_text(options.out, json.dumps(with_part(before, machine, kind, told), indent=1) + "\n")
        except BadInput as error:
            parser.error(f"{options.out} and {options.add} cannot be added: {error}")
        return int(told["different"] > 0)
    measured["first"] = options.first
    if other := [name for name, value in measured.items() if told and told.get(name, 0) != value]:
        there = ", ".join(f"{name} {told.get(name, 0)}" for name in other)
        parser.error(f"{options.out} has {there}: go on with the same, name another file, or drop what is there with --anew")
    if "asked" in told:
        parser.error(f"{options.out} holds what two runs saw together: name another file, or drop what is there with --anew")
    try:
        return measure(options, pair, machine, kind, measured, told)
    except BadInput as error:
        parser.error(str(error))


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What two runs of the same measurement saw, of questions that are not the same; BadInput where they are not such."""
    if not one or not other:
        raise BadInput("one of them has nothing of this kind and processor")
    same = ("seed", "weights", "length", "arms", "rounding")
    if differing := [name for name in same if one[name] != other[name]]:
        raise BadInput(f"they differ in {', '.join(differing)}")
    ranges = sorted([*_ranges(one), *_ranges(other)])
    if any(end > begin for (_, end), (begin, _) in pairwise(ranges)):
        raise BadInput(f"they share questions: {ranges}")
    if one["by_arm"].keys() != other["by_arm"].keys():
        raise BadInput("they have other arms")
    by_arm = {
        name: {key: seen + other["by_arm"][name][key] for key, seen in arm.items()} for name, arm in one["by_arm"].items()
    }
    return {**one, **{name: one[name] + other[name] for name in SUMMED}, "asked": ranges, "by_arm": by_arm}


def _ranges(told: dict[str, Any]) -> list[list[int]]:
    """The questions, each [first, the one behind the last]."""
    ranges: list[list[int]] = told.get("asked") or [[told.get("first", 0), told["questions"]]]
    return ranges


def measure(
    options: argparse.Namespace, pair: Pair, machine: str, kind: str, measured: dict[str, Any], before: dict[str, Any]
) -> int:
    """Go on from what was seen `before`, until enough was compared; 1 when an answer differs."""
    arms, began = [*methods_of(pair), *heads_of(pair)], time.monotonic()
    tallies = {name: Tally(**told) for name, told in before.get("by_arm", {}).items()}
    enough = ("answers", options.ties) if options.ties else ("tokens", options.tokens)
    told, written = before, part_of(known(options.out), machine, kind)
    for number, question in asked(options, pair, before.get("questions", options.first)):
        if told.get(enough[0], 0) >= enough[1]:
            return int(told["different"] > 0)
        for _ in compare_answers(pair, arms, [question], tallies=tallies):
            pass
        different, failed, tokens = verdict(tallies)
        others = [tally for name, tally in tallies.items() if name != BASE]
        told = {
            "arms": len(arms),
            "questions": number + 1,
            "plain_answers": tallies[BASE].answers,
            "plain_tokens": tallies[BASE].tokens,
            "answers": sum(tally.answers for tally in others),
            "tokens": tokens,
            "different": different,
            "failed": failed,
            "near_ties": sum(tally.near_ties for tally in others),
            "rounding": pair.target.limits.rounding,
            "minutes": round(before.get("minutes", 0.0) + (time.monotonic() - began) / 60, 1),
            **measured,
            "environment": environment(pair, ["real"]),
            "by_arm": {name: tally.as_json() for name, tally in tallies.items()},
        }
        now = known(options.out)  # another run may have written its part meanwhile
        if (there := part_of(now, machine, kind)) != written:
            raise BadInput(f"another run wrote to the same part of {options.out} ({there.get('tokens', 0)} tokens): it stays")
        written = told
        write_text(options.out, json.dumps(with_part(now, machine, kind, told), indent=1) + "\n")
        line = f"{tokens} tokens, {told['answers']} answers, {different} differ, {failed} drafters failed"
        print(line, file=sys.stderr, flush=True)
    raise AssertionError("there is no last question")


def known(path: Path) -> dict[str, Any]:
    """What a results file holds by now, by processor and kind: another run may write its part. BadInput for what is none."""
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is no file")
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error}): name another file") from None
    if not isinstance(found, dict) or not all(isinstance(kinds, dict) for kinds in found.values()):
        raise BadInput(f"{path} holds no results: name another file")
    return found


def part_of(found: dict[str, Any], machine: str, kind: str) -> dict[str, Any]:
    """What there is of a processor and kind; BadInput for what no run wrote."""
    told: dict[str, Any] = found.get(machine, {}).get(kind, {})
    try:
        if told:
            {
                name: Tally(**{key: type(getattr(Tally(), key))(value) for key, value in arm.items()})
                for name, arm in told["by_arm"].items()
            }
            if any(not 0 <= begin <= end for begin, end in _ranges(told)):
                raise ValueError("questions that end before they begin")
            _ = [told[name] + 0 for name in (*SUMMED, "questions", "arms", "rounding")]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"what is there of {kind} is of no run of this program ({error!r}): name another file") from None
    return told


def with_part(found: dict[str, Any], machine: str, kind: str, told: dict[str, Any]) -> dict[str, Any]:
    """All results, with these of a processor and kind."""
    return {**found, machine: {**found.get(machine, {}), kind: told}}


if __name__ == "__main__":
    sys.exit(main())
