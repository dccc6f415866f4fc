"""Writes docs/heads.md from benchmarks/results/heads.json, so that no number in it is typed by hand.

python benchmarks/heads_report.py            # write it
python benchmarks/heads_report.py --check    # exit 1 when it is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/heads.json", ROOT / "docs/heads.md"
WHAT = {
    "autoregressive": "baseline",
    "prior": "control: a text prior, blind",
    "ngram": "control: prompt lookup",
    "eagle": "EagleVLM (2509.11815): one layer, added input norm, all visual rows",
    "eagle1": "EAGLE-1 (2401.15077), trained one step ahead",
    "eagle3": "EAGLE-3 (2503.01840): three layers fused, own head",
    "specvlm": "SpecVLM (2509.11815), select: the question chooses how visual rows are compressed",
    "frugal": "SpecVLM, select, pooling over frames too, and what a way costs is a loss of its gate",
    "weighted": "SpecVLM, weighted: prune, pool and convolution by 3, added up",
    "concat": "SpecVLM, concat: all ways side by side",
    "hivis": "HiViS (2509.23928): no visual row",
    "msd": "MSD (2505.14260): visual rows bypass the fusion",
    "vispec": "ViSpec (2509.15235): eight vectors, and one told to every feature",
    "dream": "DREAM (2505.19201): cross-attention to features, three blocks",
    "eagle:static": "the best fixed tree of 25 nodes for this head",
    "eagle:published": "EAGLE-1's fixed tree of 25 nodes",
    "eagle:chain": "no tree",
    "massv": "MASSV (2505.10526): a small model of its own on the target's visual rows",
    "massv:pruned": "video-SpecVLM (2508.16201): the same, 90 % of its visual rows pruned by the target's attention",
}
AS_PUBLISHED = "as {}; the prompt read as published, every row through the whole layer"


def page(results: dict[str, Any]) -> str:
    return "\n".join(
        (
            "# Heads on the target's features, compared",
            "",
            "Written by `benchmarks/heads_report.py` from `benchmarks/results/heads.json`; `benchmarks/heads.py` measures.",
            "Ratios of sums of one interleaved run each, 95 % bootstrap intervals over recordings, one CPU core, fp32, greedy.",
            "tau: answer tokens a verification, the bonus token included. Target, questions and recipe are the same for all;",
            "how long a head was trained is not, and is said below. Budgets are fitted to what heads of a shape cost; a fixed",
            "tree is drawn to its end, whatever it costs. Answers have up to 96 tokens (the README's: 64, of other scenes).",
            "",
            *table(results["table"]),
            *identity(results["identity"]),
            *trees(results["trees"]),
            *bound(results["bound"]),
            *scaling(results["scaling"]),
        )
    )


def spread(found: dict[str, Any], name: str) -> str:
    low, high = found[f"{name}_ci95"] or (None, None)
    if found[name] is None or low is None:
        return "-" if found[name] is None else f"{found[name]:.2f}"
    return f"{found[name]:.2f} ({low:.2f} to {high:.2f})"


def run(told: dict[str, Any]) -> str:
    where = told["environment"]
    return f"n = {told['n']} questions, {told['recordings']} recordings, {where['processor']}, load {where['load'][0]}"


def lines(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def table(told: dict[str, Any]) -> list[str]:
    ceiling = told["methods"]["autoregressive"]["ceiling"]
    rows = []
    for name, found in told["methods"].items():
        prefill, right = found["drafter_prefill_ms"], found["acceptance_vision"]
        rows.append(
            [
                name,
                AS_PUBLISHED.format(name.removesuffix(":whole")) if name.endswith(":whole") else WHAT.get(name, ""),
                spread(found, "tau"),
                spread(found, "decode_speedup"),
                spread(found, "speedup"),
                "-" if prefill is None else f"{prefill:.1f}",
                "-" if right is None or name == "prior" else f"{right:.0%}",
                f"{found['identical']} of {told['n']}",
            ]
        )
    heads = [
        "head",
        "what",
        "tau",
        "decode only",
        "whole answer",
        "reads the prompt, ms",
        "right where the prior is wrong",
        "identical",
    ]
    ceilings = f"No lossless method can be more than {ceiling:.2f} times as fast as the baseline on the whole answer."
    blind = told["methods"]["prior"]
    share = (
        f"{blind['vision_share']:.0%} of the answer tokens ({blind['vision_tokens']}) are ones that the blind prior gets wrong."
    )
    text = f"{run(told)}. {ceilings} {share}"
    return ["## All of them", "", text, "", *lines(heads, rows), *reading(told["methods"]), *trained(told["trained"])]


def reading(methods: dict[str, Any]) -> list[str]:
    """What compressing the visual rows saves of reading the prompt."""
    names = {"specvlm": "SpecVLM", "frugal": "Frugal (SpecVLM that pools over frames too, with a gate that hears of costs)"}
    took = {name: found["drafter_prefill_ms"] for name, found in methods.items()}
    text = []
    for name, what in names.items():
        published, here = took["eagle:whole"] / took[f"{name}:whole"], took["eagle"] / took[name]
        kept = methods[name]["tau"] / methods["eagle"]["tau"]
        how = f"{published:.1f} times as fast as EagleVLM where both read as published, {here:.1f} times as they read here"
        text.append(f"{what} reads the prompt {how}, and keeps {kept:.1%} of its tau.")
    why = "Here only keys and values are computed of all rows but the last, of which a head looks at nothing else"
    floor = f"with no visual row at all (HiViS) it is {took['eagle'] / took['hivis']:.1f} times: one row has to pass the layer."
    return [*text, f"{why}; {floor}", ""]


def trained(known: dict[str, str]) -> list[str]:
    return ["Training, on one core, batch 8:", "", *lines(["head", "how long"], [[name, how] for name, how in known.items()])]


def identity(told: dict[str, Any]) -> list[str]:
    ways = {name: found for name, found in told["methods"].items() if name != "autoregressive"}
    same = [name for name, found in ways.items() if found["identical"] == told["n"] and not found["failed"]]
    least = min(found["drafted"] for found in ways.values())
    text = f"{len(same)} of {len(ways)} heads and ways to draft gave all {told['n']} answers of the target, token"
    others = [f"{name}: {found['identical']}" for name, found in ways.items() if name not in same]
    often = "each of them" if least == told["n"] else f"at least {least} of them"
    combined = f"All drafted in {often}, none failed: {', '.join(ways)}."
    return ["## Losslessness", "", f"{text} by token. {combined} {' '.join(others)}".strip(), ""]


def first_choices(rates: list[list[float]]) -> str:
    """How often a head's first two choices are right at some levels."""
    two = {level: [*rates[level - 1], 0.0, 0.0][:2] for level in (1, 2, 4, 8, 16) if level <= len(rates)}
    return ", ".join(f"{first:.3f} and {second:.3f} at level {level}" for level, (first, second) in two.items())


