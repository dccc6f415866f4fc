"""The figures of heads on the target's features: all of them, their trees, what tau allows, one by the clips it learns from."""

from __future__ import annotations

from eventspec.experiments.charts import Value, curves, values
from eventspec.experiments.names import BASE
from eventspec.experiments.reports import FASTER, Block, Charts, Found, Results
from eventspec.experiments.tables import filled, named, table, table_of

WHAT = {
    BASE: "baseline",
    "prior": "control: a text prior, blind",
    "ngram": "control: prompt lookup",
    "eagle": "EagleVLM (2509.11815): one layer, added input norm, all visual rows",
    "eagle1": "EAGLE-1 (2401.15077), trained one step ahead",
    "eagle3": "EAGLE-3 (2503.01840): three layers fused, own head",
    "specvlm": "SpecVLM (2509.11815), select: a gate chooses one of six branches (what it chose: below)",
    "frugal": "SpecVLM, select, with pooling over frames too, and costs in its gate's loss",
    "weighted": "SpecVLM, weighted: prune, pool and convolution by 3, added up",
    "concat": "SpecVLM, concat: the rows of all branches side by side",
    "hivis": "HiViS (2509.23928): no visual row",
    "msd": "MSD (2505.14260): visual rows bypass the fusion",
    "vispec": "ViSpec (2509.15235): eight vectors for all visual rows, and one added to every feature",
    "dream": "DREAM (2505.19201): cross-attention to features, three blocks",
    "eagle:static": "the best fixed tree of 25 nodes for this head",
    "eagle:published": "EAGLE-1's fixed tree of 25 nodes",
    "eagle:eagle2": "EAGLE-2's tree as published: 10 wide, 8 levels, 59 nodes, whatever they cost",
    "eagle:chain": "no tree",
    "massv": "MASSV (2505.10526): a small model of its own on the target's visual rows",
    "spec-llava": "Spec-LLaVA (2509.11961): the same kind in LLaMA-68M's proportions, its tree by its own confidence",
    "massv:pruned": "video-SpecVLM (2508.16201): the same, 90 % of its visual rows pruned by the target's attention",
}
WHOLE = ":whole"
"""Ends the name of a head that reads its prompt as the published code does."""
LEVELS = (1, 2, 4, 8, 16)
RUN = "n = {n} questions, {recordings} recordings, {environment[processor]}, load {environment[load][0]}"

COMPARED = {
    "head": "{name}",
    "what": "{what}",
    "tau": "{tau+tau_ci95:.2f}",
    "decode only": "{decode_speedup+decode_speedup_ci95:.2f}",
    "whole answer": "{speedup+speedup_ci95:.2f}",
    "reads the prompt, ms": "{drafter_prefill_ms:.1f}",
    "right where the prior is wrong": "{acceptance_vision:.0%}",
    "identical": "{identical} of {n}",
}
BRANCHES = {
    "head": "{name}",
    "tau": "{tau+tau_ci95:.2f}",
    "decode only": "{decode_speedup+decode_speedup_ci95:.2f}",
    "whole answer": "{speedup+speedup_ci95:.2f}",
    "reads the prompt, ms": "{drafter_prefill_ms:.1f}",
    "an answer, as fast as by the gate": "{by_gate}",
    "chosen by the gate": "{chosen}",
    "identical": "{identical} of {n}",
}
FEWER = {
    "target": "{name}",
    "whole answer": "{speedup+speedup_ci95:.2f}",
    "decode only": "{decode_speedup+decode_speedup_ci95:.2f}",
    "tau": "{tau:.2f}",
    "the whole target's answers": "{identical} of {n}",
    "as without the head": "{as_alone}",
}
READING = {"head": "{name}", "as published": "{published}", "as it runs here": "{here:.1f}", "tau": "{kept:.1%}"}
TREES = {
    "head": "{head}",
    "nodes": "{nodes:.0f}",
    "tree": "{kind}",
    "tau": "{tau+tau_ci95:.2f}",
    "rounds of a chain / own": "{fewer_rounds+ci95:.3f}",
    "identical": "{identical}",
}
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
AMOUNTS = {
    "learned from": "{name}",
    "tau": "{tau+tau_ci95:.2f}",
    "decode only": "{decode_speedup:.2f}",
    "identical": "{identical}",
}

