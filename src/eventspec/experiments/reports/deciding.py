"""The figures of docs/alignment.md on the rules of method skip-encode: what each separates, takes, risks and costs."""

from __future__ import annotations

from eventspec.experiments.reports import Block, Found, Results
from eventspec.experiments.tables import filled, spread, table, table_of

TIMED = {
    "arm": "`{name}`",
    "speedup": "{speedup+speedup_ci95:.2f}",
    "answered from events": "{skipped:.0%}",
    "not the target's": "{wrong:.1%}",
}


def _part(results: Results) -> Found:
    found: Found = results["alignment"]["deciding"]
    return found


def cosines(results: Results) -> str:
    part, rows = _part(results), list[list[str]]()
    for name, own in part["cosines"].items():
        at = [filled("{accepted:.0%} accepted, kept {kept:.0%}", one) for one in own["at"].values()]
        rows.append([name, spread(own["cosine"]), *at])
    limits = [f"from {limit} on" for limit in next(iter(part["cosines"].values()))["at"]]
    text = filled(
        "n = {n} questions about {scenes} held-out scenes; from events {rules[right]:.0%} of the answers are right.", part
    )
    return f"{text}\n\n{table(['adapter', 'mean cosine', *limits], rows)}"


def rules(results: Results) -> str:
    part, rows = _part(results)["rules"], list[list[str]]()
    for rule, known in part["at"].items():
        areas = part["auc"].get(rule)
        separates = "" if areas is None else "{:.2f}, {:.2f}".format(*areas)
        for name, own in known.items():
            shown = [filled(form, own) for form in ("{accepted:.0%}", "{wrong:.1%}", "{kept:.0%}")]
            rows.append([f"`{rule}`", separates, name or "drawn", *shown])
            separates = ""
    rows += [[name, "{:.2f}, {:.2f}".format(*own), *"----"] for name, own in part["auc"].items() if name not in part["at"]]
    return table(["rule", "AUC: all, within a kind", "at", "accepted", "accepted and wrong", "kept, of accepted"], rows)


def speeds(results: Results) -> str:
    part = _part(results)["timed"]
    text = filled("n = {n}, one core for both models, {environment[processor]}, load {environment[load][0]}.", part)
    arms = [{"name": name, **own} for name, own in part["methods"].items()]
    return f"{text}\n\n{table_of(arms, TIMED)}"


def near(results: Results) -> str:
    found = _part(results)["near"]
    least, median, most = found["nearest"]
    text = (
        "The mean adapted row of a scene has a cosine of {:.3f} to {:.3f} (median {:.3f}) with that of the scene nearest to "
        "it; {:.0%} have another one above 0.995. Of the answers to the same question about such two {} are the same (n = {}), "
        "about any two {} (n = {})."
    )
    same = [("none" if own["same"] is None else f"{own['same']:.0%}", own["n"]) for own in (found["near"], found["any"])]
    return text.format(least, most, median, found["above"], *same[0], *same[1])


PAGES: dict[str, dict[str, Block]] = {
    "docs/alignment.md": {"cosines": cosines, "rules": rules, "rule speeds": speeds, "near duplicates": near}
}
