"""The figures of docs/alignment.md: drafts of adapters beside their controls, what events are worth, what trainings of adapters
did to gaps and acceptance, what skipping risks."""

from __future__ import annotations

from functools import partial

import numpy as np

from eventspec.experiments.charts import curves
from eventspec.experiments.names import BLIND, with_events
from eventspec.experiments.reports import Block, Charts, Found, Results
from eventspec.experiments.statistics import rank_correlation, wilson
from eventspec.experiments.tables import filled, named, spread, table, table_of

CONTROLS = {"shuffled": "another clip's events", "blank": "blank events", "scattered": "the same moments, random pixels"}
ADAPTED = ("aligned", "event-eagle")
DRAFTS = {
    "arm": "{arm}",
    "speedup": "{speedup+speedup_ci95:.2f}",
    "tau": "{tau:.2f}",
    "head start": "{head_start:.0%}",
    "first guess, ms": "{first_provisional_ms:.0f}",
    "identical": "{identical} of {n}",
}
NOTED = {
    "arm": "`{name}`",
    "speedup": "{speedup+speedup_ci95:.2f}",
    "tau": "{tau:.2f}",
    "head start": "{share:.0%}",
    "more than another clip's events": "{more:+.0%}",
    "identical": "{identical} of {n}",
}
SPEEDS = {
    "arm": "`{name}`",
    "speedup": "{speedup+speedup_ci95:.2f}",
    "answered from events": "{skipped:.0%}",
    "not the target's": "{wrong:.1%}",
}

GAPS = {
    "cosine": "cosine",
    "l2": "L2",
    "mmd": "MMD",
    "sliced_wasserstein": "sliced Wasserstein",
    "linear_cka": "linear CKA",
}
NEAR = ("cosine", "linear_cka")
"""Gaps that are large where two sets of features are alike."""
OWN_TEXTS, JUDGED = "texts of their own", "own texts, target's test"
SAME_LOSS, ALL_PHASES = "the target's text", "the target's text, all phases"
CONTROL = "constant"
"""The adapter that sees no event."""
Points = dict[str, list[tuple[dict[str, float], float]]]
"""Of every adapter and phase its gaps, and how many tokens of an answer it gets right from the first on."""
Series = dict[str, list[tuple[float, float]]]
LOSSES = {
    "loss": "{name}",
    "cosine": "{cosine:.2f}",
    "L2": "{l2:.2f}",
    "after alignment: tokens right, leading": "{first[tokens]:.1%}, {first[leading]:.1f}",
    "in the end": "{last[tokens]:.1%}, {last[leading]:.1f}",
}
ENTROPY = {
    "model": "{name}",
    "sees": "{input}",
    "entropy, nats": "{entropy:.3f}",
    "more than the target": "{more:+.3f}",
    "names the target's token first": "{right:.1%}",
}
LOW_RANK = {
    "event drafter": "{how}",
    "thousand parameters that learn": "{size:.0f}",
    "tokens right": "{tokens:.1%}",
    "leading tokens right": "{leading:.1f}",
    "answers right": "{answers:.0%}",
}


def called(part: Found, name: str) -> str:
    """What an arm is called on the page: with the adapter that its method takes by itself."""
    method, _, rest = name.partition(", ")
    usual, own = part["adapters"].get(method), not rest or rest.removesuffix(" events") in CONTROLS
    return f"`{method}, {usual}{', ' + rest if rest else ''}`" if usual and own else f"`{name}`"


def drafts(results: Results) -> str:
    part = results["alignment"]["table"]
    methods, taken = part["methods"], part["ahead"]["arms"]
    adapted = [name for name in methods if name.startswith(ADAPTED) and not name.endswith((" events", ", constant"))]
    best = max(adapted, key=lambda name: float(methods[name]["speedup"]))
    text = (
        "n = {n} held-out questions about {recordings} scenes, {environment[processor]}, load {environment[load][0]}. The "
        "ceiling is {methods[autoregressive][ceiling]:.2f}x. The prior's first choice gets {ahead[tokens]} tokens wrong. The "
        "adapter whose answers are soonest is that of {best}: {speedup:.2f}x, beside {methods[cross-modal][speedup]:.2f}x of "
        "`cross-modal` and {methods[prior][speedup]:.2f}x of the prior."
    )
    rows = [
        {**row, "arm": called(part, row["name"]), "n": part["n"], "head_start": taken[row["name"]]["share"]}
        for row in named(methods)
        if not row["name"].startswith("skip-encode")
    ]
    about = {**part, "best": called(part, best), "speedup": methods[best]["speedup"]}
    return f"{filled(text, about)}\n\n{table_of(rows, DRAFTS)}"


