"""The figures of heads on the target's features: all of them, their trees, what tau allows, one head at several ages."""

from __future__ import annotations

from eventspec.experiments.charts import Value, curves, values
from eventspec.experiments.names import BASE, is_control
from eventspec.experiments.reports import FASTER, Block, Charts, Found, Results
from eventspec.experiments.tables import Column, figure, figures, known, named, shown, table, table_of

WHAT = {
    BASE: "baseline",
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
WHOLE = ":whole"
"""Ends the name of a head that reads its prompt as the published code does."""
LEVELS = (1, 2, 4, 8, 16)


BOUND = {
    "head": "{name}",
    "tau after the first token": "{tau_behind_the_first:.2f}",
    "nodes a round": "{nodes:.1f}",
    "V": "{V:.2f}",
    "V in the run": "{V_in_run:.2f}",
    "c / t": "{c_over_t:.2f}",
    "allowed": "{allowed:.2f}",
    "decode only": "{decode_speedup:.2f}",
    "reached": "{reached:.0%}",
    "by V in the run": "{in_run:.0%}",
}


def run(part: Found) -> str:
    where = part["environment"]
    return f"n = {part['n']} questions, {part['recordings']} recordings, {where['processor']}, load {where['load'][0]}"


def what(name: str) -> str:
    if name.endswith(WHOLE):
        return f"as {name.removesuffix(WHOLE)}; every prompt row through the whole layer, as published"
    return WHAT.get(name, "")


def compared(results: Results) -> str:
    part = results["heads"]["table"]
    methods, blind = part["methods"], part["methods"]["prior"]
    columns: dict[str, Column] = {
        "head": "{name}",
        "what": lambda row: what(row["name"]),
        "tau": figures("tau"),
        "decode only": figures("decode_speedup"),
        "whole answer": figures("speedup"),
        "reads the prompt, ms": known("drafter_prefill_ms", ".1f"),
        "right where the prior is wrong": lambda row: shown(None if row["name"] == "prior" else row["acceptance_vision"]),
        "identical": f"{{identical}} of {part['n']}",
    }
    rows = table_of(named(methods), columns)
    text = (
        f"{run(part)}. No lossless method can answer these more than {methods[BASE]['ceiling']:.2f} times as fast "
        f"as the baseline. {blind['vision_share']:.0%} of the answer tokens ({blind['vision_tokens']}) are ones that the blind "
        "prior gets wrong."
    )
    drawing = "![Decode-only speedup with 95 % intervals; the controls in orange.](figures/heads.svg)"
    return "\n\n".join([text, drawing, rows, reading(methods)])


def reading(methods: Found) -> str:
    names = {"specvlm": "SpecVLM", "frugal": "Frugal (SpecVLM that pools over frames too, with costs in its gate's loss)"}
    took = {name: found["drafter_prefill_ms"] for name, found in methods.items()}
    text = []
    for name, title in names.items():
        published, here = took[f"eagle{WHOLE}"] / took[f"{name}{WHOLE}"], took["eagle"] / took[name]
        kept = methods[name]["tau"] / methods["eagle"]["tau"]
        text.append(
            f"{title} reads the prompt {published:.1f} times as fast as EagleVLM when both run as published, {here:.1f} times "
            f"as they run here, and keeps {kept:.1%} of its tau."
        )
    text.append(
        "Here only keys and values are computed for all rows but the last, because a head uses nothing else of them; with no "
        f"visual row at all (HiViS) it is {took['eagle'] / took['hivis']:.1f} times: one row must pass the layer."
    )
    return "\n".join(text)


def trained(results: Results) -> str:
    return table(["head", "how long"], results["heads"]["table"]["trained"].items())


def identity(results: Results) -> str:
    part = results["heads"]["identity"]
    ways = {name: found for name, found in part["methods"].items() if name != BASE}
    same = [name for name, found in ways.items() if found["identical"] == part["n"] and not found["failed"]]
    least = min(found["drafted"] for found in ways.values())
    text = f"{len(same)} of {len(ways)} heads and kinds of tree gave all {part['n']} answers of the target, token"
    others = [f"{name}: {found['identical']}" for name, found in ways.items() if name not in same]
    often = "each of them" if least == part["n"] else f"at least {least} of them"
    return f"{text} by token. All drafted in {often}, none failed: {', '.join(ways)}. {' '.join(others)}".strip()


def trees(results: Results) -> str:
    part = results["heads"]["trees"]
    rows = []
    for name, found in part["methods"].items():
        if (against := part["against_chain"].get(name)) is not None:
            head, nodes, kind = name.split(", ")
            times = figure(against, "fewer_rounds", ".3f", "ci95")
            rows.append([head, nodes.split()[0], kind, figure(found, "tau"), times, found["identical"]])
    text = (
        f"{run(part)}. Trees of equal size, whatever they cost. `static` is the best fixed tree for how often a head's choices "
        "are right; `published` is EAGLE-1's own of 25 nodes."
    )
    return f"{text}\n\n{table(['head', 'nodes', 'tree', 'tau', 'rounds of a chain / own', 'identical'], rows)}"


def ranks(results: Results) -> str:
    """How often a head's first two choices are right at some levels."""
    rows = []
    for head, rates in results["heads"]["trees"]["ranks"].items():
        two = [[*rates[level - 1], 0.0, 0.0][:2] if level <= len(rates) else None for level in LEVELS]
        rows.append([head, *("-" if found is None else f"{found[0]:.3f}, {found[1]:.3f}" for found in two)])
    return table(["head", *(f"level {level}" for level in LEVELS)], rows)


def bound(results: Results) -> str:
    part = results["heads"]["bound"]
    found = part["bound"]
    text = (
        f"{run(part)}, of them {found['n']} with answers of 40 tokens and more, which are counted. Allowed is tau / (V(k) + "
        "c / t): t is a step of the baseline and c what drafting takes per round, both from the run; V(k) is what verifying k "
        "rows takes, in steps, from a curve measured apart (trees, in turns with drafts) and in the run itself. The rest is "
        f"reading the prompt, and work outside forwards. A step of the baseline: {found['step_ms']:.2f} ms."
    )
    rows = named({name: row for name, row in found.items() if isinstance(row, dict)})
    for row in rows:
        row["in_run"] = row["decode_speedup"] * (row["V_in_run"] + row["c_over_t"]) / row["tau_behind_the_first"]
    return f"{text}\n\n{table_of(rows, BOUND)}"


def scaling(results: Results) -> str:
    part = results["heads"]["scaling"]
    before = part["against_the_one_before"]
    steps = [f"{step['from']} to {step['to']}: {figure(step, 'fewer_rounds', '.3f', 'ci95')}" for step in before]
    text = (
        f"{run(part)}. HiViS's head at several ages: in percent of half an hour alone on one core, from what the pair had "
        "before (hivis-0); and as it ships (hivis-gpu), five minutes on an H100 from EAGLE's weights. Rounds before / after: "
        f"{'; '.join(steps)}."
    )
    rows = [row for row in named(part["methods"]) if row["name"] != BASE]
    columns: dict[str, Column] = {
        "checkpoint": "{name}",
        "tau": figures("tau"),
        "decode only": "{decode_speedup:.2f}",
        "identical": "{identical}",
    }
    return f"{text}\n\n{table_of(rows, columns)}"


def charts(results: Results) -> Charts:
    part = results["heads"]
    measured = {name: found for name, found in part["table"]["methods"].items() if name != BASE}
    kinds = {name: "control" if is_control(name) else "lossless" for name in measured}
    decoding = [Value(k, v["decode_speedup"], v["decode_speedup_ci95"], kind=kinds[k]) for k, v in measured.items()]
    series: dict[str, list[tuple[float, float]]] = {}
    for name, found in part["trees"]["methods"].items():
        if name != BASE:
            head, nodes, kind = name.split(", ")
            series.setdefault(f"{head}, {kind}", []).append((float(nodes.split()[0]), found["tau"]))
    limits = {name: row for name, row in part["bound"]["bound"].items() if isinstance(row, dict)}
    reached = [Value(name, row["decode_speedup"], limit=row["allowed"]) for name, row in limits.items()]
    aged = [Value(k, v["tau"], v["tau_ci95"]) for k, v in part["scaling"]["methods"].items() if k != BASE]
    return {
        "heads": values("Decode-only speedup of every head, with 95 % intervals", {"": decoding}, FASTER),
        "trees": curves("tau by nodes and kind of tree", series, "nodes of the tree", "tau"),
        "bound": values("Decode-only speedup, and what tau allows", {"": reached}, FASTER, "what tau allows"),
        "training": values("tau by age of the head, with 95 % intervals", {"": aged}, "tau", unit=""),
    }


PAGES: dict[str, dict[str, Block]] = {
    "docs/heads.md": {"compared": compared, "trained": trained, "identity": identity},
    "docs/results/trees.md": {"trees": trees, "ranks": ranks},
    "docs/results/bound.md": {"bound": bound},
    "docs/results/training.md": {"scaling": scaling},
}
