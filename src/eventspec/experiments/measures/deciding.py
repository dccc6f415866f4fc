"""Rules by which method skip-encode lets an answer from events stand, beside each other: what each separates, takes and risks.

Goes into alignment.json. `rules`: every question about held-out scenes, by what every rule goes by. `cosines`: what thresholds
of the early notes accept of adapters before and after they learned, and of another clip's events. `near`: whether recordings
with nearly the same events have the same answers. `timed`: answers by every rule, interleaved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.align.adapters import Adapter, AdapterConfig, laid_out, pooled_layers
from eventspec.align.deciding import FITTED, GROUPINGS, Decision, cosine, divergence, probability
from eventspec.align.substitute import LONGEST, Known, SubstitutedTarget
from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Trace
from eventspec.experiments.compare import Comparison, environment, others_of
from eventspec.experiments.measures.alignment import area, crossfit
from eventspec.experiments.measures.setup import Finding, Found, Setup, compared, one_thread, scene, street
from eventspec.experiments.names import BASE
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.models.session import LanguageContext, LanguageTarget
from eventspec.pairs import load_pair
from eventspec.pairs.names import SKIP
from eventspec.pairs.trained import Adapters

COSINES = (0.8, 0.85, 0.9)
"""Thresholds of the early notes."""
DIVERGENCES = (0.01, 0.03, 0.1, 0.3)
RISKS = (0.02, 0.05, 0.1)
TIMED = (
    "predictor",
    "entropy",
    "events",
    "predictor:kind",
    "predictor:scene",
    "score",
    "score:predictor",
    "kl:0.03",
    "cosine:0.8",
)
SEED = 9300
LEARNED = 60
"""Calibration clips that the least-squares adapter is fitted to."""
NEAR = 0.995
CONTROLLED = ("trained", "least squares")
"""Adapters that are shown another clip's events too."""


def measure(setup: Setup) -> Iterator[Finding]:
    """Questions about scenes that no part of the pair learned from or was calibrated on."""
    with load_pair(setup.pair, "one", fit=False) as pair, torch.inference_mode(), one_thread():
        target, adapters = pair.method(SKIP).target, pair.parts.adapters
        assert isinstance(target, SubstitutedTarget) and adapters is not None
        tower = adapters.usual("tower")
        untaught = {"before training": target.adapter} | ({f"{tower}, before training": tower} if tower is not None else {})
        torch.manual_seed(0)
        others = {title: Adapter(adapters.config(name)).eval() for title, name in untaught.items()}
        others["least squares"] = fitted(adapters, setup.size(LEARNED, 2))
        made = {name: LanguageTarget(adapters.writing(one), lossless=False) for name, one in others.items()}
        models = {"trained": target.substitute.aligned, **made}
        if tower is not None:
            models[tower] = LanguageTarget(adapters.encoder(tower), lossless=False)
        rows, seen, scenes = list[Found](), list[Found](), setup.size(24, 3)
        other = media_of(scene(SEED, scenes - 1)[0])
        for index in range(scenes):
            recording, asked = scene(SEED, index)
            media, substitute = media_of(recording), target.substitute
            read = {name: own.encode(media, Trace()) for name, own in models.items()}
            another = {f"{name}, another clip's events": name for name in models if name in CONTROLLED or name == tower}
            read |= {title: models[name].encode(other, Trace()) for title, name in another.items()}
            own, answers = target.target.encode(media, Trace()), dict[str, list[int]]()
            for qa in asked:
                answers[qa.question] = generate(pair, recording, qa.question, "prior", max_new_tokens=LONGEST).token_ids
                evidence = {name: Known.of(substitute, media, qa.question, one, own) for name, one in read.items()}
                rows.append({"scene": index, "kind": qa.kind, **judged(evidence, answers[qa.question])})
            adapted = read["trained"]
            assert isinstance(adapted, LanguageContext)
            seen.append({"pooled": adapted.visual.mean(0).numpy(), "answers": answers})
            other = media
            setup.progress((index + 1) / scenes / 2)
        part = {"n": len(rows), "scenes": scenes, "environment": environment(pair), "near": near_of(seen)}
        yield ("deciding",), {**part, "cosines": cosines(rows), "rules": rules(rows, adapters, target.adapter)}
    with street(setup, "deciding", SEED, setup.size(100, 2), setup.size(200, 2)) as (questions, path):
        pair = load_pair(setup.pair, "one", fit=False)
        arms = others_of(pair, {"decide": setup.size(TIMED, TIMED[:2])}, fit=False)
        found, by_arm = compared(Comparison(pair, questions, [BASE], others=arms, look=False), path, setup)
        plain = {row["question_id"]: row["token_ids"] for row in by_arm[BASE]}
        for name, given in by_arm.items():
            groups = [row["recording"] for row in given]
            wrong = share([float(row["token_ids"] != plain[row["question_id"]]) for row in given], groups)
            found["methods"][name] |= {"skipped": share([float(row["skipped"]) for row in given], groups), "wrong": wrong}
        yield ("deciding", "timed"), found


