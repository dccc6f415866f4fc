"""The methods by name, what may be chosen beside one, and how it is typed: NAME[:CHOICE] of heads, event drafters and
compressions. It needs no model, so that a mistake is named before one is loaded."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eventspec.align.deciding import FITTED, USUAL_RULE, Decision
from eventspec.errors import BadInput, check_known
from eventspec.files import check_name

METHODS = {
    "autoregressive": "the baseline: the target alone",
    "cross-modal": "an event VLM drafts while the target encodes; verified in the forward that ends the target's prefill",
    "eagle": "an EAGLE head on the target's own features drafts a tree in every round",
    "specvlm": "the same, and the head sees the visual rows through an elastic compressor",
    "hybrid": "events draft ahead, a head after the prefill, prior, n-grams and what was drafted before: one tree by "
    "calibrated probabilities",
    "hybrid-blind": "control: hybrid without events",
    "cascade": "the event VLM's drafts, looked through by the target on a single frame before the target sees them",
    "aligned": "the target's own language model on event features that an adapter maps to its visual rows drafts the "
    "head start",
    "event-eagle": "the event drafter, its tokens named by the target's own head: an adapter maps its features to the target's",
    "skip-encode": "LOSSY: answers from events alone where a calibrated risk allows it, and asks the target where not",
    "compressed-target": "LOSSY: the target alone, on fewer of its own visual rows",
    "ngram": "control: prompt lookup",
    "prior": "control: what answers to this question usually say, blind to the recording",
    "auto": "chooses for each question, by what they took here: hybrid, hybrid-blind, the baseline, or a head",
}
"""What ships, in words; a pair may offer others."""
EVENT_METHOD = "cross-modal"
"""The method of the event drafter."""
BASELINE = "autoregressive"
LOSSY = "compressed-target"
DRAFTLESS = (BASELINE, LOSSY)
HEAD_METHODS = ("specvlm", "eagle")
"""Methods whose drafts come from a head on the target's features. `auto` has the first that there is for recordings that were
read before, and mixes without `MIXED_HEAD` have it: SpecVLM's reads a prompt sooner."""
MIXED_HEAD = "hivis"
"""The head of mixes where a pair has it and no other was asked for. It looks at no visual row, so the target works out its
features for some fifteen rows of a prompt instead of all; a round gives a little less than with EAGLE's (docs/heads.md)."""
HYBRID = "hybrid"
BLIND = "hybrid-blind"
CASCADE = "cascade"
ALIGNED = "aligned"
EVENT_EAGLE = "event-eagle"
SKIP = "skip-encode"
USUAL_RISK = 0.05
AUTO = "auto"
SEEING_EVENTS = (EVENT_METHOD, HYBRID, CASCADE, ALIGNED, EVENT_EAGLE, SKIP, AUTO)
"""Methods that may need the event model of a pair."""
CHOICES = {
    "head": (*HEAD_METHODS, HYBRID, BLIND, AUTO, LOSSY),
    "drafter": (EVENT_METHOD, HYBRID, CASCADE, AUTO),
    "compress": (LOSSY,),
    "adapter": (ALIGNED, EVENT_EAGLE, SKIP, HYBRID),
    "risk": (SKIP,),
    "decide": (SKIP,),
    "learn": (*HEAD_METHODS, HYBRID, BLIND, AUTO),
}
"""What may be chosen beside a method, and the methods that use it."""
WANTED = {
    **dict.fromkeys((*HEAD_METHODS, BLIND), ("head",)),
    **dict.fromkeys((EVENT_METHOD, CASCADE), ("drafter",)),
    HYBRID: ("head", "drafter"),
    LOSSY: ("compress",),
    **dict.fromkeys(("prior", ALIGNED, EVENT_EAGLE, SKIP), ()),
}
"""What a checkpoint that answers does not have by itself: one of these must be chosen for a method; () where none would do."""
USUAL_TREE = "dynamic"
"""How a head's draft tree grows."""
TREES = ("dynamic", "published", "chain", "eagle2", "static")
"""What heads know, but for the small VLM."""
BRANCHES = ("prune", "pool", "max", "convolve", "resample", "none")
"""Of the elastic compressor of a head: one may be forced, instead of the one that its gate chooses."""
SMALL_VLM = "massv"
SMALL_VLM_TREES = ("dynamic", "pruned")
SEVERAL_LAYERS = (SMALL_VLM, "dream")
"""Kinds of heads that cannot learn while they draft."""
ACCEPTANCE = FITTED[USUAL_RULE].file
"""In an adapter's folder: its calibrated acceptance predictor."""
COMPRESSIONS = ("prune", "pool", "attention", "grid", "max", "fastv", "packer")
USUAL_MAPPING = "auto"
"""How an event drafter's ids become the target's."""
VOCABULARY_MAPPINGS = ("auto", "same", "retokenize", "intersect")


def check_method(name: str) -> str:
    """The name itself, or BadInput that lists the valid ones."""
    if name not in METHODS:
        raise BadInput(f"unknown method '{name}': choose one of {', '.join(METHODS)}")
    return name


