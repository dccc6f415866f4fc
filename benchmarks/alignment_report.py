"""Writes docs/alignment.md and its charts from benchmarks/results/alignment.json.

python benchmarks/alignment_report.py            # write them
python benchmarks/alignment_report.py --check    # exit 1 when one is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from alignment_training import OWN_TEXTS, Told, ages, by_phase, by_size, by_step, gaps, low_rank, plateau, points, rank, taught
from charts import curves
from pages import ROOT, settle, spread
from pages import table as lines
from scipy.stats import binomtest

DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks/results/alignment.json"
CONTROLS = {"shuffled": "another clip's events", "blank": "blank events", "scattered": "the same moments, random pixels"}

INTRO = """Written by `benchmarks/alignment_report.py` from `benchmarks/results/alignment.json`, which `benchmarks/alignment.py`
measures.

An adapter maps what the event model computes to what the target reads: to visual rows of its prompt (method `aligned`: the
target's own language model drafts from events), or to the features that its head reads (method `event-eagle`). Both models stay
as they are. `eventspec train adapter` makes one ([how to](how-to/train.md)); the target verifies every draft, so both methods
are lossless. `skip-encode` is not: it answers from events alone where a calibrated risk allows it. What events are worth for
sharing features between the frames of a live stream stands [there](how-to/live.md)."""


def written(results: Told) -> dict[Path, str]:
    """Every file and its text."""
    parts = [
        drafts(results["table"]),
        events(results["table"]),
        gaps(results["training"]["runs"]),
        ages(results["training"]["runs"]),
        low_rank(results["low-rank"]),
        plateau(results["training"]["runs"]),
        risk(results["risk"], results["table"]["skipping"]),
        verdicts(results),
    ]
    page = "\n".join(["# Alignment", "", INTRO, "", *(line for part in parts for line in part)])
    drawings = {
        "alignment-ages": curves("Tokens right in training", by_step(results["training"]["runs"]), "minutes", "share right"),
        "alignment-plateau": curves(
            "Tokens right by size of the adapter", by_size(results["training"]["runs"]), "thousand parameters", "share right"
        ),
        "alignment-risk": curves(
            "Answers that stay the target's", by_share(results["risk"]), "share answered from events", "share"
        ),
    }
    for run in taught(results["training"]["runs"]):
        phases = ", ".join(f"{place} {line['phase'] or 'before'}" for place, line in enumerate(run["phases"]))
        drawings[f"alignment-gaps-{run['output']}"] = curves("Cosine with the target's own", by_phase(run), phases, "cosine")
    files = {DOCS / f"figures/{name}.svg": drawing for name, drawing in drawings.items()}
    return {DOCS / "alignment.md": page.rstrip() + "\n", **files}


def drafts(told: Told) -> list[str]:
    """Every method beside its rivals."""
    where, methods = told["environment"], told["methods"]
    rows = []
    for name, found in methods.items():
        if name.endswith(" events") or name == "skip-encode":
            continue
        right = told["vision"].get(name, {}).get("right") if name != "prior" else None
        rows.append(
            [
                f"`{name}`",
                spread([found["speedup"], *found["speedup_ci95"]]),
                f"{found['tau']:.2f}",
                "-" if right is None else spread(right, ".0%"),
                "-" if found["first_provisional_ms"] is None else f"{found['first_provisional_ms']:.0f}",
                f"{found['identical']} of {told['n']}",
            ]
        )
    ceiling, prior = methods["autoregressive"]["ceiling"], methods["prior"]
    run = f"n = {told['n']} held-out questions about {told['recordings']} scenes, {where['processor']}, load {where['load'][0]}"
    controls = (" events", ", constant")
    adapted = [name for name in methods if name.startswith(("aligned", "event-eagle")) and not name.endswith(controls)]
    best = max(adapted, key=lambda name: methods[name]["speedup"])
    usual, own = methods["cross-modal"]["speedup"], methods[best]["speedup"]
    text = (
        f"{run}, one interleaved run; 95 % intervals over recordings. The ceiling is {ceiling:.2f}x. "
        f"{prior['vision_share']:.0%} of the answer tokens ({prior['vision_tokens']}) are ones that the prior gets wrong. "
        f"The adapter whose answers are soonest is that of `{best}`: {own:.2f}x, beside {usual:.2f}x of `cross-modal`, "
        f"whose drafts cost no pass of the target's language model."
    )
    heads = ["method", "speedup", "tau", "first choice right where the prior is wrong", "first provisional, ms", "identical"]
    return ["## What the drafts are worth", "", text, "", *lines(heads, rows)]


def events(told: Told) -> list[str]:
    """Own events beside a control's, for every arm that was run with both."""
    rows = []
    for name, found in told["vision"].items():
        if len(found) > 1:
            differences = [
                spread(found[f"{name}, {kind} events"], "+.0%") for kind in CONTROLS if f"{name}, {kind} events" in found
            ]
            rows.append([f"`{name}`", spread(found["right"], ".0%"), *differences])
    text = (
        "Of the tokens that the prior gets wrong, the share that the first choice gets right (the prior's own is 0 there), and "
        "how much more that is than with shuffled events (another clip's), blank ones, and the same moments at random pixels."
    )
    heads = ["method", "own events", *(f"more than {control}" for control in CONTROLS.values())]
    return [
        "## What events are worth",
        "",
        text,
        "",
        *lines(heads, rows),
    ]


def by_share(told: Told) -> dict[str, list[tuple[float, float]]]:
    """Answers that stay the target's by the share that is answered from events, over all splits."""
    series = dict[str, list[tuple[float, float]]]()
    for name, title in (("predictor", "predictor"), ("prior", "the prior's answers")):
        found = [point for split in told["splits"] for point in split["curves"][name]]
        places = np.linspace(0, 1, 11)
        skipped, wrong = np.array(found).T
        order = np.argsort(skipped)
        series[title] = [(float(at), float(1 - np.interp(at, skipped[order], wrong[order]))) for at in places]
    return series


def risk(told: Told, skipping: dict[str, float | None]) -> list[str]:
    """Skipped and wrong answers by risk, and how well right is told from wrong."""
    splits = told["splits"]
    rows = []
    for name in splits[0]["at"]:
        at = [split["at"][name] for split in splits if name in split["at"]]
        wrong = [
            f"{one['wrong']:.1%} ({low:.1%} to {high:.1%})" for one, (low, high) in zip(at, map(binomial, at), strict=True)
        ]
        rows.append([name, ", ".join(f"{one['skipped']:.0%}" for one in at), ", ".join(wrong), faster(at, skipping)])
    heads = ["limit", "answered from events", "wrong, of all answers (95 %, binomial)", "speedup"]
    areas = {name: " ".join(f"{split['auc'][name]:.2f}" for split in splits) for name in splits[0]["auc"]}
    right = ", ".join(f"{split['right']:.0%}" for split in splits)
    blind = ", ".join(f"{split['prior_right']:.0%}" for split in splits)
    text = (
        f"`skip-encode --risk R`: on average over recordings at most a share R of all answers is wrong (conformal risk "
        f"control, calibrated on {told['calibrated_on']} recordings). {len(splits)} disjoint sets of scenes, "
        f"{', '.join(str(split['n']) for split in splits)} questions; "
        f"from events alone {right} of the answers are the target's, the prior's own {blind}. Rows "
        "`threshold` are the fixed ones of the early notes, which promise nothing. The control takes the prior's own answers "
        "where it is sure."
    )
    return [
        "## Risk",
        "",
        text,
        "",
        "![Answers that stay the target's by the share answered from events.](figures/alignment-risk.svg)",
        "",
        *lines(heads, rows),
        f"Area under the ROC curve of right against wrong, by set: {'; '.join(map(' '.join, areas.items()))}.",
        "",
    ]


def verdicts(results: Told) -> list[str]:
    """What early notes of this research claimed, beside what was measured here."""
    told, runs, splits = results["table"], results["training"]["runs"], results["risk"]["splits"]
    last = {run["output"]: run for run in taught(runs)}

    def best(output: str) -> tuple[str, dict[str, float], dict[str, float]]:
        """Of an output: the adapter with the most leading tokens right, its gaps, and what it gets right."""
        line = last[output]["phases"][-1]
        name = max(line["adapters"], key=lambda one: line["adapters"][one]["leading"])
        return name, line["gaps"][name], line["adapters"][name]

    def mean_of(name: str, what: str) -> float:
        return float(np.mean([split["at"][name][what] for split in splits if name in split["at"]]))

    name, near, right = best("rows")
    related = spread(rank(points(last["rows"]), "cosine"))
    one, fixed = "risk 0.01", "threshold 0.8"
    area = np.mean([split["auc"]["predictor"] for split in splits])
    eagle = told["methods"]["event-eagle"]
    sizes = by_size(runs).get(OWN_TEXTS, [])
    rows = [
        [
            "86.8 % of the aligned features are accepted at a cosine of 0.8",
            f"the best adapter to rows, {name}: cosine {near['cosine']:.2f}, {right['tokens']:.0%} of the tokens right, "
            f"{right['answers']:.0%} of the answers whole; rank correlation of cosine and acceptance {related}",
        ],
        [
            "above 0.8 the encoder can be left out, 1.24x with less than 1 % loss",
            f"at a probability of 0.8 {mean_of(fixed, 'skipped'):.0%} of the answers come from events and "
            f"{mean_of(fixed, 'wrong'):.1%} are wrong; at a risk of 1 % {mean_of(one, 'skipped'):.0%}, "
            f"{mean_of(one, 'wrong'):.1%} wrong",
        ],
        ["a predictor knows from event features what will be accepted", f"area under the ROC curve {area:.2f}"],
        [
            "decoding event features with the target's head gives 0.31x",
            f"taught on the target's own text {eagle['speedup']:.2f}x, tau {eagle['tau']:.2f}",
        ],
        [
            "larger adapters do not help: 27 % from 2 to 101 million parameters",
            "on texts of their own " + ", ".join(f"{share:.0%}" for _, share in sizes) + ", by size",
        ],
    ]
    return ["## Claims of early notes", "", *lines(["claim", "measured here"], rows)]


def binomial(found: dict[str, float]) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of wrong answers, as if they were independent."""
    interval = binomtest(round(found["wrong"] * found["n"]), int(found["n"])).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def faster(at: list[dict[str, float]], skipping: dict[str, float | None]) -> str:
    """How many times as fast, by what a skipped answer and another took in the table's run."""
    taken, asked, whole = (skipping[name] for name in ("skipped_ms", "asked_ms", "target_ms"))
    if taken is None or asked is None or whole is None:
        return "-"
    share = float(np.mean([one["skipped"] for one in at]))
    return f"{whole / (share * taken + (1 - share) * asked):.2f}"


def main() -> int:
    return settle(written(json.loads(RESULTS.read_text())), "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
