"""The figures of docs/alignment.md: drafts of adapters beside their controls, what events are worth, what skipping risks."""

from __future__ import annotations

import numpy as np

from eventspec.experiments.charts import curves
from eventspec.experiments.names import BASE, BLIND, is_control, with_events
from eventspec.experiments.reports import Block, Charts, Found, Results, adapting
from eventspec.experiments.reports.adapting import JUDGED, OWN_TEXTS, Series, ends, mean_of
from eventspec.experiments.statistics import wilson
from eventspec.experiments.tables import figure, shown, spread, table, table_of

CONTROLS = {"shuffled": "another clip's events", "blank": "blank events", "scattered": "the same moments, random pixels"}
ADAPTED = ("aligned", "event-eagle")


def named(part: Found, name: str) -> str:
    """What an arm is called on the page: with the adapter that its method takes by itself."""
    method, _, rest = name.partition(", ")
    usual, own = part["adapters"].get(method), not rest or rest.removesuffix(" events") in CONTROLS
    return f"`{method}, {usual}{', ' + rest if rest else ''}`" if usual and own else f"`{name}`"


def drafts(results: Results) -> str:
    """Every lossless arm beside its rivals and controls."""
    part = results["alignment"]["table"]
    where, methods, taken = part["environment"], part["methods"], part["ahead"]["arms"]
    adapted = [name for name in methods if name.startswith(ADAPTED) and not name.endswith((" events", ", constant"))]
    best = max(adapted, key=lambda name: float(methods[name]["speedup"]))
    text = (
        f"n = {part['n']} held-out questions about {part['recordings']} scenes, {where['processor']}, load "
        f"{where['load'][0]}, one core a model, one interleaved run; 95 % intervals over recordings. The ceiling is "
        f"{methods[BASE]['ceiling']:.2f}x. Names after a comma are adapters. Column `head start`: of the answer "
        f"tokens that the blind prior's first choice gets wrong ({part['ahead']['tokens']}), the share that was drafted before "
        "the target had read its prompt and accepted. The adapter whose answers are soonest is that of "
        f"{named(part, best)}: {methods[best]['speedup']:.2f}x, beside {methods['cross-modal']['speedup']:.2f}x of "
        f"`cross-modal` and {methods['prior']['speedup']:.2f}x of the prior."
    )
    rows = table_of(
        [name for name in methods if not name.startswith("skip-encode")],
        {
            "arm": lambda name: named(part, name),
            "speedup": lambda name: figure(methods[name], "speedup"),
            "tau": lambda name: f"{methods[name]['tau']:.2f}",
            "head start": lambda name: spread(taken[name]["share"], ".0%"),
            "first guess, ms": lambda name: shown(methods[name]["first_provisional_ms"], ".0f"),
            "identical": lambda name: f"{methods[name]['identical']} of {part['n']}",
        },
    )
    return f"{text}\n\n{rows}"


def events(results: Results) -> str:
    """Own events beside a control's, for every arm that was run with both."""
    part, rows = results["alignment"]["table"], []
    for name, found in part["ahead"]["arms"].items():
        more = found["more"]
        if any(map(is_control, more.keys() - BLIND)):
            controls = [*(with_events(name, kind) for kind in CONTROLS), "prior"]
            cells = [spread(more.get(other, [None] * 3), "+.1%") for other in controls]
            rows.append([named(part, name), spread(found["share"], ".1%"), *cells])
    heads = ["arm", "own events", *(f"more than {control}" for control in CONTROLS.values()), "more than the prior"]
    return table(heads, rows)


def risk(results: Results) -> str:
    """What `skip-encode` promises, and on what it was judged."""
    part = results["alignment"]["risk"]
    splits = part["splits"]
    right, blind = (", ".join(f"{split[what]:.0%}" for split in splits) for what in ("right", "prior_right"))
    return (
        "LOSSY: `skip-encode --risk R`. Over calibrations and recordings like those of the calibration, on average at most "
        f"a share R of all answers is not the target's (conformal risk control, {part['calibrated_on']} recordings); of "
        f"other recordings nothing is promised. {len(splits)} disjoint sets of scenes, "
        f"{', '.join(str(split['n']) for split in splits)} questions; from events alone {right} of the answers are the "
        f"target's, the prior's own {blind}. The intervals count answers as if they were independent, which those about one "
        "scene are not. Rows `threshold` are the fixed ones of the early notes, which promise nothing; rows `prior` take "
        "the prior's own answers, by thresholds from the same calibration recordings."
    )