LEARNING = {
    "head": "{name}",
    "tau, first half": "{tau_first+tau_first_ci95:.2f}",
    "second half": "{tau_second+tau_second_ci95:.2f}",
    "rounds of the head as it is / own, first half": "{fewer_first+fewer_first_ci95:.3f}",
    "the same, second half": "{fewer_second+fewer_second_ci95:.3f}",
    "updates": "{updates}",
    "ms a job": "{job_ms:.0f}",
    "kB kept": "{kept_kb:.0f}",
    "identical": "{identical} of {n}",
}


def compared(results: Results) -> str:
    part = results["heads"]["table"]
    rows = []
    for row in named(part["methods"]):
        head, whole, _ = row["name"].partition(WHOLE)
        what = f"as {head}; every prompt row through the whole layer, as published" if whole else WHAT.get(head, "")
        seen = None if head == "prior" else row["acceptance_vision"]  # the prior is wrong there by definition
        rows.append({**row, "n": part["n"], "what": what, "acceptance_vision": seen})
    text = (
        f"{RUN}. No lossless method can answer these more than {{methods[autoregressive][ceiling]:.2f}} times as fast as the "
        "baseline. {methods[prior][vision_share]:.0%} of the answer tokens ({methods[prior][vision_tokens]}) are ones that the "
        "blind prior gets wrong."
    )
    return f"{filled(text, part)}\n\n{table_of(rows, COMPARED)}"


def reading(results: Results) -> str:
    """How many times as fast as EagleVLM's head others read the prompt, and the share of its tau that they keep."""
    methods, rows = results["heads"]["table"]["methods"], []
    took = {name: found["drafter_prefill_ms"] for name, found in methods.items()}
    for name in ("specvlm", "frugal", "hivis"):
        whole = took.get(f"{name}{WHOLE}")
        published = None if whole is None else f"{took[f'eagle{WHOLE}'] / whole:.1f}"
        kept = methods[name]["tau"] / methods["eagle"]["tau"]
        rows.append({"name": name, "published": published, "here": took["eagle"] / took[name], "kept": kept})
    return table_of(rows, READING)


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


def branches(results: Results) -> str:
    """The gate of a head beside each of its branches, and what it chose by kind of question."""
    part = results["heads"]["branches"]
    rows = []
    for row in named(part["methods"]):
        head, _, branch = row["name"].partition(":")
        shares = part["shares"].get(head, {}).get("all", {})
        chosen = f"{shares.get(branch, 0.0):.0%}" if branch else "the gate" if shares else "-"
        against = row.get("against", {}).get(head) if branch else None
        by_gate = "-" if against is None else "{:.3f} ({:.3f} to {:.3f})".format(*against)
        rows.append({**row, "n": part["n"], "chosen": chosen, "by_gate": by_gate})
    found = [f"{filled(RUN, part)}.", table_of(rows, BRANCHES)]
    for head, kinds in part["shares"].items():
        names = sorted({name for shares in kinds.values() for name in shares if name != "n"})
        cells = [[kind, f"{own['n']:.0f}", *(f"{own.get(name, 0.0):.0%}" for name in names)] for kind, own in kinds.items()]
        found += [f"What {head}'s gate chose, by kind of question:", table(["kind", "n", *names], cells)]
    return "\n\n".join(found)


def fewer_rows(results: Results) -> str:
    """Targets that read fewer visual rows, alone and with a head."""
    part = results["heads"]["compressed"]
    rows = [{"as_alone": None, **row, "n": part["n"]} for row in named(part["methods"])]
    return f"{filled(RUN, part)}.\n\n{table_of(rows, FEWER)}"


def grown(part: Found) -> list[Found]:
    """The arms of trees with as many nodes."""
    rows = []
    for name, found in part["methods"].items():
        if name != BASE:
            head, nodes, kind = name.split(", ")
            own = {"head": head, "nodes": float(nodes.split()[0]), "kind": kind}
            rows.append({**found, **part["against_chain"][name], **own})
    return rows


def trees(results: Results) -> str:
    part = results["heads"]["trees"]
    text = (
        f"{RUN}. Trees of equal size, whatever they cost. `static` is the best fixed tree for how often a head's choices are "
        "right; `published` is EAGLE-1's own of 25 nodes."
    )
    return f"{filled(text, part)}\n\n{table_of(grown(part), TREES)}"


