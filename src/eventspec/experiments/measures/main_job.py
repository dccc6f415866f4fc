"""The main comparison: every method with its controls about held-out scenes, a core a model and with cores shared out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from eventspec.experiments.compare import Comparison, others_of
from eventspec.experiments.measures.setup import Finding, Setup, compared, street
from eventspec.experiments.names import BASE, BLIND
from eventspec.pairs import load_pair, warm_up

QUICK = (BASE, "cross-modal", "prior")


def apart(setup: Setup) -> Iterator[Finding]:
    """A core a model, with other drafters, heads and compressions too."""
    methods = (BASE, "auto", "cross-modal", "hybrid", "eagle", "specvlm", *BLIND)
    choices = {
        "drafter": ("fine:retokenize", "fine:intersect"),
        "head": ("eagle3", "eagle1", "eagle:chain"),
        "compress": ("pool:3", "packer:2"),
    }
    yield _compared(setup, "two", methods, ("real", "shuffled", "blank"), choices)


def shared(setup: Setup) -> Iterator[Finding]:
    """Cores shared out."""
    methods = (BASE, "auto", "cross-modal", "hybrid", "hybrid-blind", "eagle", "prior")
    yield _compared(setup, "auto", methods, ("real", "shuffled"), {})


def _compared(
    setup: Setup, device_plan: str, methods: Sequence[str], events: Sequence[str], choices: Mapping[str, Sequence[str]]
) -> Finding:
    with street(setup, f"main-job-{device_plan}", 8800, setup.size(100, 2), setup.size(200, 2)) as (questions, rows):
        pair = load_pair(setup.pair, device_plan, fit=False)
        pair, methods = (pair, QUICK) if setup.quick else (warm_up(pair), methods)
        others = [] if setup.quick else others_of(pair, choices)
        return (), compared(Comparison(pair, questions, methods, events=events, others=others), rows, setup)[0]
