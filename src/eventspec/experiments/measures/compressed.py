"""A target that reads fewer visual rows, alone and with a head's drafts: what each compression keeps of the whole target's
answers, and how the two speedups multiply (the early notes' S_decode x S_compress). Goes into heads.json."""

from __future__ import annotations

from collections.abc import Iterator

from eventspec.experiments.arms import Arm
from eventspec.experiments.measures.heads import asked, fitted_arms
from eventspec.experiments.measures.setup import Finding, Setup
from eventspec.experiments.names import BASE
from eventspec.pairs import Pair
from eventspec.pairs.names import LOSSY

HEAD = "eagle"
SPECS = ("prune:3", "pool:3", "attention:3", "grid:2", "max:2", "packer:2", "fastv:2")


def measure(setup: Setup) -> Iterator[Finding]:
    """Questions about held-out scenes, interleaved, on one thread."""
    specs = setup.size(SPECS, SPECS[-1:])

    def arms(pair: Pair) -> list[Arm]:
        drafting = pair.with_head(HEAD)
        found = fitted_arms(setup, {HEAD: drafting})
        for spec in specs:
            found.append(Arm(spec, LOSSY, pair.with_compression(spec)))
            found.append(Arm(f"{spec}, {HEAD}", LOSSY, drafting.with_compression(spec)))
        return found

    part, rows = asked(setup, "compressed", arms, (BASE,), many=True)
    given = {name: {row["question_id"]: row["token_ids"] for row in own} for name, own in rows.items()}
    for spec in specs:  # a head's drafts may not change what the target that reads fewer rows says
        alone, drafted = given[spec], given[f"{spec}, {HEAD}"]
        part["methods"][f"{spec}, {HEAD}"]["as_alone"] = sum(ids == alone[at] for at, ids in drafted.items())
    yield ("compressed",), part
