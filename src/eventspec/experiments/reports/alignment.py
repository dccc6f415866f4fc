"""The figures of docs/alignment.md: drafts of adapters beside their controls, what events are worth, what skipping risks."""

from __future__ import annotations

import numpy as np

from eventspec.experiments.charts import curves
from eventspec.experiments.names import BASE, BLIND, is_control, with_events
from eventspec.experiments.reports import Block, Charts, Found, Results, adapting
from eventspec.experiments.reports.adapting import Series
from eventspec.experiments.statistics import wilson
from eventspec.experiments.tables import Column, figure, figures, known, named, spread, table, table_of

CONTROLS = {"shuffled": "another clip's events", "blank": "blank events", "scattered": "the same moments, random pixels"}
ADAPTED = ("aligned", "event-eagle")


def called(part: Found, name: str) -> str:
    """What an arm is called on the page: with the adapter that its method takes by itself."""
    method, _, rest = name.partition(", ")
    usual, own = part["adapters"].get(method), not rest or rest.removesuffix(" events") in CONTROLS
    return f"`{method}, {usual}{', ' + rest if rest else ''}`" if usual and own else f"`{name}`"


def drafts(results: Results) -> str:
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
        f"{called(part, best)}: {methods[best]['speedup']:.2f}x, beside {methods['cross-modal']['speedup']:.2f}x of "
        f"`cross-modal` and {methods['prior']['speedup']:.2f}x of the prior."
    )
    columns: dict[str, Column] = {
        "arm": lambda row: called(part, row["name"]),
        "speedup": figures("speedup"),
        "tau": "{tau:.2f}",
        "head start": lambda row: spread(taken[row["name"]]["share"], ".0%"),
        "first guess, ms": known("first_provisional_ms", ".0f"),
        "identical": f"{{identical}} of {part['n']}",
    }
    rows = [row for row in named(methods) if not row["name"].startswith("skip-encode")]
    return f"{text}\n\n{table_of(rows, columns)}"


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
    splits, rows = results["alignment"]["risk"]["splits"], []
    for name in splits[0]["at"]:
        at = [split["at"][name] for split in splits]
        wrong = [spread([one["wrong"], *wilson(round(one["wrong"] * one["n"]), int(one["n"]))], ".1%") for one in at]
        rows.append([name, ", ".join(f"{one['skipped']:.0%}" for one in at), ", ".join(wrong)])
    return table(["limit", "answered from events", "wrong, of all answers (95 %, binomial)"], rows)


def timed(results: Results) -> str:
    part = results["alignment"]["table"]
    return (
        f"Timed beside the drafts above, n = {part['n']}: a lossy answer beside the target's own, "
        f"{part['methods']['prior']['speedup']:.2f}x of the lossless prior and {part['methods']['hybrid']['speedup']:.2f}x "
        "of `hybrid`."
    )


def speeds(results: Results) -> str:
    part = results["alignment"]["table"]
    rows = [
        [f"`{name}`", figure(part["methods"][name], "speedup"), f"{one['skipped']:.0%}", f"{one['wrong']:.1%}"]
        for name, one in part["skipped"].items()
    ]
    return table(["arm", "speedup", "answered from events", "not the target's"], rows)


def areas(results: Results) -> str:
    splits = results["alignment"]["risk"]["splits"]
    rows = [
        [name, *(f"{pooled:.2f}, {within:.2f}" for pooled, within in (split["auc"][name] for split in splits))]
        for name in splits[0]["auc"]
    ]
    return table(["by", *(f"set {number}" for number in range(1, len(splits) + 1))], rows)


def reliability(results: Results) -> str:
    found = results["alignment"]["risk"]["splits"][0]["reliability"]
    rows = table_of(found["bins"], {"said": "{said:.2f}", "right": "{right:.2f}", "n": "{n}"})
    known = f"Brier {found['brier']:.3f}, calibration error {found['calibration_error']:.3f}"
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
        **{"drafts": drafts, "events": events, **adapting.BLOCKS, "risk": risk, "limits": limits, "timed": timed},
        **{"speeds": speeds, "areas": areas, "reliability": reliability},
    }
}
