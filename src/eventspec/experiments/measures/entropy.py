"""How sure each model is of the target's next token, by what it sees: events, one frame, all frames (the early notes' gradient
after PyramidSD, arXiv 2510.12966: the sparser the modality, the higher the entropy)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch

from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import Media, Proposal, Sampling, Target, Trace
from eventspec.drafters import LanguageDrafter
from eventspec.drafters.cascade import Cascade, last_frame
from eventspec.engine.policy import NO_TAIL
from eventspec.errors import BadInput
from eventspec.experiments.arms import Recordings
from eventspec.experiments.compare import environment
from eventspec.experiments.measures.setup import Finding, Found, Setup, street
from eventspec.experiments.names import with_events
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.models.session import LanguageTarget
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.names import CASCADE, EVENT_METHOD
from eventspec.recordings.qa import Question

SEED = 6200
DRAFTER, QUALIFIER, TARGET = "event drafter", "qualifier", "target"
CONTROLS = ("shuffled", "blank")
LONGEST = 128
"""Tokens of an answer, at most."""


def measure(setup: Setup) -> Iterator[Finding]:
    """Mean next-token entropy of every model on the same prefixes, which are the target's own answers, over all their tokens;
    and how many of these each model names first. With 95 % intervals over recordings, of differences from the target's too."""
    with (
        street(setup, "entropy", SEED, setup.size(60, 2), setup.size(60, 3)) as (asked, path),
        load_pair(setup.pair, "one", fit=False) as pair,
        torch.inference_mode(),
    ):
        recordings, models = Recordings(asked), _models(pair)
        lines = path.read_text().splitlines() if path.exists() else []  # of a run that was stopped, a question each
        rows: list[Found] = [row for line in lines for row in json.loads(line)]
        there = {row["question_id"] for row in rows}
        for place, question in enumerate(asked):
            if question.id not in there:
                rows += (fresh := list(_rows(pair, models, recordings, question)))
                with path.open("a") as file:
                    file.write(json.dumps(fresh) + "\n")
            setup.progress((place + 1) / len(asked))
        if not setup.keep:
            path.unlink(missing_ok=True)
        seen = {"n": len(asked), "recordings": len({row["recording"] for row in rows})}
        yield (), {**seen, "environment": environment(pair), "models": summary(rows)}


def _models(pair: Pair) -> Mapping[str, Target]:
    """The three models, each as a target. BadInput for a pair without them."""
    drafter, cascade = (pair.drafter(name) if name in pair.methods else None for name in (EVENT_METHOD, CASCADE))
    if not isinstance(drafter, LanguageDrafter) or not isinstance(cascade, Cascade):
        raise BadInput(f"pair {pair.name} has no event drafter that speaks the target's ids, or no target that sees frames")
    return {DRAFTER: LanguageTarget(drafter.encoder, lossless=False), QUALIFIER: cascade.qualifier, TARGET: pair.target}


def _rows(pair: Pair, models: Mapping[str, Target], recordings: Recordings, question: Question) -> Iterator[Found]:
    """Of every model, and of the event drafter with a control's events, about one answer of the target's: `entropy`, nats, and
    `right`, both summed over its tokens."""
    real = recordings.real(question)
    tokens = generate(pair, real, question.question, "prior", max_new_tokens=LONGEST).token_ids
    seen = {name: media_of(real) for name in models}
    seen[QUALIFIER] = last_frame(seen[QUALIFIER])
    seen |= {with_events(DRAFTER, kind): media_of(recordings.get(question, kind)) for kind in CONTROLS}
    size = pair.tokens.vocabulary.size
    for name, media in seen.items():
        entropy, right = _surprise(models[name.partition(",")[0]], media, question.question, tokens, size)
        about = {
            "question_id": question.id,
            "recording": question.recording.name,
            "question": question.question,
            "tokens": len(tokens),
        }
        yield {**about, "model": name, "entropy": round(entropy, 6), "right": right}


def _surprise(model: Target, media: Media, question: str, tokens: list[int], size: int) -> tuple[float, int]:
    """Nats of entropy over the first `size` ids before each of an answer's tokens, summed, and how many of these tokens are the
    likeliest there."""
    session = model.encode(media, Trace()).open(question, Sampling(max_new_tokens=len(tokens)), NO_TAIL, Trace())
    logs = session.score(Proposal.chain(tokens[:-1])).logits[:, :size].double().log_softmax(-1)
    return float(-(logs.exp() * logs).sum()), int((logs.argmax(-1).cpu() == torch.tensor(tokens)).sum())


def summary(rows: list[Found]) -> Found:
    """By model: mean entropy and share of tokens that it names first, and how much more entropy than the target, each with its
    interval."""
    by_model = {name: [row for row in rows if row["model"] == name] for name in dict.fromkeys(row["model"] for row in rows)}
    found = Found()
    for name, own in by_model.items():
        below, groups = [row["tokens"] for row in own], [row["recording"] for row in own]
        more = [row["entropy"] - base["entropy"] for row, base in zip(own, by_model[TARGET], strict=True)]
        columns = {"entropy": [row["entropy"] for row in own], "right": [row["right"] for row in own], "more": more}
        found[name] = {
            key: [ratio_of_sums(above, below), *(ratio_interval(above, below, groups) or (None, None))]
            for key, above in columns.items()
        }
        found[name]["tokens"] = sum(below)
    return found