def trees(told: dict[str, Any]) -> list[str]:
    rows = []
    for name, found in told["methods"].items():
        if (against := told["against_chain"].get(name)) is not None:
            head, nodes, kind = name.split(", ")
            low, high = against["ci95"]
            times = f"{against['fewer_rounds']:.3f} ({low:.3f} to {high:.3f})"
            rows.append([head, nodes.split()[0], kind, spread(found, "tau"), times, str(found["identical"])])
    shares = "; ".join(f"{head} {first_choices(ranks)}" for head, ranks in told["ranks"].items())
    text = "Equal nodes, whatever they cost. `static` is the best fixed tree for how often a head's choices are right, by level"
    rest = "`published` is EAGLE-1's own of 25."
    heads = ["head", "nodes", "tree", "tau", "rounds of a chain / own", "identical"]
    return [
        "## Trees",
        "",
        f"{run(told)}. {text} behind right ones; the first and second: {shares}. {rest}",
        "",
        *lines(heads, rows),
    ]


def bound(told: dict[str, Any]) -> list[str]:
    found = told["bound"]
    rows = [
        [
            name,
            f"{row['tau_behind_the_first']:.2f}",
            f"{row['nodes']:.1f}",
            f"{row['V']:.2f}",
            f"{row['V_in_run']:.2f}",
            f"{row['c_over_t']:.2f}",
            f"{row['allowed']:.2f}",
            f"{row['decode_speedup']:.2f}",
            f"{row['reached']:.0%}",
            f"{row['decode_speedup'] * (row['V_in_run'] + row['c_over_t']) / row['tau_behind_the_first']:.0%}",
        ]
        for name, row in found.items()
        if isinstance(row, dict)
    ]
    heads = [
        "head",
        "tau behind the first token",
        "nodes a round",
        "V",
        "V in the run",
        "c / t",
        "allowed",
        "decode only",
        "reached",
        "by V in the run",
    ]
    text = (
        "Allowed is tau / (V(k) + c / t): t a step of the baseline, c what drafting takes a round, both from the run, and V(k)"
    )
    text += " steps to verify k rows, from a curve of its own (trees, in turns with drafts), and in the run itself."
    rest = f"What is missing is reading the prompt, and what is no forward. A step of the baseline: {found['step_ms']:.2f} ms."
    return [
        "## What drafting could give",
        "",
        f"{run(told)}, of them {found['n']} with answers of 40 tokens and more, which are counted. {text} {rest}",
        "",
        *lines(heads, rows),
    ]


def scaling(told: dict[str, Any]) -> list[str]:
    rows = [
        [name, spread(found, "tau"), f"{found['decode_speedup']:.2f}", str(found["identical"])]
        for name, found in told["methods"].items()
        if name != "autoregressive"
    ]
    steps = [
        f"{step['from']} to {step['to']}: {step['fewer_rounds']:.3f} ({step['ci95'][0]:.3f} to {step['ci95'][1]:.3f})"
        for step in told["against_the_one_before"]
    ]
    ages = "EagleVLM's head at several ages: the first two of one training from nothing, the others of another."
    text = f"{ages} Rounds before / after: {'; '.join(steps)}."
    return [
        "## Longer training",
        "",
        f"{run(told)}. {text}",
        "",
        *lines(["checkpoint", "tau", "decode only", "identical"], rows),
    ]


def main() -> int:
    fresh = page(json.loads(RESULTS.read_text())).rstrip() + "\n"
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != fresh)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
