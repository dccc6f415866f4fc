"""Writes docs/heads.md, trees, bound and training in docs/results and a chart for each from benchmarks/results/heads.json.

python benchmarks/heads_report.py            # write them
python benchmarks/heads_report.py --check    # exit 1 when one is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from charts import Bar, bars, curves
from pages import ROOT, settle, spread
from pages import table as lines

DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks/results/heads.json"
WHAT = {
    "autoregressive": "baseline",
    "prior": "control: a text prior, blind",
    "ngram": "control: prompt lookup",
    "eagle": "EagleVLM (2509.11815): one layer, added input norm, all visual rows",
    "eagle1": "EAGLE-1 (2401.15077), trained one step ahead",
    "eagle3": "EAGLE-3 (2503.01840): three layers fused, own head",
    "specvlm": "SpecVLM (2509.11815), select: the question chooses how visual rows are compressed",
    "frugal": "SpecVLM, select, with pooling over frames too; the cost of a branch is part of its gate's loss",
    "weighted": "SpecVLM, weighted: prune, pool and convolution by 3, added up",
    "concat": "SpecVLM, concat: the rows of all branches side by side",
    "hivis": "HiViS (2509.23928): no visual row",
    "msd": "MSD (2505.14260): visual rows bypass the fusion",
    "vispec": "ViSpec (2509.15235): eight vectors for all visual rows, and one added to every feature",
    "dream": "DREAM (2505.19201): cross-attention to features, three blocks",
    "eagle:static": "the best fixed tree of 25 nodes for this head",
    "eagle:published": "EAGLE-1's fixed tree of 25 nodes",
    "eagle:chain": "no tree",
    "massv": "MASSV (2505.10526): a small model of its own on the target's visual rows",
    "massv:pruned": "video-SpecVLM (2508.16201): the same, 90 % of its visual rows pruned by the target's attention",
}
LEVELS = (1, 2, 4, 8, 16)
AS_PUBLISHED = "as {}; every prompt row through the whole layer, as published"


WRITTEN = "Written by `benchmarks/heads_report.py` from `benchmarks/results/heads.json`; `benchmarks/heads.py` measures."
HOW = """Ratios of sums of one interleaved run each, 95 % bootstrap intervals over recordings, all CPU cores, fp32, greedy.
tau: mean tokens per round, the bonus token included. Target, questions and recipe are the same for all heads; how long a head
was trained is not, and is said below. Budgets are fitted to what heads of a shape cost; a fixed tree is drafted to its end,
whatever it costs. Answers have up to 256 tokens; the scenes are others than those of the main comparison."""


def written(results: dict[str, Any]) -> dict[Path, str]:
    """Every file and its text."""
    pages = {
        "heads.md": ("Heads compared", HOW, [*table(results["table"]), *identity(results["identity"])]),
        "results/trees.md": ("Trees", "The same heads with other trees of the same number of nodes.", trees(results["trees"])),
        "results/bound.md": (
            "What tau allows",
            "How near decoding comes to what tau allows.",
            bound(results["bound"]),
        ),
        "results/training.md": ("Longer training", "One head at several ages.", scaling(results["scaling"])),
    }
    texts = {name: "\n".join((f"# {title}", "", WRITTEN, how, "", *body)) for name, (title, how, body) in pages.items()}
    drawings = {f"figures/{name}.svg": drawing for name, drawing in charts(results).items()}
    return {DOCS / name: text.rstrip() + "\n" for name, text in {**texts, **drawings}.items()}


def charts(results: dict[str, Any]) -> dict[str, str]:
    """A drawing for each page."""
    measured, tried, limits = results["table"]["methods"], results["trees"]["methods"], results["bound"]["bound"]
    decoding = [
        Bar(name, found["decode_speedup"], tuple(found["decode_speedup_ci95"]), colour=int(name in ("prior", "ngram")))
        for name, found in measured.items()
        if name != "autoregressive"
    ]
    series: dict[str, list[tuple[float, float]]] = {}
    for name, found in tried.items():
        if name != "autoregressive":
            head, nodes, kind = name.split(", ")
            series.setdefault(f"{head}, {kind}", []).append((float(nodes.split()[0]), found["tau"]))
    own = {name: points for name, points in series.items() if name.startswith("eagle")}
    reached = [Bar(name, row["decode_speedup"], mark=row["allowed"]) for name, row in limits.items() if isinstance(row, dict)]
    ages = [
        Bar(name.replace("_", " "), found["tau"], tuple(found["tau_ci95"]))
        for name, found in results["scaling"]["methods"].items()
        if name != "autoregressive"
    ]
    return {
        "heads": bars("Decode-only speedup of every head, with 95 % intervals", decoding, "x", {"plain decoding": 1.0}),
        "trees": curves("tau by nodes and kind of tree", own, "nodes of the tree", "tau"),
        "bound": bars("Decode-only speedup, and what tau allows", reached, "x", {"plain decoding": 1.0}),
        "training": bars("tau by age of the head, with 95 % intervals", ages),
    }


def figure(found: dict[str, Any], name: str) -> str:
    """One of a method's figures and its interval."""
    return spread([found[name], *(found[f"{name}_ci95"] or (None, None))])


