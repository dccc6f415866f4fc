"""What docs/alignment.md says of training: feature gaps, acceptance by phase, low-rank updates, the plateau of
earlier work."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from pages import spread
from pages import table as lines
from scipy.stats import spearmanr

from eventspec.experiments.statistics import FEWEST

GAPS = {
    "cosine": "cosine",
    "l2": "L2",
    "mmd": "MMD",
    "sliced_wasserstein": "sliced Wasserstein",
    "linear_cka": "linear CKA",
}
NEAR = ("cosine", "linear_cka")
"""Gaps that are large where two sets of features are alike."""
OWN_TEXTS, JUDGED, SAME_LOSS, ALL_PHASES = (
    "texts of their own",
    "own texts, target's test",
    "the target's text",
    "the target's text, all phases",
)
CONTROL = "constant"
AGES = (
    "![Share of tokens right in training, to {output}, by minutes of all adapters together.]"
    "(figures/alignment-ages-{output}.svg)"
)
DRAWS = 2000
Told = dict[str, Any]
Points = list[tuple[str, dict[str, float], float]]
"""An adapter's name, its gaps, and how many tokens of an answer it gets right from the first on."""


def by_phase(run: Told) -> dict[str, list[tuple[float, float]]]:
    """Cosine behind each phase; one below 0 is drawn at 0."""
    names = run["phases"][-1]["gaps"]
    return {name: [(at, max(0.0, line["gaps"][name]["cosine"])) for at, line in enumerate(run["phases"])] for name in names}


def taught(runs: list[Told]) -> list[Told]:
    """Runs on the target's own text."""
    return [run for run in runs if not run["free_running"]]


def points(run: Told) -> Points:
    """Every adapter at every age."""
    return [(name, gaps, line["adapters"][name]["leading"]) for line in run["phases"] for name, gaps in line["gaps"].items()]


def trained(found: Points) -> Points:
    """The adapters behind their last phase, without the control, which sees no event."""
    last = {name: (name, gaps, leading) for name, gaps, leading in found}
    return [point for name, point in last.items() if name != CONTROL]


def rank(found: Points, name: str) -> list[float | None]:
    """Rank correlation of a gap with acceptance, towards more alike, and its interval: adapters are drawn, with all ages. None
    for fewer than `FEWEST` adapters."""
    sign = 1 if name in NEAR else -1
    groups = list(dict.fromkeys(adapter for adapter, _, _ in found))
    own = {one: np.array([(sign * gaps[name], leading) for a, gaps, leading in found if a == one]) for one in groups}
    drawn = np.random.default_rng(0).integers(len(groups), size=(DRAWS, len(groups)))
    value = correlation(np.concatenate(list(own.values())))
    if len(groups) < FEWEST:
        return [value, None, None]
    values = [correlation(np.concatenate([own[groups[place]] for place in draw])) for draw in drawn]
    return [value, *(float(end) for end in np.nanpercentile(values, [2.5, 97.5]))]


