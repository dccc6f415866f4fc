"""What docs/alignment.md says of training: feature gaps, acceptance by phase, losses, low-rank updates, the plateau."""

from __future__ import annotations

from functools import partial

from eventspec.experiments.charts import curves
from eventspec.experiments.reports import Block, Charts, Found, Results
from eventspec.experiments.statistics import rank_correlation
from eventspec.experiments.tables import filled, spread, table, table_of

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
Points = list[tuple[str, dict[str, float], float]]
"""An adapter's name, its gaps, and how many tokens of an answer it gets right from the first on."""
Series = dict[str, list[tuple[float, float]]]
LOSSES = {
    "loss": "{name}",
    "cosine": "{cosine:.2f}",
    "L2": "{l2:.2f}",
    "after alignment: tokens right, leading": "{first[tokens]:.1%}, {first[leading]:.1f}",
    "after acceptance as well": "{last[tokens]:.1%}, {last[leading]:.1f}",
}
LOW_RANK = {
    "event drafter": "{how}",
    "thousand parameters that learn": "{size:.0f}",
    "tokens right": "{tokens:.1%}",
    "leading tokens right": "{leading:.1f}",
    "answers right": "{answers:.0%}",
}


def taught(results: Results) -> dict[str, Found]:
    """Runs on the target's own text, by output."""
    return {run["output"]: run for run in results["alignment"]["training"]["runs"] if not run["free_running"]}


def points(run: Found) -> Points:
    return [(name, gaps, line["adapters"][name]["leading"]) for line in run["phases"] for name, gaps in line["gaps"].items()]


def trained(found: Points) -> Points:
    """The adapters after their last phase, without the control, which sees no event."""
    last = {name: (name, gaps, leading) for name, gaps, leading in found}
    return [point for name, point in last.items() if name != CONTROL]


def rank(found: Points, gap: str) -> list[float | None]:
    """Rank correlation of a gap with acceptance, towards more alike, and its interval over adapters."""
    sign, groups = 1 if gap in NEAR else -1, dict[str, list[tuple[float, float]]]()
    for name, gaps, leading in found:
        groups.setdefault(name, []).append((sign * gaps[gap], leading))
    return rank_correlation(list(groups.values()))


def gaps_to(output: str, results: Results) -> str:
    """Feature gaps before and after, and which of them go with acceptance, of adapters to an output."""
    run, nulls = taught(results)[output], results["alignment"]["nulls"]
    first, last, found = run["phases"][0], run["phases"][-1], points(run)
    rows = []
    for name, gaps in last["gaps"].items():
        another = nulls[name]["another"] if name in nulls else dict.fromkeys(GAPS)
        cells = [
            filled(
                "{before:.2f}, {after:.2f}, {other:.2f}",
                {"before": first["gaps"][name][g], "after": gaps[g], "other": another[g]},
            )
            for g in GAPS
        ]
        leading = f"{first['adapters'][name]['leading']:.1f}, {last['adapters'][name]['leading']:.1f}"
        rows.append([name.removeprefix("features-"), f"{run['parameters'].get(name, 0) / 1000:.0f}", *cells, leading])
    for adapters, over in (("trained", trained(found)), ("all phases", found)):
        rows.append([f"rank correlation, {adapters}", "", *(spread(rank(over, gap)) for gap in GAPS), ""])
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
    rows = []
    for name, known in results["alignment"]["losses"].items():
        first = next(line for line in known if line["phase"] == "alignment")
        rows.append({"name": name, **first["gaps"], "first": first["adapters"], "last": known[-1]["adapters"]})
    return table_of(rows, LOSSES)


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


def charts(results: Results) -> Charts:
    """Drawings of training: its plateau, and of each output what was right and how near the features came."""
    size = curves("Tokens right by size of the adapter", by_size(results), "thousand parameters", "share right")
    drawn: Charts = {"alignment-plateau": size}
    for output, run in taught(results).items():
        phases = ", ".join(f"{place} {line['phase'] or 'before'}" for place, line in enumerate(run["phases"]))
        near = {
            name: [(float(at), max(0.0, line["gaps"][name]["cosine"])) for at, line in enumerate(run["phases"])]
            for name in run["phases"][-1]["gaps"]
        }
        drawn[f"alignment-gaps-{output}"] = curves("Cosine with the target's own", near, phases, "cosine")
    return drawn


BLOCKS: dict[str, Block] = {
    **{
        "gaps to rows": partial(gaps_to, "rows"),
        "gaps to features": partial(gaps_to, "features"),
        "ages": ages,
        "losses": losses,
    },
    **{"low-rank": low_rank, "plateau": plateau, "sizes": plateau_sizes},
}
