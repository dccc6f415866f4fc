"""The one definition of every figure of a comparison, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventspec.experiments.names import BASE, CONTROLS
from eventspec.experiments.statistics import mean, ratio_interval, ratio_of_sums

SHORT_WORDS = 20
"""A question is short when its right answer has at most so many words."""
TIE_GAP = 1e-4
"""Top-2 logit gap below which a difference is a tie of float summation order (fp32)."""

Row = dict[str, Any]


def summary(rows: list[Row], names: list[str], where: dict[str, Any]) -> dict[str, Any]:
    """The figures of every arm, against `autoregressive` from the same context where that was run."""
    table = {name: [r for r in rows if r["method"] == name] for name in names}
    bases = {own[0]["context"]: own for own in reversed(table.values()) if own[0]["drafter"] == BASE}
    figures = {name: _figures(own, bases.get(own[0]["context"])) for name, own in table.items()}
    for name, own in table.items():
        drafter, real, context = own[0]["drafter"], own[0]["events"] == "real", own[0]["context"]
        if drafter not in (BASE, *CONTROLS) and real:
            rivals = {n: found[0] for n, found in table.items() if n != name and found[0]["context"] == context}
            controls = [other for other, row in rivals.items() if row["drafter"] in (drafter, *CONTROLS)]
            figures[name]["against"] = {other: _times_as_fast(table[other], own) for other in controls}
    first = next(iter(table.values()))
    return {"n": len(first), "recordings": len({r["recording"] for r in first}), "environment": where, "methods": figures}


def _figures(own: list[Row], base: list[Row] | None) -> dict[str, Any]:
    known = [r for r in own if r["answer"]]
    short = [r for r in known if len(r["answer"].split()) <= SHORT_WORDS]
    spoken = [r["speculation"] for r in own]
    vision = [r["vision"] for r in own if r["vision"] is not None]

    def spoken_ratio(above: str, below: str) -> float | None:
        return ratio_of_sums([s[above] for s in spoken], [s[below] for s in spoken])

    withdrawn = spoken_ratio("retracted", "provisional")
    inside = ratio_of_sums([r["rounds_ms"]["model"] for r in own], [r["rounds_ms"]["all"] for r in own])
    asked = [r for r in own if not r.get("skipped")]  # an answer from events alone has no rounds of the target
    rounds = [len(r["token_ids"]) for r in asked], [r["speculation"]["rounds"] for r in asked]
    figures: dict[str, Any] = {
        "lossless": all(r["lossless"] for r in own),
        "control": own[0]["drafter"] in CONTROLS or own[0]["events"] != "real",
        "context": own[0]["context"],
        "device_plan": own[0]["device_plan"] if len({r["device_plan"] for r in own}) == 1 else "auto",
        "tau": ratio_of_sums(*rounds),
        "tau_ci95": ratio_interval(*rounds, [r["recording"] for r in asked]),
        "declined": sum(bool(s.get("declined")) for s in spoken),
        "acceptance": spoken_ratio("accepted", "drafted_levels"),
        "acceptance_nodes": spoken_ratio("accepted", "drafted"),
        "acceptance_vision": ratio_of_sums([v[0] for v in vision], [v[1] for v in vision]) if vision else None,
        "vision_tokens": sum(v[1] for v in vision) if vision else None,
        "vision_share": ratio_of_sums([v[1] for v in vision], [len(r["token_ids"]) for r in own]) if vision else None,
        "drafts_ready": spoken_ratio("ready_rounds", "drafted_rounds"),
        "exact_match": mean([float(_right(r)) for r in known]),
        "exact_match_short": mean([float(_right(r)) for r in short]),
        "first_provisional_ms": mean(column(own, "first_provisional")),
        "provisional_kept": None if withdrawn is None else 1 - withdrawn,
        "drafter_prefill_ms": mean(column(own, "drafter_prefill")),
        "first_committed_ms": mean(column(own, "first_committed")),
        "total_ms": mean(column(own, "total")),
        "overhead_share": None if inside is None else 1 - inside,
    }
    if base:
        whole, answers, decoding = column(base, "total"), _times_as_fast(base, own), _times_as_fast(base, own, "decode")
        figures |= {
            "speedup": answers[0],
            "speedup_ci95": answers[1:],
            "decode_speedup": decoding[0],
            "decode_speedup_ci95": decoding[1:],
            "ceiling": ratio_of_sums(whole, column(base, "first_committed")),
            "identical": sum(a["token_ids"] == b["token_ids"] for a, b in zip(own, base, strict=True)),
            "ties": sum((r["first_difference"] or {}).get("gap", 1.0) < TIE_GAP for r in own),
            "slower_share": mean([float(a > b) for a, b in zip(column(own, "total"), whole, strict=True)]),
        }
    return figures


def _times_as_fast(others: list[Row], own: list[Row], stage: str = "total") -> list[float | None]:
    """How many times as fast `own` is in a stage, and the 95 % interval over recordings: [ratio, low, high]."""
    above, below = column(others, stage), column(own, stage)
    low, high = ratio_interval(above, below, [r["recording"] for r in own]) or (None, None)
    return [ratio_of_sums(above, below), low, high]


def column(rows: Sequence[Row], stage: str) -> list[float]:
    """Milliseconds of a stage, of the rows that have it."""
    return [r["timing_ms"][stage] for r in rows if r["timing_ms"][stage] is not None]


def _right(row: Row) -> bool:
    return bool(row["text"].strip() == row["answer"].strip())