def correlation(pairs: np.ndarray[Any, Any]) -> float:
    return float(spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def gaps(runs: list[Told], nulls: Told) -> list[str]:
    """Feature gaps before and after, and which of them goes with acceptance."""
    text = [
        "## Feature gaps",
        "",
        "How far what an adapter writes lies from what the target computed, on held-out clips: before training, behind it, "
        "and from what the target computed of another clip at the same places, which is what no look at the recording "
        "gives. They are no acceptance. What they say of it is in the last lines: the rank correlation of a gap (turned "
        "towards more alike) with the tokens of an answer that are right from the first on, over the trained adapters, and "
        "over all phases too, where both go with the time of training whatever the gap.",
        "",
    ]
    for run in taught(runs):
        first, last, found = run["phases"][0], run["phases"][-1], points(run)
        rows = [
            [
                name.removeprefix("features-"),
                f"{run['parameters'].get(name, 0) / 1000:.0f}",
                *(f"{first['gaps'][name][g]:.2f}, {last['gaps'][name][g]:.2f}, {another(nulls, name, g)}" for g in GAPS),
                f"{first['adapters'][name]['leading']:.1f}, {last['adapters'][name]['leading']:.1f}",
            ]
            for name in last["gaps"]
        ]
        rows.append(["rank correlation, trained", "", *(spread(rank(trained(found), gap)) for gap in GAPS), ""])
        rows.append(["rank correlation, all phases", "", *(spread(rank(found, gap)) for gap in GAPS), ""])
        heads = [
            "adapter",
            "thousand parameters",
            *(f"{GAPS[g]}: before, behind, another clip" for g in GAPS),
            "leading tokens right",
        ]
        drawing = f"![Cosine with what the target computed, by phase.](figures/alignment-gaps-{run['output']}.svg)"
        text += [f"To {run['output']}:", "", drawing, "", *lines(heads, rows)]
    return text


def another(nulls: Told, name: str, gap: str) -> str:
    """A gap to another clip's."""
    return f"{nulls[name]['another'][gap]:.2f}" if name in nulls else "-"


def by_step(run: Told) -> dict[str, list[tuple[float, float]]]:
    """Accuracy in training over minutes, one phase behind the other; the first learns no answers."""
    series = dict[str, list[tuple[float, float]]]()
    for name, curves in product(run["phases"][-1]["adapters"], run["curves"]):
        done, found = 0.0, list[tuple[float, float]]()
        for rows in curves.values():
            found += [((done + row["seconds"]) / 60, row[f"_{name}_accuracy"]) for row in rows if f"_{name}_accuracy" in row]
            done += rows[-1]["seconds"] if rows else 0.0
        if found:
            series[name] = found
    return series


def ages(runs: list[Told]) -> list[str]:
    """Acceptance by phase."""
    rows = []
    for run in taught(runs):
        for name in run["phases"][-1]["adapters"]:
            known = [line["adapters"][name] for line in run["phases"]]
            rows.append([name, *(f"{one['tokens']:.0%}, {one['leading']:.1f}, {one['answers']:.0%}" for one in known)])
    heads = ["adapter", *(line["phase"] or "before" for line in taught(runs)[0]["phases"])]
    return [
        "## Acceptance by training",
        "",
        "Behind each phase, on held-out clips: tokens right behind the target's own, tokens of an answer right from the first "
        "on (what a chain drafted ahead would have accepted), and answers that are right whole. Every adapter learned for four "
        "minutes on one core (`--preset cpu`), 48 seconds of them alignment; the chart is of batches in training.",
        "",
        *(AGES.format(output=output) for output in ("rows", "features")),
        "",
        *lines(heads, rows),
    ]


def low_rank(told: Told) -> list[str]:
    """An event drafter before it learned from the target, with low-rank updates, and distilled whole."""

    def row(name: str, learned: str, found: dict[str, float]) -> list[str]:
        return [name, learned, f"{found['tokens']:.1%}", f"{found['leading']:.1f}", f"{found['answers']:.0%}"]

    runs = sorted(told["runs"], key=lambda run: run["rank"])
    judged = f"{runs[0]['calibration']['n_answers']:.0f} answers about held-out clips."
    rows = [row("trained on right answers", "-", runs[0]["before"])]
    for run in runs:
        rows.append(row(f"low-rank updates, rank {run['rank']}", f"{run['parameters'] / 1000:.0f}", run["calibration"]))
    rows.append(row("distilled whole", f"{told['whole']['parameters'] / 1000:.0f}", told["whole"]["calibration"]))
    heads = ["event drafter", "thousand parameters that learn", "tokens right", "leading tokens right", "answers right"]
    return [
        "## Low-rank updates",
        "",
        "`eventspec train lora`: an event drafter before it learned from this target (it began as an earlier pair's drafter "
        "and was trained on right answers for seven minutes), with low-rank updates (LoRA) of its language model, "
        f"{runs[0]['seconds'] / 60:.0f} minutes each on one core, and the one of the pair that ships, which was distilled "
        f"whole in the two and a half hours of `train embedded`; {judged}",
        "",
        *lines(heads, rows),
    ]


def by_size(runs: list[Told]) -> dict[str, list[tuple[float, float]]]:
    """Tokens right by the size of the adapter, to features: taught on two texts of their own and judged on them or on the
    target's text, and taught on the target's text by the same loss for as long, and there behind all phases."""
    series = dict[str, list[tuple[float, float]]]()
    for run in (run for run in runs if run["output"] == "features"):
        phases = {line["phase"]: line["adapters"] for line in run["phases"]}
        if run["free_running"]:
            kinds = {OWN_TEXTS: phases["alignment"], JUDGED: run["free"]["on_the_target's_text"]}
        else:
            kinds = {SAME_LOSS: phases["alignment"], ALL_PHASES: run["phases"][-1]["adapters"]}
        for name, found in kinds.items():
            known = [
                (round(run["parameters"][kind] / 1000), found[kind]["tokens"]) for kind in found if kind in run["parameters"]
            ]
            series[name] = sorted(known)
    return series


def ends(known: list[tuple[float, float]]) -> str:
    """The least and the largest share."""
    shares = [share for _, share in known]
    return f"{min(shares):.1%} to {max(shares):.1%}"


def free_of(runs: list[Told]) -> float:
    """The share of places with the same token in two texts of their own."""
    return float(next(run["free"]["same_token"] for run in runs if run["free_running"]))


def plateau(runs: list[Told]) -> list[str]:
    """The negative result of earlier work, and how it is avoided."""
    sizes = by_size(runs)
    rows = [[how, *(f"{size:.0f}: {right:.1%}" for size, right in known)] for how, known in sizes.items()]
    most = max(map(len, rows))
    heads = ["trained on", *(f"size {number}" for number in range(1, most))]
    return [
        "## The plateau",
        "",
        "Earlier work paired the tokens that two models said on their own, place by place, and saw the share of right "
        "tokens stop at 27 % from 2 to 101 million parameters. Taught and judged so, the adapters here stay at "
        f"{ends(sizes[OWN_TEXTS])}, whatever their size, below the {free_of(runs):.0%} of whoever repeats the event model's "
        "own token. But most of that plateau is the test: behind the target's own text the same adapters get "
        f"{ends(sizes[JUDGED])} right, and those taught there by the same loss for as long {ends(sizes[SAME_LOSS])}. Once "
        "two texts part, the token that is wanted has nothing to do with what is read. The event model here was distilled "
        "on the target, so their texts part late; of models that never met, teaching suffers too. Tokens right on held-out "
        "clips by thousand parameters, each size another kind of adapter:",
        "",
        "![Share of tokens right by parameters, on the target's text and on two others.](figures/alignment-plateau.svg)",
        "",
        *lines(heads, [row + [""] * (most - len(row)) for row in rows]),
    ]