def fitted(adapters: Adapters, clips: int) -> Adapter:
    """A linear adapter that is as near to the target's rows as one can be: least squares over calibration clips, and no answer
    has a say. It is what a cosine can reach without any training for acceptance."""
    config = AdapterConfig.of("linear", adapters.drafter.config, adapters.target.config.language.hidden_size)
    adapter, inputs, wanted = Adapter(config).eval(), list[Tensor](), list[Tensor]()
    for index in range(clips):
        media = media_of(scene(0, index, "calibration")[0])
        layers = pooled_layers(adapters.drafter, adapters.events.pixels(media), config.layers)
        own = adapters.frames.encode(media, Trace(), "target").unflatten(0, (1, -1, adapters.target.config.vision.tokens))
        inputs.append(adapter.norms[0](layers[0])[0].float())
        wanted.append(laid_out(own, adapters.drafter.config)[0].float())
    x = torch.cat((torch.cat(inputs), torch.ones(sum(map(len, inputs)), 1)), 1).double()
    found = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1], dtype=x.dtype), x.T @ torch.cat(wanted).double()).float()
    entry: Any = adapter.enter[0]
    entry.weight.data, entry.bias.data = found[:-1].T.contiguous(), found[-1].clone()
    return adapter


def judged(known: Mapping[str, Known], answer: list[int]) -> Found:
    """What every rule goes by of a question, whose `answer` is the target's, and whether answers from events are that; of an
    adapter whose cosine no threshold accepts no answer is made."""
    own = known["trained"]
    near = {name: cosine(one) for name, one in known.items()}
    made = {name: one for name, one in known.items() if name == "trained" or near[name] >= COSINES[0]}
    ended = {name: one.features is not None for name, one in made.items()}
    right = {name: ended[name] and one.tokens == answer for name, one in made.items()}
    features = {rule: fit.read(own) for rule, fit in FITTED.items()}
    return {"cosine": near, "ended": ended, "right": right, "kl": divergence(own), "features": features, "known": own}


def share(values: Sequence[float], scenes: Sequence[Any], of: Sequence[float] | None = None) -> list[float | None]:
    """[ratio of sums, low, high], with an interval over whole scenes; without one where a draw of them has nothing to count.
    Of none and of all no draw differs: there the exact binomial one, as if a scene were one observation."""
    below = [1.0] * len(values) if of is None else of
    whole, counted = ratio_of_sums(values, below), len({scene for scene, many in zip(scenes, below, strict=True) if many})
    if whole in (0.0, 1.0) and counted:
        far = 1 - 0.025 ** (1 / counted)
        return [whole, *((0.0, far) if not whole else (1 - far, 1.0))]
    ends = ratio_interval(values, below, scenes)
    known = ends is not None and np.isfinite(ends).all()
    return [whole, *([min(1.0, end) for end in ends] if ends and known else (None, None))]


def taken(rows: Sequence[Found], stands: Sequence[bool], name: str = "trained") -> Found:
    """Of all answers the share that stands, the share that stands and is wrong, and of those that stand how many are kept."""
    scenes = [row["scene"] for row in rows]
    right = [float(row["right"].get(name, False)) for row in rows]
    used = [float(one and row["ended"].get(name, False)) for row, one in zip(rows, stands, strict=True)]
    good = [one * kept for one, kept in zip(used, right, strict=True)]
    wrong = [one - kept for one, kept in zip(used, good, strict=True)]
    return {"accepted": share(used, scenes), "wrong": share(wrong, scenes), "kept": share(good, scenes, used)}