def of_trainings(results: Results) -> str:
    part = results["alignment"]["adapters"]
    text = "n = {n} held-out questions about {recordings} scenes, {environment[processor]}, load {environment[load][0]}."
    rows = []
    for row in named(part["methods"]):
        own = part["ahead"]["arms"][row["name"]]
        more = own["more"].get(with_events(row["name"], "shuffled"), [None] * 3)
        rows.append({**row, "n": part["n"], "share": own["share"], "more": more})
    return f"{filled(text, part)}\n\n{table_of(rows, NOTED)}"


def events(results: Results) -> str:
    part, rows = results["alignment"]["table"], []
    for name, found in part["ahead"]["arms"].items():
        more = found["more"]
        if more.keys() - BLIND:
            controls = [*(with_events(name, kind) for kind in CONTROLS), "prior"]
            cells = [spread(more.get(other, [None] * 3), "+.1%") for other in controls]
            rows.append([called(part, name), spread(found["share"], ".1%"), *cells])
    heads = ["arm", "own events", *(f"more than {control}" for control in CONTROLS.values()), "more than the prior"]
    return table(heads, rows)


def taught(results: Results) -> dict[str, Found]:
    """Runs on the target's own text, by output."""
    return {run["output"]: run for run in results["alignment"]["training"]["runs"] if not run["free_running"]}


def rank(found: Points, gap: str) -> str:
    """Rank correlation of a gap with acceptance, towards more alike, and its interval over adapters."""
    sign = 1 if gap in NEAR else -1
    return spread(rank_correlation([[(sign * gaps[gap], leading) for gaps, leading in known] for known in found.values()]))


def gaps_to(output: str, results: Results) -> str:
    """Feature gaps before and after, and which of them go with acceptance, of adapters to an output."""
    run, nulls = taught(results)[output], results["alignment"]["nulls"]
    first, last, rows, found = run["phases"][0], run["phases"][-1], list[list[str]](), Points()
    for name, gaps in last["gaps"].items():
        found[name] = [(line["gaps"][name], line["adapters"][name]["leading"]) for line in run["phases"]]
        another = nulls[name]["another"] if name in nulls else dict.fromkeys(GAPS)
        three = [{"before": first["gaps"][name][gap], "after": gaps[gap], "other": another[gap]} for gap in GAPS]
        cells = [filled("{before:.2f}, {after:.2f}, {other:.2f}", one) for one in three]
        leading = f"{found[name][0][1]:.1f}, {found[name][-1][1]:.1f}"
        rows.append([name.removeprefix("features-"), f"{run['parameters'].get(name, 0) / 1000:.0f}", *cells, leading])
    trained = {name: known[-1:] for name, known in found.items() if name != CONTROL}
    for adapters, over in (("trained", trained), ("all phases", found)):
        rows.append([f"rank correlation, {adapters}", "", *(rank(over, gap) for gap in GAPS), ""])
    heads = [f"{title}: before, after, another clip" for title in GAPS.values()]
    return table(["adapter", "thousand parameters", *heads, "leading tokens right"], rows)


def ages(results: Results) -> str:
    runs, rows = taught(results).values(), []
    for run in runs:
        for name in run["phases"][-1]["adapters"]:
            known = (line["adapters"][name] for line in run["phases"])
            rows.append([name, *(filled("{tokens:.0%}, {leading:.1f}, {answers:.0%}", one) for one in known)])
    return table(["adapter", *(line["phase"] or "before" for line in next(iter(runs))["phases"])], rows)


def losses(results: Results) -> str:
    found = []
    for number, run in enumerate(results["alignment"]["losses"]["runs"], 1):
        rows = []
        for name, known in run.items():
            first = next(line for line in known if line["phase"] == "alignment")
            rows.append({"name": name, **first["gaps"], "first": first["adapters"], "last": known[-1]["adapters"]})
        found += [f"Run {number}:", table_of(rows, LOSSES)]
    return "\n\n".join(found)