def check_choices(methods: Sequence[str], given: Iterable[str]) -> None:
    """BadInput for one of `CHOICES` that was given and that all methods would pass over."""
    chosen = set(given)
    if HYBRID in methods and {"drafter", "adapter"} <= chosen:
        raise BadInput("--drafter and --adapter exclude each other: method hybrid has one drafter on events")
    for choice in sorted(chosen):
        if not set(methods) & set(users := CHOICES[choice]):
            raise BadInput(f"--{choice} is not used by method {' or '.join(methods)}: it is for --method {' or '.join(users)}")


def check_packer(scale: int, known: Collection[str]) -> None:
    """BadInput for a scale that a pair has no packer of."""
    if str(scale) not in known:
        there = f"there is {', '.join(known)}" if known else "there is none"
        raise BadInput(f"no trained packer of scale {scale}, {there}: train one with `eventspec train packer`")


def check_adapter(adapter: str, by: str, method: str | None) -> None:
    """BadInput for an adapter that method `by` drafts through, and the `method` it is meant for does not; None: for any."""
    if method not in (None, HYBRID, by) and (method, by) != (SKIP, ALIGNED):
        raise BadInput(f"adapter {adapter} is for method {by}: name another one for method {method}")


def uncalibrated(adapter: str, rule: str = USUAL_RULE) -> BadInput:
    """Of an adapter that is to answer alone, by a rule."""
    problem = f"adapter {adapter} was not calibrated: method {SKIP} does not know when to trust it"
    rule = "" if rule == USUAL_RULE else f" by rule {rule}"
    return BadInput(f"{problem}{rule}; `eventspec train adapter --kind KIND --phase calibration` makes that known")


def check_decision(decide: str, risk: float | None) -> Decision:
    """The rule that was typed; BadInput for what is none, and for a risk beside one that keeps none."""
    decision = Decision.parse(decide)
    if risk is not None and not decision.risky:
        raise BadInput(f"--risk is not used by rule {decision}: it is for the rules {', '.join(FITTED)}")
    return decision


def name_and_choice(text: str, usual: str, known: Container[str] = ()) -> tuple[str, str]:
    """NAME or NAME:CHOICE -> both. A `known` name, and an existing folder, may hold colons of its own."""
    name, mark, choice = text.rpartition(":")
    bare = text in known or check_name(text).is_dir() or not mark or "/" in choice
    return (text, usual) if bare else (name, choice)


@dataclass(frozen=True)
class HeadSpec:
    """A head by name or folder, how its draft tree grows, and a forced branch of its compressor (None: its gate chooses)."""

    which: str
    tree: str = USUAL_TREE
    branch: str | None = None

    @classmethod
    def parse(cls, text: str, known: Container[str] = ()) -> HeadSpec:
        """NAME[:TREE][:BRANCH], in any order; a `known` name may hold colons of its own. What is neither a tree nor a branch is
        taken to be a tree; nothing says here whether the head has it. BadInput for two of a kind, and for an empty part."""
        which, words, of_heads = text, list[str](), (*TREES, *SMALL_VLM_TREES, *BRANCHES, "")
        while (part := name_and_choice(which, "", known)) != (which, ""):
            if words and part[1] not in of_heads and part[0] not in known:
                break  # a name with a colon
            which, words = part[0], [part[1], *words]
        branches = [word for word in words if word in BRANCHES]
        trees = [word for word in words if word not in BRANCHES]
        if "" in words or len(branches) > 1 or len(trees) > 1:
            wrong = "has an empty part" if "" in words else f"names two {'branches' if len(branches) > 1 else 'trees'}"
            raise BadInput(f"--head {text} {wrong}: give NAME, NAME:TREE, NAME:BRANCH or NAME:TREE:BRANCH")
        return cls(which, *(trees or [USUAL_TREE]), *branches)

    def __str__(self) -> str:
        return f"{self.which}, {self.tree}" + (f", {self.branch}" if self.branch else "")


def folder_named(kind: str, which: str, known: Mapping[str, Path]) -> Path:
    """The folder of a head, an adapter or a drafter (`kind`), by a pair's name for it or as it is; BadInput."""
    folder = known.get(which, Path(which))
    if not which or not folder.is_dir():
        others = f", or one of {', '.join(known)}" if known else ""
        raise BadInput(f"no {kind} '{which}': give the folder of {'an' if kind[0] in 'aeiou' else 'a'} {kind}{others}")
    return folder


@dataclass(frozen=True)
class CompressionSpec:
    """Which visual rows a lossy target leaves out: `packer` (trained), `fastv`, or a `kind` of `compress.lossy`; one of `size`
    stays, or of a square of `size` patches a side."""

    kind: str
    size: int

    @classmethod
    def parse(cls, text: str) -> CompressionSpec:
        """KIND:SIZE; BadInput for anything else."""
        kind, _, size = text.partition(":")
        if not (size.isascii() and size.isdecimal()) or len(size) > 6:
            raise BadInput(f"compression '{text}' cannot be read: give KIND:SIZE, such as pool:3")
        check_known("compression", [kind], COMPRESSIONS)
        if not int(size):
            raise BadInput(f"compression '{text}' leaves no visual token: give a whole number from 1 on")
        return cls(kind, int(size))

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}"
