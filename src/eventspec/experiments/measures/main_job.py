"""The main comparison: every method with its controls about held-out scenes, a core a model and with cores shared out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eventspec.experiments.compare import Comparison, others_of
from eventspec.experiments.measures.setup import Finding, Setup, Street, compared
from eventspec.experiments.names import BASE, BLIND
from eventspec.pairs import load_pair, warm_up


@dataclass(frozen=True)
class Job:
    """What is compared on one device plan."""

    device_plan: str
    methods: Sequence[str]
    events: Sequence[str]
    choices: Mapping[str, Sequence[str]]


APART = Job(
    "two",
    (BASE, "auto", "cross-modal", "hybrid", "eagle", "specvlm", *BLIND),
    ("real", "shuffled", "blank"),
    {
        "drafter": ("fine:retokenize", "fine:intersect"),
        "head": ("eagle3", "eagle1", "eagle:chain"),
        "compress": ("pool:3", "packer:2"),
    },
)
SHARED = Job(
    "auto",
    (BASE, "auto", "cross-modal", "hybrid", "hybrid-blind", "eagle", "prior"),
    ("real", "shuffled"),
    {},
)
QUICK = (BASE, "cross-modal", "prior")


def measure(job: Job, setup: Setup) -> Iterator[Finding]:
    """A comparison of methods on one device plan."""
    with Street(setup.size(100, 2), setup.size(200, 2), 8800).asked(setup, f"main-job-{job.device_plan}") as (questions, rows):
        pair = load_pair(setup.pair, job.device_plan, fit=False)
        pair, methods = (pair, QUICK) if setup.quick else (warm_up(pair), job.methods)
        others = [] if setup.quick else others_of(pair, job.choices)
        asked = Comparison(pair, questions, methods, events=job.events, others=others)
        yield (), compared(asked, rows, setup)[0]
