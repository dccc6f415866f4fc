"""The figures of docs/alignment.md: drafts of adapters beside their controls, what events are worth, what skipping risks."""

from __future__ import annotations

import numpy as np

from eventspec.experiments.charts import curves
from eventspec.experiments.names import BLIND, is_control, with_events
from eventspec.experiments.reports import Block, Charts, Found, Results, adapting
from eventspec.experiments.reports.adapting import Series
from eventspec.experiments.statistics import wilson
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
SPEEDS = {
    "arm": "`{name}`",
    "speedup": "{speedup+speedup_ci95:.2f}",
    "answered from events": "{skipped:.0%}",
    "not the target's": "{wrong:.1%}",
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


def events(results: Results) -> str:
    part, rows = results["alignment"]["table"], []
    for name, found in part["ahead"]["arms"].items():
        more = found["more"]
        if any(map(is_control, more.keys() - BLIND)):
            controls = [*(with_events(name, kind) for kind in CONTROLS), "prior"]
            cells = [spread(more.get(other, [None] * 3), "+.1%") for other in controls]
            rows.append([called(part, name), spread(found["share"], ".1%"), *cells])
    heads = ["arm", "own events", *(f"more than {control}" for control in CONTROLS.values()), "more than the prior"]
    return table(heads, rows)


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
    part = results["alignment"]
    shares, quality = by_share(part["risk"]), by_speed(part["table"])
    return {
        "alignment-risk": curves("Answers that stay the target's", shares, "share answered from events", "share"),
        "alignment-quality": curves("Quality and speed", quality, "times as fast as the target alone", "share the same"),
        **adapting.charts(results),
    }


PAGES: dict[str, dict[str, Block]] = {
    "docs/alignment.md": {
        **{"drafts": drafts, "events": events, **adapting.BLOCKS, "risk": risk, "limits": limits},
        **{"speeds": speeds, "areas": areas, "reliability": reliability},
    }
}