def low_rank(results: Results) -> str:
    part = results["alignment"]["low-rank"]
    runs, whole = sorted(part["runs"], key=lambda run: int(run["rank"])), part["whole"]
    text = f"{runs[0]['seconds'] / 60:.0f} minutes each on one core; {runs[0]['calibration']['n_answers']:.0f} answers."
    known = [("trained on right answers", None, runs[0]["before"])]
    known += [(f"low-rank updates, rank {run['rank']}", run["parameters"] / 1000, run["calibration"]) for run in runs]
    known.append(("distilled whole", whole["parameters"] / 1000, whole["calibration"]))
    return f"{text}\n\n{table_of([{'how': how, 'size': size, **right} for how, size, right in known], LOW_RANK)}"


def by_size(results: Results) -> Series:
    """Tokens right by the size of the adapter, to features: taught on two texts of their own and judged on them or on the
    target's text, and taught on the target's text by the same loss for as long, and there after all phases."""
    series: Series = {}
    for run in (run for run in results["alignment"]["training"]["runs"] if run["output"] == "features"):
        phases = {line["phase"]: line["adapters"] for line in run["phases"]}
        if run["free_running"]:
            kinds = {OWN_TEXTS: phases["alignment"], JUDGED: run["free"]["on_the_target's_text"]}
        else:
            kinds = {SAME_LOSS: phases["alignment"], ALL_PHASES: run["phases"][-1]["adapters"]}
        sizes = run["parameters"]
        for name, found in kinds.items():
            series[name] = sorted((round(sizes[kind] / 1000), found[kind]["tokens"]) for kind in found if kind in sizes)
    return series


def plateau(results: Results) -> str:
    runs = results["alignment"]["training"]["runs"]
    rights = {name: [right for _, right in known] for name, known in by_size(results).items()}
    ends = {name: f"{min(shares):.1%} to {max(shares):.1%}" for name, shares in rights.items()}
    same = next(run["free"]["same_token"] for run in runs if run["free_running"])
    return (
        f"Taught and judged so, the adapters here stay at {ends[OWN_TEXTS]}, whatever their size, below the {same:.0%} of a "
        "drafter that repeats the event model's own token. But most of that plateau is the test: after the target's own text "
        f"the same adapters get {ends[JUDGED]} right, and those taught there by the same loss for as long {ends[SAME_LOSS]}."
    )


def plateau_sizes(results: Results) -> str:
    rows = [[how, *(f"{size:.0f}: {right:.1%}" for size, right in known)] for how, known in by_size(results).items()]
    most = max(map(len, rows))
    return table(["trained on", *(f"size {n}" for n in range(1, most))], [row + [""] * (most - len(row)) for row in rows])


def risk(results: Results) -> str:
    part = results["alignment"]["risk"]
    splits = part["splits"]
    right, blind, n = (
        ", ".join(filled(form, split) for split in splits) for form in ("{right:.0%}", "{prior_right:.0%}", "{n}")
    )
    return (
        f"Calibrated on {part['calibrated_on']} recordings; {len(splits)} disjoint sets of scenes, {n} questions. From events "
        f"alone {right} of the answers are the target's, the prior's own {blind}."
    )


def limits(results: Results) -> str:
    splits, rows = results["alignment"]["risk"]["splits"], []
    for name in splits[0]["at"]:
        at = [split["at"][name] for split in splits]
        wrong = [spread([one["wrong"], *wilson(round(one["wrong"] * one["n"]), int(one["n"]))], ".1%") for one in at]
        rows.append([name, ", ".join(f"{one['skipped']:.0%}" for one in at), ", ".join(wrong)])
    return table(["limit", "answered from events", "wrong, of all answers (95 %, binomial)"], rows)


def speeds(results: Results) -> str:
    part = results["alignment"]["table"]
    text = "n = {n}; the lossless prior: {methods[prior][speedup]:.2f}x, `hybrid`: {methods[hybrid][speedup]:.2f}x."
    rows = [{"name": name, **part["methods"][name], **one} for name, one in part["skipped"].items()]
    return f"{filled(text, part)}\n\n{table_of(rows, SPEEDS)}"


