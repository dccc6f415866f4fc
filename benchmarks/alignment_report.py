"""Writes docs/alignment.md and its charts from benchmarks/results/alignment.json.

python benchmarks/alignment_report.py            # write them
python benchmarks/alignment_report.py --check    # exit 1 when one is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from alignment_training import (
    JUDGED,
    OWN_TEXTS,
    Told,
    ages,
    by_phase,
    by_size,
    by_step,
    ends,
    gaps,
    low_rank,
    plateau,
    points,
    rank,
    taught,
    trained,
)
from charts import curves
from pages import ROOT, settle, spread
from pages import table as lines
from scipy.stats import binomtest

DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks/results/alignment.json"
CONTROLS = {"shuffled": "another clip's events", "blank": "blank events", "scattered": "the same moments, random pixels"}
OF_OTHERS = tuple(f"{kind} events" for kind in CONTROLS)
ADAPTED = ("aligned", "event-eagle")

INTRO = """Written by `benchmarks/alignment_report.py` from `benchmarks/results/alignment.json`, which `benchmarks/alignment.py`
measures.

An adapter maps what the event model computes to what the target reads: to visual rows of its prompt (method `aligned`: the
target's own language model drafts from events), or to the features that its head reads (method `event-eagle`). Both models stay
as they are. `eventspec train adapter` makes one ([how to](how-to/train.md)); the target verifies every draft, so both methods
are lossless. `skip-encode` is not: it answers from events alone where a calibrated risk allows it. What events are worth for
sharing features between the frames of a live stream stands [there](how-to/live.md)."""


OTHERWISE = [
    "## What is built otherwise than the early notes had it",
    "",
    "- `cross` attends to a learned bank: DREAM's drafter attends to the target's features, of which there are none before it "
    "has encoded.",
    "- `fused` is both the gate and the fusion of several layers.",
    "- `event-eagle` does not feed its features back: the event drafter drafts with its own language model, and the target's "
    "head names the tokens through the adapter. `aligned` needs the tower of the event model, not its language model.",
    "- Thresholds do not move with the rate of events; the rate is one of the predictor's features.",
    "- `auto` chooses neither method: they draft what `cross-modal` drafts, later.",
    "- The bound on mutual information (`align.gaps.information`) wants independent rows. There are fewer held-out clips than "
    "it needs at one row each, so the page leaves it out.",
    "",
]


def written(results: Told) -> dict[Path, str]:
    """Every file and its text."""
    told, runs = results["table"], results["training"]["runs"]
    parts = [
        drafts(told),
        events(told),
        gaps(runs, results["nulls"]),
        ages(runs),
        losses(results["losses"]),
        low_rank(results["low-rank"]),
        plateau(runs),
        risk(results["risk"], told),
        verdicts(results),
        OTHERWISE,
    ]
    page = "\n".join(["# Alignment", "", INTRO, "", *(line for part in parts for line in part)])
    drawings = {
        "alignment-plateau": curves("Tokens right by size of the adapter", by_size(runs), "thousand parameters", "share right"),
        "alignment-risk": curves(
            "Answers that stay the target's", by_share(results["risk"]), "share answered from events", "share"
        ),
        "alignment-quality": curves("Quality and speed", by_speed(told), "times as fast as the target alone", "share the same"),
    }
    for run in taught(runs):
        phases = ", ".join(f"{place} {line['phase'] or 'before'}" for place, line in enumerate(run["phases"]))
        drawings[f"alignment-ages-{run['output']}"] = curves("Tokens right in training", by_step(run), "minutes", "share right")
        drawings[f"alignment-gaps-{run['output']}"] = curves("Cosine with the target's own", by_phase(run), phases, "cosine")
    files = {DOCS / f"figures/{name}.svg": drawing for name, drawing in drawings.items()}
    return {DOCS / "alignment.md": page.rstrip() + "\n", **files}


def named(told: Told, name: str) -> str:
    """What an arm is called on the page: with the adapter that its method takes by itself."""
    method, _, rest = name.partition(", ")
    usual = told["adapters"].get(method)
    return f"{method}, {usual}{', ' + rest if rest else ''}" if usual and rest in ("", *OF_OTHERS) else name


def drafts(told: Told) -> list[str]:
    """Every arm beside its rivals and controls."""
    where, methods, taken = told["environment"], told["methods"], told["ahead"]["arms"]
    rows = []
    for name, found in methods.items():
        if not name.startswith("skip-encode"):
            rows.append(
                [
                    f"`{named(told, name)}`",
                    spread([found["speedup"], *found["speedup_ci95"]]),
                    f"{found['tau']:.2f}",
                    spread(taken[name]["share"], ".0%"),
                    "-" if found["first_provisional_ms"] is None else f"{found['first_provisional_ms']:.0f}",
                    f"{found['identical']} of {told['n']}",
                ]
            )
    ceiling, prior = methods["autoregressive"]["ceiling"], methods["prior"]["speedup"]
    run = f"n = {told['n']} held-out questions about {told['recordings']} scenes, {where['processor']}, load {where['load'][0]}"
    adapted = [name for name in methods if name.startswith(ADAPTED) and not name.endswith((" events", ", constant"))]
    best = max(adapted, key=lambda name: methods[name]["speedup"])
    usual, own = methods["cross-modal"]["speedup"], methods[best]["speedup"]
    text = (
        f"{run}, one core a model, one interleaved run; 95 % intervals over recordings. The ceiling is {ceiling:.2f}x. Names "
        "after a comma are adapters. Column `head start`: of the answer tokens that the blind prior's first choice gets wrong "
        f"({told['ahead']['tokens']}), the share that was drafted before the target had read its prompt and accepted. The "
        f"adapter whose answers are soonest is that of `{named(told, best)}`: {own:.2f}x, beside {usual:.2f}x of `cross-modal` "
        f"and {prior:.2f}x of the prior."
    )
    heads = ["arm", "speedup", "tau", "head start", "first guess, ms", "identical"]
    return ["## What the drafts are worth", "", text, "", *lines(heads, rows)]


def events(told: Told) -> list[str]:
    """Own events beside a control's, for every arm that was run with both."""
    rows, arms = [], told["ahead"]["arms"]
    for name, found in arms.items():
        more = found["more"]
        if any(other.endswith(" events") for other in more):
            cells = [
                spread(more.get(other, [None] * 3), "+.1%")
                for other in (*(f"{name}, {kind} events" for kind in CONTROLS), "prior")
            ]
            rows.append([f"`{named(told, name)}`", spread(found["share"], ".1%"), *cells])
    text = (
        "The same share, and how much more it is than with another clip's events, with blank ones, with the same moments at "
        "random pixels, and than the prior's own tree had accepted, each with its interval."
    )
    heads = ["arm", "own events", *(f"more than {control}" for control in CONTROLS.values()), "more than the prior"]
    return ["## What events are worth", "", text, "", *lines(heads, rows)]


def losses(told: Told) -> list[str]:
    """The losses of the first phase, each alone."""
    rows = []
    for name, known in told.items():
        first = next(line for line in known if line["phase"] == "alignment")
        last, gap = known[-1]["adapters"], first["gaps"]
        by = [
            f"{first['adapters']['tokens']:.1%}, {first['adapters']['leading']:.1f}",
            f"{last['tokens']:.1%}, {last['leading']:.1f}",
        ]
        rows.append([name, f"{gap['cosine']:.2f}", f"{gap['l2']:.2f}", *by])
    heads = ["loss", "cosine", "L2", "behind alignment: tokens right, leading", "behind acceptance as well"]
    text = (
        "One kind (`bottleneck`, to rows), taught in phase alignment by one loss alone (squared error, cosine, InfoNCE) or by "
        "all, then by the same cross-entropy on the target's answers; held-out clips."
    )
    return ["## Losses", "", text, "", *lines(heads, rows)]


def by_share(told: Told) -> dict[str, list[tuple[float, float]]]:
    """Answers that stay the target's by the share that is answered from events, over all splits."""
    series = dict[str, list[tuple[float, float]]]()
    for name, title in (("predictor", "predictor"), ("prior", "the prior's answers")):
        found = [point for split in told["splits"] for point in split["curves"][name]]
        skipped, wrong = np.array(found).T
        order = np.argsort(skipped, kind="stable")
        places = np.linspace(0, skipped.max(), 11)
        series[title] = [(float(at), float(1 - np.interp(at, skipped[order], wrong[order]))) for at in places]
    return series


def by_speed(told: Told) -> dict[str, list[tuple[float, float]]]:
    """Answers that are the target's by speed: plain decoding, then the risks that were timed, and what is lossless beside."""
    found = [(round(told["methods"][name]["speedup"], 2), 1 - one["wrong"]) for name, one in told["skipped"].items()]
    hybrid = (round(told["methods"]["hybrid"]["speedup"], 2), 1.0)
    return {"skip-encode, by risk": [(1.0, 1.0), *found], "hybrid, lossless": [hybrid]}


def risk(told: Told, timed: Told) -> list[str]:
    """Skipped and wrong answers by risk, what that gains, and how well right is told from wrong."""
    splits = told["splits"]
    rows = []
    for name in splits[0]["at"]:
        at = [split["at"][name] for split in splits]
        wrong = [
            f"{one['wrong']:.1%} ({low:.1%} to {high:.1%})" for one, (low, high) in zip(at, map(binomial, at), strict=True)
        ]
        rows.append([name, ", ".join(f"{one['skipped']:.0%}" for one in at), ", ".join(wrong)])
    heads = ["limit", "answered from events", "wrong, of all answers (95 %, binomial)"]
    right = ", ".join(f"{split['right']:.0%}" for split in splits)
    blind = ", ".join(f"{split['prior_right']:.0%}" for split in splits)
    speeds = [
        [
            f"`{name}`",
            spread([timed["methods"][name]["speedup"], *timed["methods"][name]["speedup_ci95"]]),
            f"{one['skipped']:.0%}",
            f"{one['wrong']:.1%}",
        ]
        for name, one in timed["skipped"].items()
    ]
    text = (
        "LOSSY: `skip-encode --risk R`. Over calibrations and recordings like those of the calibration, on average at most "
        f"a share R of all answers is not the target's (conformal risk control, {told['calibrated_on']} recordings); of "
        f"other recordings nothing is promised. {len(splits)} disjoint sets of scenes, "
        f"{', '.join(str(split['n']) for split in splits)} questions; from events alone {right} of the answers are the "
        f"target's, the prior's own {blind}. The intervals count answers as if they were independent, which those about one "
        "scene are not. Rows `threshold` are the fixed ones of the early notes, which promise nothing; rows `prior` take "
        "the prior's own answers, by thresholds from the same calibration recordings."
    )
    timing = (
        f"Timed beside the drafts above, n = {timed['n']}: a lossy answer beside the target's own, "
        f"{timed['methods']['prior']['speedup']:.2f}x of the lossless prior and {timed['methods']['hybrid']['speedup']:.2f}x "
        "of `hybrid`."
    )
    return [
        "## Risk",
        "",
        text,
        "",
        "![Answers that stay the target's by the share answered from events.](figures/alignment-risk.svg)",
        "",
        *lines(heads, rows),
        timing,
        "",
        "![Share of answers that are the target's by speed, at each risk.](figures/alignment-quality.svg)",
        "",
        *lines(["arm", "speedup", "answered from events", "not the target's"], speeds),
        *told_apart(splits),
    ]


def told_apart(splits: list[Told]) -> list[str]:
    """How well right answers are told from wrong ones, and by what."""
    areas = [
        [name, *(f"{pooled:.2f}, {within:.2f}" for pooled, within in (split["auc"][name] for split in splits))]
        for name in splits[0]["auc"]
    ]
    said = splits[0]["reliability"]
    bins = [[f"{row['said']:.2f}", f"{row['right']:.2f}", str(row["n"])] for row in said["bins"]]
    apart = (
        "What tells answers that are right from others: area under the ROC curve by set of scenes, over all answers and on "
        "average within a kind of question, as the kind alone tells much. `predictor` is what ships; `all features` and `text "
        "alone` (how long the answer is, how likely it is to the prior) are fitted on half of the scenes and judged on the "
        "other; then single features: the surest and the whole log-probability of the drafting model (`least`, `sum`: the rule "
        "of confidence), length, the prior's log-probability, the rate of events."
    )
    return [
        apart,
        "",
        *lines(["by", *(f"set {number}" for number in range(1, len(splits) + 1))], areas),
        f"Reliability of the predictor on the first set (Brier {said['brier']:.3f}, calibration error "
        f"{said['calibration_error']:.3f}):",
        "",
        *lines(["said", "right", "n"], bins),
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
    cosine = rank(trained(points(last["rows"])), "cosine")
    one, fixed = "risk 0.01", "threshold 0.8"
    area, own, text, rate = (
        np.mean([split["auc"][what][1] for split in splits]) for what in ("predictor", "sum", "text alone", "events")
    )
    eagle, shuffled, prior = (
        told["methods"][arm]["speedup"] for arm in ("event-eagle", "event-eagle, shuffled events", "prior")
    )
    sizes = by_size(runs)
    rows = [
        [
            "86.8 % of the aligned features are accepted at a cosine of 0.8",
            f"the best adapter to rows, {name}: cosine {near['cosine']:.2f}, {right['tokens']:.0%} of the tokens right, "
            f"{right['answers']:.0%} of the answers whole; rank correlation of cosine and acceptance {spread(cosine)}",
            "no: a cosine is no acceptance",
        ],
        [
            "above 0.8 the encoder can be left out, 1.24x with less than 1 % loss",
            f"at a probability of 0.8 {mean_of(fixed, 'skipped'):.0%} of the answers come from events and "
            f"{mean_of(fixed, 'wrong'):.1%} are wrong; at a risk of 1 % {mean_of(one, 'skipped'):.0%}, "
            f"{mean_of(one, 'wrong'):.1%} wrong",
            held(mean_of(fixed, "wrong") < 0.01 and mean_of(one, "skipped") > 0.2),
        ],
        [
            "a predictor knows from event features what will be accepted",
            f"area under the ROC curve within a kind of question {area:.2f}; of the draft's own log-probability {own:.2f}, of "
            f"text alone {text:.2f}, of the rate of events {rate:.2f}",
            "what is known is how sure the draft is" if own > area - 0.02 else held(area > text + 0.02),
        ],
        [
            "decoding event features with the target's head gives 0.31x",
            f"taught on the target's own text {eagle:.2f}x, with another clip's events {shuffled:.2f}x; the prior {prior:.2f}x",
            held(eagle < 1) + ("" if eagle > prior else ", but the blind prior is no slower"),
        ],
        [
            "larger adapters do not help: 27 % from 2 to 101 million parameters",
            f"on texts of their own {ends(sizes[OWN_TEXTS])}; the same adapters judged on the target's text "
            f"{ends(sizes[JUDGED])}",
            "yes, but the level is that of the test",
        ],
    ]
    return ["## Claims of early notes", "", *lines(["claim", "measured here", "holds"], rows)]


def held(holds: bool) -> str:
    return "yes" if holds else "no"


def binomial(found: dict[str, float]) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of wrong answers, as if they were independent."""
    interval = binomtest(round(found["wrong"] * found["n"]), int(found["n"])).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def main() -> int:
    return settle(written(json.loads(RESULTS.read_text())), "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