def cosines(rows: Sequence[Found]) -> Found:
    """Of every adapter the mean cosine, and what thresholds accept and keep."""
    scenes = [row["scene"] for row in rows]
    found = Found()
    for name in rows[0]["cosine"]:
        own = [row["cosine"][name] for row in rows]
        at = {f"{limit:g}": taken(rows, [one >= limit for one in own], name) for limit in COSINES}
        found[name] = {"cosine": share(own, scenes), "at": at}
    return found


def rules(rows: Sequence[Found], adapters: Adapters, name: str) -> Found:
    """Of every rule the area under the ROC curve, over all answers and by `within` a kind of question, and what it takes."""
    right = np.array([row["right"]["trained"] for row in rows])
    known = {rule: adapters.calibrated(name, rule) for rule in FITTED}
    sure = {"cosine": [row["cosine"]["trained"] for row in rows], "kl": [-row["kl"] for row in rows]}
    at: dict[str, dict[str, list[bool]]] = {
        "cosine": {f"{limit:g}": [one >= limit for one in sure["cosine"]] for limit in COSINES},
        "kl": {f"{most:g}": [one >= -most for one in sure["kl"]] for most in DIVERGENCES},
    }
    for rule, calibrated in known.items():
        if calibrated is None:
            continue
        sure[rule] = [probability(row["features"][rule], calibrated) for row in rows]
        for by in ("", *GROUPINGS):
            labels = [calibrated.groups.label(by, row["known"].question, row["known"].rate) if by else "" for row in rows]
            for risk in RISKS:
                limits_of = {label: calibrated.least(risk, by, label) for label in set(labels)}
                stands = [one >= limits_of[label] for one, label in zip(sure[rule], labels, strict=True)]
                at.setdefault(f"{rule}:{by}" if by else rule, {})[f"risk {risk:g}"] = stands
    sure |= {"score": sure["cosine"], "score:kl": np.exp(sure["kl"]).tolist(), "score:predictor": sure["predictor"]}
    for text in ("score", "score:kl", "score:predictor"):
        limits = [Decision.parse(text).least(row["known"], None, 0.0) for row in rows]
        at[text] = {"": [one >= limit for one, limit in zip(sure[text], limits, strict=True)]}
    kinds = np.array([row["kind"] for row in rows])
    areas = {rule: area(np.array(own), right, kinds) for rule, own in sure.items()}
    # The control of `events`: the question's words alone. Both are fitted here, on half of the scenes each.
    asked, scenes, strength = [row["features"]["events"] is not None for row in rows], [row["scene"] for row in rows], 300.0
    pooled = np.array([row["features"]["events"] for row, one in zip(rows, asked, strict=True) if one])
    half, kept = pooled.shape[1] // 2, np.array(asked)
    for title, columns in (("events, fitted here", pooled), ("words alone", pooled[:, half:])):
        with suppress(BadInput):  # of too few answers none is fitted
            guessed = crossfit(columns, right[kept], [at for at, one in zip(scenes, asked, strict=True) if one], strength)
            areas[title] = area(guessed, right[kept], kinds[kept])
    return {
        "right": share(right.astype(float).tolist(), [row["scene"] for row in rows]),
        "auc": areas,
        "at": {rule: {name: taken(rows, stands) for name, stands in own.items()} for rule, own in at.items()},
    }


def near_of(scenes: Sequence[Found]) -> Found:
    """How near every scene's mean adapted row is to the nearest of another scene, how many are above NEAR, and how often an
    answer to the same question is the same there, and at any other scene."""
    rows = np.stack([own["pooled"] for own in scenes])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    like = rows @ rows.T - 2 * np.eye(len(rows))
    pairs = {"near": np.argwhere(like >= NEAR), "any": np.argwhere(like > -1)}
    found: Found = {"nearest": np.quantile(like.max(1), (0, 0.5, 1)).tolist(), "above": float((like.max(1) >= NEAR).mean())}
    for name, places in pairs.items():
        same = [
            scenes[one]["answers"][question] == answer
            for one, other in places.tolist()
            for question, answer in scenes[other]["answers"].items()
            if question in scenes[one]["answers"]
        ]
        found[name] = {"same": float(np.mean(same)) if same else None, "n": len(same)}
    return found