def run(told: dict[str, Any]) -> str:
    where = told["environment"]
    return f"n = {told['n']} questions, {told['recordings']} recordings, {where['processor']}, load {where['load'][0]}"


def table(told: dict[str, Any]) -> list[str]:
    ceiling = told["methods"]["autoregressive"]["ceiling"]
    rows = []
    for name, found in told["methods"].items():
        prefill, right = found["drafter_prefill_ms"], found["acceptance_vision"]
        rows.append(
            [
                name,
                AS_PUBLISHED.format(name.removesuffix(":whole")) if name.endswith(":whole") else WHAT.get(name, ""),
                figure(found, "tau"),
                figure(found, "decode_speedup"),
                figure(found, "speedup"),
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
    ceilings = f"No lossless method can answer these more than {ceiling:.2f} times as fast as the baseline."
    blind = told["methods"]["prior"]
    share = (
        f"{blind['vision_share']:.0%} of the answer tokens ({blind['vision_tokens']}) are ones that the blind prior gets wrong."
    )
    text = f"{run(told)}. {ceilings} {share}"
    drawing = "![Decode-only speedup with 95 % intervals; the controls in orange.](figures/heads.svg)"
    rest = [*reading(told["methods"]), *trained(told["trained"])]
    return ["## All of them", "", text, "", drawing, "", *lines(heads, rows), *rest]


def reading(methods: dict[str, Any]) -> list[str]:
    """What compressing the visual rows saves of reading the prompt."""
    names = {"specvlm": "SpecVLM", "frugal": "Frugal (SpecVLM that pools over frames too, with costs in its gate's loss)"}
    took = {name: found["drafter_prefill_ms"] for name, found in methods.items()}
    text = []
    for name, what in names.items():
        published, here = took["eagle:whole"] / took[f"{name}:whole"], took["eagle"] / took[name]
        kept = methods[name]["tau"] / methods["eagle"]["tau"]
        how = f"{published:.1f} times as fast as EagleVLM when both run as published, {here:.1f} times as they run here"
        text.append(f"{what} reads the prompt {how}, and keeps {kept:.1%} of its tau.")
    why = "Here only keys and values are computed for all rows but the last, because a head uses nothing else of them"
    floor = f"with no visual row at all (HiViS) it is {took['eagle'] / took['hivis']:.1f} times: one row must pass the layer."
    return [*text, f"{why}; {floor}", ""]


def trained(known: dict[str, str]) -> list[str]:
    rows = [[name, how] for name, how in known.items()]
    return ["Training, on one core, batch 8 unless it says otherwise:", "", *lines(["head", "how long"], rows)]


def identity(told: dict[str, Any]) -> list[str]:
    ways = {name: found for name, found in told["methods"].items() if name != "autoregressive"}
    same = [name for name, found in ways.items() if found["identical"] == told["n"] and not found["failed"]]
    least = min(found["drafted"] for found in ways.values())
    text = f"{len(same)} of {len(ways)} heads and kinds of tree gave all {told['n']} answers of the target, token"
    others = [f"{name}: {found['identical']}" for name, found in ways.items() if name not in same]
    often = "each of them" if least == told["n"] else f"at least {least} of them"
    combined = f"All drafted in {often}, none failed: {', '.join(ways)}."
    return ["## Losslessness", "", f"{text} by token. {combined} {' '.join(others)}".strip(), ""]


def first_choices(rates: list[list[float]]) -> list[str]:
    """How often a head's first two choices are right at some levels."""
    two = [[*rates[level - 1], 0.0, 0.0][:2] if level <= len(rates) else None for level in LEVELS]
    return ["-" if found is None else f"{found[0]:.3f}, {found[1]:.3f}" for found in two]


def trees(told: dict[str, Any]) -> list[str]:
    rows = []
    for name, found in told["methods"].items():
        if (against := told["against_chain"].get(name)) is not None:
            head, nodes, kind = name.split(", ")
            low, high = against["ci95"]
            times = f"{against['fewer_rounds']:.3f} ({low:.3f} to {high:.3f})"
            rows.append([head, nodes.split()[0], kind, figure(found, "tau"), times, str(found["identical"])])
    shares = [[head, *first_choices(ranks)] for head, ranks in told["ranks"].items()]
    text = "Trees of equal size, whatever they cost. `static` is the best fixed tree for how often a head's choices are right;"
    rest = "`published` is EAGLE-1's own of 25 nodes."
    heads = ["head", "nodes", "tree", "tau", "rounds of a chain / own", "identical"]
    return [
        "![tau of the head eagle by the number of nodes.](../figures/trees.svg)",
        "",
        f"{run(told)}. {text} {rest}",
        "",
        *lines(heads, rows),
        "How often a head's first and second choice are right, behind right ones:",
        "",
        *lines(["head", *(f"level {level}" for level in LEVELS)], shares),
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
        "Allowed is tau / (V(k) + c / t): t is a step of the baseline and c what drafting takes per round, both from the run;"
    )
    text += (
        " V(k) is what verifying k rows takes, in steps, from a curve measured apart (trees, in turns with drafts) and in the"
    )
    text += " run itself."
    rest = f"The rest is reading the prompt, and work outside forwards. A step of the baseline: {found['step_ms']:.2f} ms."
    return [
        "![Bars: decode-only speedup. Thick line: what tau allows.](../figures/bound.svg)",
        "",
        f"{run(told)}, of them {found['n']} with answers of 40 tokens and more, which are counted. {text} {rest}",
        "",
        *lines(heads, rows),
    ]


def scaling(told: dict[str, Any]) -> list[str]:
    rows = [
        [name, figure(found, "tau"), f"{found['decode_speedup']:.2f}", str(found["identical"])]
        for name, found in told["methods"].items()
        if name != "autoregressive"
    ]
    steps = [
        f"{step['from']} to {step['to']}: {step['fewer_rounds']:.3f} ({step['ci95'][0]:.3f} to {step['ci95'][1]:.3f})"
        for step in told["against_the_one_before"]
    ]
    ages = (
        "HiViS's head at several ages: in percent of half an hour alone on one core, from what the pair had before "
        "(hivis-0); and as it ships (hivis-gpu), five minutes on an H100 from EAGLE's weights."
    )
    text = f"{ages} Rounds before / after: {'; '.join(steps)}."
    return [
        "![tau of the head at several ages, with 95 % intervals.](../figures/training.svg)",
        "",
        f"{run(told)}. {text}",
        "",
        *lines(["checkpoint", "tau", "decode only", "identical"], rows),
    ]


def main() -> int:
    return settle(written(json.loads(RESULTS.read_text())), "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