def areas(results: Results) -> str:
    splits = results["alignment"]["risk"]["splits"]
    rows = [[name, *("{:.2f}, {:.2f}".format(*split["auc"][name]) for split in splits)] for name in splits[0]["auc"]]
    return table(["by", *(f"set {number}" for number in range(1, len(splits) + 1))], rows)


def reliability(results: Results) -> str:
    found = results["alignment"]["risk"]["splits"][0]["reliability"]
    rows = table_of(found["bins"], {"said": "{said:.2f}", "right": "{right:.2f}", "n": "{n}"})
    known = filled("Brier {brier:.3f}, calibration error {calibration_error:.3f}", found)
    return f"Reliability of the predictor on the first set ({known}):\n\n{rows}"


def by_share(part: Found) -> Series:
    """Answers that stay the target's by the share that is answered from events, over all splits."""
    series: Series = {}
    for name, title in (("predictor", "predictor"), ("prior", "the prior's answers")):
        skipped, wrong = np.array([point for split in part["splits"] for point in split["curves"][name]]).T
        order = np.argsort(skipped, kind="stable")
        places = np.linspace(0, skipped.max(), 11)
        series[title] = [(float(at), float(1 - np.interp(at, skipped[order], wrong[order]))) for at in places]
    return series


def by_speed(part: Found) -> Series:
    """Answers that are the target's by speed: plain decoding, then the risks that were timed, and what is lossless beside."""
    found = [(round(part["methods"][name]["speedup"], 2), 1 - one["wrong"]) for name, one in part["skipped"].items()]
    hybrid = (round(part["methods"]["hybrid"]["speedup"], 2), 1.0)
    return {"skip-encode, by risk": [(1.0, 1.0), *found], "hybrid, lossless": [hybrid]}


def charts(results: Results) -> Charts:
    """Quality by share and by speed, the plateau of training, and of each output how near the features came."""
    part = results["alignment"]
    shares, quality = by_share(part["risk"]), by_speed(part["table"])
    drawn: Charts = {
        "alignment-risk": curves("Answers that stay the target's", shares, "share answered from events", "share"),
        "alignment-quality": curves("Quality and speed", quality, "times as fast as the target alone", "share the same"),
        "alignment-plateau": curves(
            "Tokens right by size of the adapter", by_size(results), "thousand parameters", "share right"
        ),
    }
    for output, run in taught(results).items():
        phases = ", ".join(f"{place} {line['phase'] or 'before'}" for place, line in enumerate(run["phases"]))
        near = {
            name: [(float(at), max(0.0, line["gaps"][name]["cosine"])) for at, line in enumerate(run["phases"])]
            for name in run["phases"][-1]["gaps"]
        }
        drawn[f"alignment-gaps-{output}"] = curves("Cosine with the target's own", near, phases, "cosine")
    return drawn


def entropy(results: Results) -> str:
    part = results["entropy"]
    tokens = next(iter(part["models"].values()))["tokens"]
    inputs = {"event drafter": "events", "qualifier": "one frame", "target": "all frames"}
    found = sorted(inputs, key=lambda name: -float(part["models"][name]["entropy"][0]))
    text = (
        f"n = {{n}} held-out questions about {{recordings}} scenes, {tokens} tokens of the target's own answers, "
        f"{{environment[processor]}}. From most entropy to least: {', '.join(inputs[name] for name in found)}; the order of "
        f"the notes {'holds' if found == list(inputs) else 'does not hold'} here."
    )
    rows = [{"input": inputs.get(row["name"]) or CONTROLS[row["name"].split()[-2]], **row} for row in named(part["models"])]
    return f"{filled(text, part)}\n\n{table_of(rows, ENTROPY)}"


PAGES: dict[str, dict[str, Block]] = {
    "docs/alignment.md": {
        "drafts": drafts,
        "adapters of the early notes": of_trainings,
        "events": events,
        "gaps to rows": partial(gaps_to, "rows"),
        "gaps to features": partial(gaps_to, "features"),
        "ages": ages,
        "losses": losses,
        "low-rank": low_rank,
        "plateau": plateau,
        "sizes": plateau_sizes,
        "entropy": entropy,
        "risk": risk,
        "limits": limits,
        "speeds": speeds,
        "areas": areas,
        "reliability": reliability,
    }
}