def limits(results: Results) -> str:
    """Skipped and wrong answers by risk and by fixed threshold, on each set of scenes."""
    splits, rows = results["alignment"]["risk"]["splits"], []
    for name in splits[0]["at"]:
        at = [split["at"][name] for split in splits]
        wrong = [spread([one["wrong"], *wilson(round(one["wrong"] * one["n"]), int(one["n"]))], ".1%") for one in at]
        rows.append([name, ", ".join(f"{one['skipped']:.0%}" for one in at), ", ".join(wrong)])
    return table(["limit", "answered from events", "wrong, of all answers (95 %, binomial)"], rows)


def timed(results: Results) -> str:
    """What a lossy answer is timed beside."""
    part = results["alignment"]["table"]
    return (
        f"Timed beside the drafts above, n = {part['n']}: a lossy answer beside the target's own, "
        f"{part['methods']['prior']['speedup']:.2f}x of the lossless prior and {part['methods']['hybrid']['speedup']:.2f}x "
        "of `hybrid`."
    )


def speeds(results: Results) -> str:
    """What skipping gains at each risk, and what it loses."""
    part = results["alignment"]["table"]
    rows = [
        [f"`{name}`", figure(part["methods"][name], "speedup"), f"{one['skipped']:.0%}", f"{one['wrong']:.1%}"]
        for name, one in part["skipped"].items()
    ]
    return table(["arm", "speedup", "answered from events", "not the target's"], rows)


def areas(results: Results) -> str:
    """How well right answers are separated from wrong ones, and by what."""
    splits = results["alignment"]["risk"]["splits"]
    rows = [
        [name, *(f"{pooled:.2f}, {within:.2f}" for pooled, within in (split["auc"][name] for split in splits))]
        for name in splits[0]["auc"]
    ]
    return table(["by", *(f"set {number}" for number in range(1, len(splits) + 1))], rows)


def said(results: Results) -> str:
    """How reliable the predictor's probabilities are."""
    found = results["alignment"]["risk"]["splits"][0]["reliability"]
    rows = [[f"{row['said']:.2f}", f"{row['right']:.2f}", row["n"]] for row in found["bins"]]
    text = (
        f"Reliability of the predictor on the first set (Brier {found['brier']:.3f}, calibration error "
        f"{found['calibration_error']:.3f}):"
    )
    return f"{text}\n\n{table(['said', 'right', 'n'], rows)}"


def claims(results: Results) -> str:
    """What early notes of this research claimed, beside what was measured here."""
    methods, splits = results["alignment"]["table"]["methods"], results["alignment"]["risk"]["splits"]
    run, sizes = adapting.taught(results)["rows"], adapting.by_size(results)
    right, near, name = adapting.best(run)
    cosine = adapting.rank(adapting.trained(adapting.points(run)), "cosine")
    skipped, wrong = ([mean_of(splits, at, what) for at in ("threshold 0.8", "risk 0.01")] for what in ("skipped", "wrong"))
    area, own, text, rate = (
        np.mean([split["auc"][what][1] for split in splits]) for what in ("predictor", "sum", "text alone", "events")
    )
    arms = ("event-eagle", "event-eagle, shuffled events", "prior")
    eagle, shuffled, prior = (methods[arm]["speedup"] for arm in arms)
    rows = [
        [
            "86.8 % of the aligned features are accepted at a cosine of 0.8",
            f"the best adapter to rows, {name}: cosine {near['cosine']:.2f}, {right['tokens']:.0%} of the tokens right, "
            f"{right['answers']:.0%} of the answers whole; rank correlation of cosine and acceptance {spread(cosine)}",
            "no: a cosine is no acceptance",
        ],
        [
            "above 0.8 the encoder can be left out, 1.24x with less than 1 % loss",
            f"at a probability of 0.8 {skipped[0]:.0%} of the answers come from events and {wrong[0]:.1%} are wrong; at a risk "
            f"of 1 % {skipped[1]:.0%}, {wrong[1]:.1%} wrong",
            held(wrong[0] < 0.01 and skipped[1] > 0.2),
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
    return table(["claim", "measured here", "holds"], rows)


def held(holds: bool) -> str:
    return "yes" if holds else "no"


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
    """Drawings of risk and of training."""
    part = results["alignment"]
    shares, quality = by_share(part["risk"]), by_speed(part["table"])
    return {
        "alignment-risk": curves("Answers that stay the target's", shares, "share answered from events", "share"),
        "alignment-quality": curves("Quality and speed", quality, "times as fast as the target alone", "share the same"),
        **adapting.charts(results),
    }


PAGES: dict[str, dict[str, Block]] = {
    "docs/alignment.md": {
        **{"drafts": drafts, "events": events, **adapting.BLOCKS, "risk": risk, "limits": limits, "timed": timed},
        **{"speeds": speeds, "areas": areas, "reliability": said, "claims": claims},
    }
}
