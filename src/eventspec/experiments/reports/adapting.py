"""What docs/alignment.md says of training: feature gaps, acceptance by phase, losses, low-rank updates, the plateau."""

from __future__ import annotations

from eventspec.experiments.charts import curves
from eventspec.experiments.reports import Block, Charts, Found, Results
from eventspec.experiments.statistics import rank_correlation
from eventspec.experiments.tables import spread, table, table_of

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


LOW_RANK = {
    "event drafter": "{how}",
    "thousand parameters that learn": "{size}",
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


def gaps_to(output: str) -> Block:
    """The block of feature gaps before and after, and of which of them go with acceptance, of adapters to an output."""

    def block(results: Results) -> str:
        run, nulls = taught(results)[output], results["alignment"]["nulls"]
        first, last, found = run["phases"][0], run["phases"][-1], points(run)
        rows = []
        for name, gaps in last["gaps"].items():
            null = nulls[name]["another"] if name in nulls else None
            apart = {g: "-" if null is None else f"{null[g]:.2f}" for g in GAPS}
            cells = [f"{first['gaps'][name][g]:.2f}, {gaps[g]:.2f}, {apart[g]}" for g in GAPS]
            leading = f"{first['adapters'][name]['leading']:.1f}, {last['adapters'][name]['leading']:.1f}"
            size = f"{run['parameters'].get(name, 0) / 1000:.0f}"
            rows.append([name.removeprefix("features-"), size, *cells, leading])
        rows.append(["rank correlation, trained", "", *(spread(rank(trained(found), gap)) for gap in GAPS), ""])
        rows.append(["rank correlation, all phases", "", *(spread(rank(found, gap)) for gap in GAPS), ""])
        heads = [f"{title}: before, after, another clip" for title in GAPS.values()]
        return table(["adapter", "thousand parameters", *heads, "leading tokens right"], rows)

    return block


def ages(results: Results) -> str:
    rows = []
    for run in taught(results).values():
        for name in run["phases"][-1]["adapters"]:
            known = [line["adapters"][name] for line in run["phases"]]
            rows.append([name, *(f"{one['tokens']:.0%}, {one['leading']:.1f}, {one['answers']:.0%}" for one in known)])
    phases = next(iter(taught(results).values()))["phases"]
    return table(["adapter", *(line["phase"] or "before" for line in phases)], rows)


def losses(results: Results) -> str:

    def right(line: Found) -> str:
        return f"{line['adapters']['tokens']:.1%}, {line['adapters']['leading']:.1f}"

    rows = []
    for name, known in results["alignment"]["losses"].items():
        first = next(line for line in known if line["phase"] == "alignment")
        rows.append([name, f"{first['gaps']['cosine']:.2f}", f"{first['gaps']['l2']:.2f}", right(first), right(known[-1])])
    return table(["loss", "cosine", "L2", "after alignment: tokens right, leading", "after acceptance as well"], rows)


def low_rank(results: Results) -> str:
    part = results["alignment"]["low-rank"]
    runs = sorted(part["runs"], key=lambda run: int(run["rank"]))
    text = (
        "`eventspec train lora`: an event drafter before it learned from this target (it began as an earlier pair's drafter "
        "and was trained on right answers for seven minutes), with low-rank updates (LoRA) of its language model, "
        f"{runs[0]['seconds'] / 60:.0f} minutes each on one core, and the one of the pair that ships, which was distilled "
        f"whole in the two and a half hours of `train embedded`; {runs[0]['calibration']['n_answers']:.0f} answers about "
        "held-out clips."
    )
    whole = part["whole"]
    known = [("trained on right answers", "-", runs[0]["before"])]
    known += [(f"low-rank updates, rank {run['rank']}", f"{run['parameters'] / 1000:.0f}", run["calibration"]) for run in runs]
    known.append(("distilled whole", f"{whole['parameters'] / 1000:.0f}", whole["calibration"]))
    rows = table_of([{"how": how, "size": size, **right} for how, size, right in known], LOW_RANK)
    return f"{text}\n\n{rows}"


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


def ends(known: list[tuple[float, float]]) -> str:
    shares = [share for _, share in known]
    return f"{min(shares):.1%} to {max(shares):.1%}"


def plateau(results: Results) -> str:
    sizes, runs = by_size(results), results["alignment"]["training"]["runs"]
    same = next(run["free"]["same_token"] for run in runs if run["free_running"])
    return (
        "Earlier work paired the tokens that two models said on their own, place by place, and saw the share of right "
        "tokens stop at 27 % from 2 to 101 million parameters. Taught and judged so, the adapters here stay at "
        f"{ends(sizes[OWN_TEXTS])}, whatever their size, below the {same:.0%} of a drafter that repeats the event "
        "model's own token. But most of that plateau is the test: after the target's own text the same adapters get "
        f"{ends(sizes[JUDGED])} right, and those taught there by the same loss for as long {ends(sizes[SAME_LOSS])}. Once "
        "two texts part, the token that is wanted has nothing to do with what is read. The event model here was distilled "
        "on the target, so their texts part late; of models that never met, teaching suffers too. Tokens right on held-out "
        "clips by thousand parameters, each size another kind of adapter:"
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
    "gaps to rows": gaps_to("rows"),
    "gaps to features": gaps_to("features"),
    "ages": ages,
    "losses": losses,
    "low-rank": low_rank,
    "plateau": plateau,
    "sizes": plateau_sizes,
}