def ranks(results: Results) -> str:
    """How often a head's first two choices are right at some levels."""
    rows = []
    for head, rates in results["heads"]["trees"]["ranks"].items():
        two = [[*rates[level - 1], 0.0, 0.0][:2] if level <= len(rates) else None for level in LEVELS]
        rows.append([head, *("-" if found is None else f"{found[0]:.3f}, {found[1]:.3f}" for found in two)])
    return table(["head", *(f"level {level}" for level in LEVELS)], rows)


def limits(part: Found) -> list[Found]:
    """What is allowed and reached of every head."""
    return named({name: row for name, row in part["bound"].items() if isinstance(row, dict)})


def bound(results: Results) -> str:
    part = results["heads"]["bound"]
    text = (
        f"{RUN}, of them {{bound[n]}} with answers of 40 tokens and more, which are counted. Allowed is tau / (V(k) + c / t): "
        "t is a step of the baseline and c what drafting takes per round, both from the run; V(k) is what verifying k rows "
        "takes, in steps, from a curve measured apart (trees, in turns with drafts) and in the run itself. The rest is reading "
        "the prompt, and work outside forwards. A step of the baseline: {bound[step_ms]:.2f} ms."
    )
    rows = limits(part)
    for row in rows:
        row["in_run"] = row["decode_speedup"] * (row["V_in_run"] + row["c_over_t"]) / row["tau_behind_the_first"]
    return f"{filled(text, part)}\n\n{table_of(rows, BOUND)}"


def learning(results: Results) -> str:
    """Heads in both halves of a stream, as they are, learning, and with wrong verdicts."""
    part = results["heads"]["learning"]
    usual = {**dict.fromkeys(("updates", "job_ms", "kept_kb")), "n": part["n"]}
    return f"{filled(RUN, part)}.\n\n{table_of([{**usual, **row} for row in named(part['methods'])], LEARNING)}"


def taught(part: Found) -> list[Found]:
    """A head, by the clips that it learned from."""
    return [{**row, **part["taught"][row["name"]]} for row in named(part["methods"]) if row["name"] != BASE]


def amounts(results: Results) -> str:
    part = results["heads"]["data"]
    steps = [filled("{from} to {to}: {fewer_rounds+ci95:.3f}", step) for step in part["against_the_one_before"]]
    return f"{filled(RUN, part)}. Rounds before / after: {'; '.join(steps)}.\n\n{table_of(taught(part), AMOUNTS)}"


def charts(results: Results) -> Charts:
    part = results["heads"]
    decoding = [
        Value(k, v["decode_speedup"], v["decode_speedup_ci95"], kind="control" if v["control"] else "lossless")
        for k, v in part["table"]["methods"].items()
        if k != BASE
    ]
    series: dict[str, list[tuple[float, float]]] = {}
    for row in grown(part["trees"]):
        series.setdefault(f"{row['head']}, {row['kind']}", []).append((row["nodes"], row["tau"]))
    reached = [Value(row["name"], row["decode_speedup"], limit=row["allowed"]) for row in limits(part["bound"])]
    by_clips = [Value(row["name"], row["tau"], row["tau_ci95"]) for row in taught(part["data"])]
    return {
        "heads": values("Decode-only speedup of every head, with 95 % intervals", {"": decoding}, FASTER),
        "trees": curves("tau by nodes and kind of tree", series, "nodes of the tree", "tau"),
        "bound": values("Decode-only speedup, and what tau allows", {"": reached}, FASTER, "what tau allows"),
        "training": values("tau by the clips learned from, with 95 % intervals", {"": by_clips}, "tau", unit=""),
    }


PAGES: dict[str, dict[str, Block]] = {
    "docs/heads.md": {
        "fewer rows": fewer_rows,
        "compared": compared,
        "reading": reading,
        "trained": trained,
        "branches": branches,
        "identity": identity,
        "learning": learning,
    },
    "docs/results/trees.md": {"trees": trees, "ranks": ranks},
    "docs/results/bound.md": {"bound": bound},
    "docs/results/training.md": {"amounts": amounts},
}
