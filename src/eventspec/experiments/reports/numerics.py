"""The figures of docs/numerics.md: how far rounding moves a row, and whose answers differ."""

from __future__ import annotations

from eventspec.experiments.reports import Block, Results
from eventspec.experiments.tables import table, table_of

KINDS = {
    "temperature 2": "sampled at temperature 2, 400 tokens an answer",
    "temperature 0": "greedy, 400 tokens an answer",
    "ties": "greedy, with a bias that makes the two best tokens equal at one position",
    "ties, not settled": "the same, near ties only counted (control)",
}
IDENTITY = {
    "answers": "{what}",
    "processor": "{processor}",
    "plain answers (tokens)": "{plain_answers:,} ({plain_tokens:,})",
    "arms": "{arms}",
    "compared with them": "{answers:,}",
    "tokens": "{tokens:,}",
    "near ties": "{near_ties:,}",
    "differ": "{different}",
}


def identity(results: Results) -> str:
    """Answers of every arm beside those of plain decoding, by kind and processor."""
    found = results["identity"]
    runs = [
        {"what": words, "processor": name, **kinds[kind]}
        for kind, words in KINDS.items()
        for name, kinds in found.items()
        if kind in kinds
    ]
    rounding = sorted({f"{run['rounding']:.1e}" for run in runs})
    return f"{table_of(runs, IDENTITY)}\n\nfp32; near ties are those closer than {', '.join(rounding)}."


def rounding(results: Results) -> str:
    """How far apart a row's logits are alone and among others, in what is measured when a target is loaded."""
    names = ("largest_of_load", "largest_gap_of_load", "margin")
    rows = [
        [name, f"{one['rows']:,}", *(f"{one[figure]:.1f}" for figure in names)] for name, one in results["rounding"].items()
    ]
    return table(["processor", "rows", "largest difference", "largest move of a gap", "margin"], rows)


PAGES: dict[str, dict[str, Block]] = {"docs/numerics.md": {"rounding": rounding, "identity": identity}}
