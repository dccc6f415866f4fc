"""The adapters' recipe: what each phase learns, what stays as it is, and what is written."""

from __future__ import annotations

import json
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from eventspec.align.acceptance import Calibrated, auc
from eventspec.align.adapters import ROLLED, Adapter, AdapterConfig, Output, width_to
from eventspec.core import BadInput
from eventspec.events.representations import red_blue_classes
from eventspec.models.embedded import pixels_from_frames
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import bundled, load_pair
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import ACCEPTANCE, digest_of
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording
from eventspec.train import adapters as recipe
from eventspec.train import adapting, frozen, names
from eventspec.train.adapting import (
    LOSSES,
    AdapterTraining,
    FreeRunning,
    alike_share,
    contrast,
)
from eventspec.train.answers import target_answers
from eventspec.train.data import Branch, Clips, Questions
from eventspec.train.frozen import FrozenDrafter, FrozenTarget, Said
from eventspec.train.material import Material, Models
from eventspec.train.models import initialise
from eventspec.train.processes import Processes
from eventspec.train.rehearsal import most_in_use

NANO = bundled()["nano"]
KINDS: dict[Output, tuple[str, ...]] = {
    "rows": ("linear", "causal", "fused", "cached"),
    "tower": ("linear", "bottleneck"),
    "features": ("linear", "fused", "autoregressive"),
}


class TwoClips(Clips):
    """As `train.data.Clips`, of two clips."""

    def __init__(self, frames: list[np.ndarray[Any, Any]], classes: list[np.ndarray[Any, Any]]) -> None:
        self.columns = {name: torch.from_numpy(np.stack(rows)) for name, rows in (("frames", frames), ("classes", classes))}

    def column(self, name: str, index: np.ndarray[Any, Any]) -> torch.Tensor:
        return self.columns[name][index]


@pytest.fixture(scope="module")
def spoken() -> tuple[TwoClips, dict[int, list[Branch]]]:
    """Two clips, and the target's own answers to two questions about each."""
    target, asked = load_video_llava(NANO / "target"), Questions(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    frames, classes, answers = [], [], {}
    for number in range(2):
        clip = make_clip(split_seed("test", 41, number))
        recording = as_recording(clip, "clip")
        assert recording.events is not None
        frames.append(clip.frames)
        classes.append(red_blue_classes(recording.events.slice(recording.span), 5))
        texts = [qa.question for qa in questions(clip.facts, number)][:2]
        answers[number] = target_answers(target, asked, clip.frames, texts)
    return TwoClips(frames, classes), answers


def training_of(spoken: Any, output: Output = "rows", judged: bool = False) -> AdapterTraining:
    torch.manual_seed(0)
    target, drafter = load_video_llava(NANO / "target"), load_eventgpt(NANO / "drafter")
    width = width_to(target.config, output)
    adapters = {kind: initialise(Adapter(AdapterConfig.of(kind, drafter.config, width, output))) for kind in KINDS[output]}
    before = Questions.of_pair(NANO).prefix()
    frozen, events = FrozenTarget(target, before), FrozenDrafter(drafter, before)
    return recipe.TRAININGS[output](frozen, events, adapters, *spoken, 2, (), judged)


@pytest.mark.parametrize(
    ("output", "phase"),
    [
        *((output, phase) for output in ("rows", "tower", "features") for phase in names.PHASES),
        *((output, phase) for output in ("rows", "tower") for phase in names.FURTHER_PHASES),
    ],
)
def test_only_the_adapters_learn_and_each_does(phase: str, output: Output, spoken: Any) -> None:
    training = training_of(spoken, output, phase in names.FURTHER_PHASES)
    frozen = [training.target.model, training.drafter.model]
    before = [{name: parameter.clone() for name, parameter in model.named_parameters()} for model in frozen]
    optimiser, said = torch.optim.AdamW(training.parameters(), lr=2e-3), []
    for _ in range(6):
        optimiser.zero_grad()
        losses = training.losses(phase, np.array([0, 1]), 0.0)
        torch.stack([loss for name, loss in losses.items() if not name.startswith("_")]).sum().backward()
        wanted = {kind: f"{kind} judged" if phase == "predictor" else kind for kind in KINDS[output]}
        said.append({kind: float(losses[name].detach()) for kind, name in wanted.items()})
        optimiser.step()
    for kind in KINDS[output]:
        assert said[-1][kind] < said[0][kind]
    moved = any(part.grad is not None for _, adapter in training.each() for part in adapter.parameters())
    assert moved == (phase != "predictor"), "the predictor alone learns: an adapter would teach its own label"
    for model, known in zip(frozen, before, strict=True):
        assert all(torch.equal(known[name], parameter) for name, parameter in model.named_parameters())
    assert ("causal next" in losses) == (phase in ("alignment", "joint") and output == "rows")
    assert ("linear missed" in losses) == (phase == "end-to-end")
    assert ("linear judged" in losses, "linear apart" in losses) == (phase in names.FURTHER_PHASES, phase == "joint")


def test_what_follows_a_row_is_judged_where_it_is_drafted(spoken: Any) -> None:
    """Step d of a stretch stands d rows after what the event model read."""
    training = training_of(spoken, "features").eval()
    adapter, branches = dict(training.each())["autoregressive"], [spoken[1][0]]
    first = len(branches[0][0].question) - 1
    with torch.no_grad():
        inputs = training.inputs(spoken[0], np.array([0]), branches)
        written, steps = training.written(adapter, inputs, branches), adapter.rolled([inputs[1]], ROLLED)
    for place in range(min(len(branches[0][0].answer), 2 * ROLLED)):
        ahead = place % ROLLED
        assert torch.equal(written[0, first + place], steps[ahead][0, first + place - ahead])


def test_free_running_texts_are_paired_place_by_place(spoken: Any) -> None:
    features = training_of(spoken, "features")
    training = FreeRunning(features.target, features.drafter, dict(features.each()), *spoken, 2)
    training.answers = training.pairs(*spoken)
    tokenizer, parted = Questions.of_pair(NANO).tokenizer, 0
    for number, known in training.answers.items():
        for made, theirs in zip(known, spoken[1][number], strict=True):
            own = made.own
            assert own is not None
            assert own.question == made.question == theirs.question
            assert len(own.answer) == len(made.answer) == len(made.teacher_ids)
            assert made.answer == theirs.answer[: len(made.answer)]
            parted += own.answer != made.answer
    assert parted, f"the texts never part: {[tokenizer.decode(b.answer) for b in spoken[1][0]]}"
    losses = training.losses("alignment", np.array([0, 1]), 0.0)
    assert all(bool(torch.isfinite(loss)) for loss in losses.values())
    found = training.agreement(spoken[0], training.answers)
    assert all(0 <= figures["tokens"] <= 1 for figures in found.values())
    assert 0 < alike_share(training.answers) < 1


def test_what_rows_should_be_are_means_of_the_targets_own(spoken: Any) -> None:
    training = training_of(spoken)
    with torch.no_grad():
        wanted, counts = training.wanted(spoken[0], np.array([1]), [])
    assert counts.all()
    model = training.target.model.eval()
    with torch.no_grad():
        rows = model.encode(pixels_from_frames(spoken[0].column("frames", np.array([1])).numpy()[0]))
    rows = rows.unflatten(0, (8, -1))
    assert wanted.shape == (1, 5 + 65, rows.shape[-1])
    assert torch.allclose(wanted[0, 5:], rows.mean(0), atol=1e-4)
    assert torch.allclose(wanted[0, 2], rows[4].mean(0), atol=1e-4) or torch.allclose(wanted[0, 2], rows[3].mean(0), atol=1e-4)


@pytest.mark.parametrize("output", ["rows", "features"])
def test_gaps_are_those_between_what_is_written_and_wanted(output: Output, spoken: Any) -> None:
    training = training_of(spoken, output)
    found = training.gaps(*spoken)
    assert set(found) == set(KINDS[output])
    for figures in found.values():
        assert {"cosine", "l2", "mmd", "sliced_wasserstein", "linear_cka"} <= set(figures)
        assert abs(figures["cosine"]) < 0.7, "nothing was learnt yet"
        assert figures["mmd"] > 0.01
    others = training.gaps(*spoken, apart=1)
    assert set(others) == set(found)
    assert others != found, "what is wanted of another clip lies elsewhere"


@pytest.mark.parametrize("output", ["rows", "features"])
@pytest.mark.parametrize("hardware", [True, False])
def test_adapters_learn_in_fp32_beside_models_in_bfloat16(
    hardware: bool, output: Output, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are measured, with or without hardware for bfloat16."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: hardware)
    training = training_of(spoken, output)
    for model in (training.target.model, training.drafter.model):
        model.bfloat16()
    assert set(training.gaps(*spoken)) == set(training.agreement(*spoken)) == set(KINDS[output])
    for phase in names.PHASES:
        losses = training.losses(phase, np.array([0, 1]), 0.0)
        torch.stack([loss for name, loss in losses.items() if not name.startswith("_")]).sum().backward()
    assert {parameter.dtype for parameter in training.parameters()} == {torch.float32}
    assert all(parameter.grad is not None for _, adapter in training.each() for parameter in adapter.parameters())


@pytest.mark.parametrize("output", ["rows", "features"])
def test_an_event_model_on_a_device_of_its_own_stays_there(
    output: Output, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with shapes and no numbers stands for it: what the adapters read is moved to the target's, nothing else is."""
    training, moved, real = training_of(spoken, output), list[torch.Size](), torch.Tensor.to
    training.drafter.model.to("meta")

    def to(tensor: torch.Tensor, *how: Any, **more: Any) -> torch.Tensor:
        if tensor.is_meta and how == (torch.device("cpu"),):
            moved.append(tensor.shape)
            return torch.ones(tensor.shape)
        return real(tensor, *how, **more)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(adapting, "autocast", lambda beside: nullcontext())
    monkeypatch.setattr(frozen, "autocast", lambda beside: nullcontext())
    assert all(torch.isfinite(loss) for loss in training.losses("alignment", np.array([0, 1]), 0.0).values())
    assert len(moved) == (3 if output == "rows" else 2)
    assert set(training.gaps(*spoken)) == set(training.agreement(*spoken))


@pytest.mark.parametrize(
    ("load", "count", "places"),
    [
        (None, 1, ("cpu", "cpu")),
        ({}, 1, ("cpu", "cpu")),
        ({"device": "cuda:0", "drafter_device": "cuda:1"}, 1, ("cuda:0", "cuda:1")),
        ({"device": "cuda:1"}, 1, ("cuda:1", "cuda:1")),
        ({"drafter_device": "cuda:0"}, 1, ("cpu", "cuda:0")),
        ({"device": "cuda:0", "drafter_device": "cuda:1"}, 2, ("cpu", "cpu")),
    ],
)
def test_models_learn_where_the_pair_says_that_they_are(
    load: dict[str, str] | None, count: int, places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes()
    monkeypatch.setattr(processes, "count", count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    none: Any = None
    material = Material(Models(PairFile(Path("p"), "mine", load=load), none, "none", None), [], none, none)
    assert tuple(map(str, material.devices(processes))) == places


def test_memory_is_that_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, made in (
        ("is_available", lambda: True),
        ("device_count", lambda: 2),
        ("max_memory_allocated", lambda device=0: (3, 7)[device]),
    ):
        monkeypatch.setattr(torch.cuda, name, made)
    assert most_in_use() == 7


@pytest.mark.parametrize("loss", ["squared", "cosine", "contrast"])
def test_every_loss_of_alignment_is_one_of_its_own(loss: str, spoken: Any) -> None:
    """All together are the sum of each."""
    training, found = training_of(spoken), dict[str, float]()
    for alike in ([loss], [other for other in LOSSES if other != loss], list(LOSSES)):
        training.alike = alike
        with torch.no_grad():
            found["+".join(alike)] = float(training.losses("alignment", np.array([0, 1]), 0.0)["linear"])
    one, rest, whole = found.values()
    assert one > 0
    assert one + rest == pytest.approx(whole, rel=1e-4)


def test_contrast_is_least_where_every_row_is_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 6, 16, generator=generator)
    all_, some = torch.ones(4, 6, dtype=torch.bool), torch.ones(4, 6, dtype=torch.bool)
    some[2, 3:] = False
    for counts in (all_, some):
        own, mixed = float(contrast(rows, 2 * rows, counts)), float(contrast(rows, rows.roll(1, 0), counts))
        assert own < 0.1
        assert mixed > 2.0
    alone = torch.zeros(4, 6, dtype=torch.bool)
    alone[1] = True
    assert float(contrast(rows, rows.roll(1, 0), alone)) == 0.0, "there is nobody else at these places"


def test_the_accepted_share_is_that_of_the_path() -> None:
    # Two answers of two tokens; shares of the right token: 0.5, 0.5 and 0.25, 1.
    shares = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    said = Said(shares.log()[None], torch.zeros(1, 4, dtype=torch.int64), *[torch.zeros(1, 4, 1)] * 2, (2, 2))
    assert float(said.accepted_share()) == pytest.approx((0.5 + 0.25 + 0.25 + 0.25) / 4)
    assert [part.tolist() for part in said.right()] == [[True, True], [False, True]]


def test_a_written_pair_lists_the_best_adapter_first(spoken: Any, tmp_path: Path) -> None:
    training = training_of(spoken)
    scores = {"tokens": 0.5, "answers": 0.1, "n_answers": 4}
    figures = {kind: {"leading": float(n), **scores} for n, kind in enumerate(KINDS["rows"])}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"phase": "acceptance", "adapters": figures}) + "\n")
    adapters = dict(training.each())
    folder = recipe.export(PairFile.read(NANO), adapters, (training.drafter.model, training.target), tmp_path, log)
    made = tomllib.loads((folder / "pair.toml").read_text())
    shipped = PairFile.read(NANO).tables["adapters"]
    known = json.loads((folder / recipe.FIGURES).read_text())["calibration"]
    order = sorted({*shipped, *KINDS["rows"]}, key=lambda name: -known[name]["leading"])
    assert list(made["adapters"]) == order, "those that were there are kept"
    training = training_of(spoken, "features")
    adapters = {f"features-{name}": adapter for name, adapter in training.each()}
    log.write_text(json.dumps({"phase": "acceptance", "adapters": dict.fromkeys(adapters, figures["linear"])}) + "\n")
    folder = recipe.export(PairFile.read(folder), adapters, (training.drafter.model, training.target), tmp_path / "b", log)
    made = tomllib.loads((folder / "pair.toml").read_text())
    assert set(made["adapters"]) == {*KINDS["rows"], *shipped, *adapters}
    pair = load_pair(folder, "one", fit=False)
    assert {"aligned", "event-eagle", "eagle"} <= set(pair.methods)
    assert pair.with_adapter("linear").method("aligned").notes[-1] == "drafter: adapter linear"
    assert (
        pair.with_adapter("features-linear").method("event-eagle").notes[-1]
        == "drafter: the event drafter through adapter features-linear"
    )


def test_one_half_of_the_clips_teaches_and_the_other_says_when_to_trust(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows: list[recipe.JudgedAnswer] = []
    for clip in range(80):
        for _ in range(5):
            sure = float(rng.normal())
            features, right = (sure, 0.0, 1.0, 0.0, 0.0), bool(rng.random() < 1 / (1 + np.exp(-3 * sure)))
            rows.append(recipe.JudgedAnswer(clip, {"predictor": features}, right, "How?", float(clip)))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert recipe.save_calibrated(rows, tmp_path) is None
    found = Calibrated.load(tmp_path / ACCEPTANCE)
    assert set(found.recordings.tolist()) == set(range(1, 80, 2))
    odd = [row for row in rows if row.number % 2]
    assert found.wrong.tolist() == [not row.right for row in odd]
    assert found.probabilities.tolist() == found.predictor.probabilities([row.features["predictor"] for row in odd]).tolist()
    assert [found.groups.labels["scene"].count(third) for third in "012"] == [65, 65, 70], "thirds of the recordings"
    assert set(found.groups.labels["kind"]) == {""}, "nobody said of which kind the question is"
    assert auc(found.probabilities, ~found.wrong) > 0.8, "what is likely is right, not wrong"
    assert found.evidence > 5
    assert found.of == {"adapter": digest_of(tmp_path)}
    assert 0 < found.threshold(0.1) <= 1
    for few, says in ((rows[:20], "are too few to fit a predictor on: 40 are needed"), ([], "that are kept to calibrate on")):
        why = recipe.save_calibrated(few, tmp_path)
        assert why is not None and says in why
        kept = Calibrated.load(tmp_path / ACCEPTANCE)
        assert kept.few(0.5) == "0 calibration recordings are too few for a risk of 0.5: 1 are needed at least"


def test_rules_that_decide_early_are_calibrated_beside_the_predictor(tmp_path: Path) -> None:
    """Where the mean row tells what will be right, the rule on it learns that; the control, on labels that are shuffled, takes
    nothing."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    for shuffled in (False, True):
        rng, rows = np.random.default_rng(0), list[recipe.JudgedAnswer]()
        for clip in range(120):
            pooled = rng.normal(size=4)
            for question in ("How many?", "Why?"):
                right = bool(rng.random() < 1 / (1 + np.exp(-4 * (rng.normal() if shuffled else pooled[0]))))
                rows.append(recipe.JudgedAnswer(clip, {"events": pooled.tolist()}, right, question, float(pooled[1])))
        assert recipe.save_calibrated(rows, tmp_path, "events", 2, {"How many?": "count"}) is None
        found = Calibrated.load(tmp_path / "acceptance-events.json")
        assert found.predictor.names == ("row 0", "row 1", "word 0", "word 1")
        assert (auc(found.probabilities, ~found.wrong) > 0.85) != shuffled
        assert (found.threshold(0.1) < 1) != shuffled
        assert set(found.groups.labels["kind"]) == {"count", ""}


def test_unknown_kinds_and_phases_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown adapter to rows 'magic': choose from linear"):
        names.check_kinds(["magic"], "rows")
    with pytest.raises(BadInput, match="unknown output 'words': choose from rows, tower, features"):
        names.check_kinds(["linear"], "words")
    assert names.check_kinds(["linear", "linear"], "features") == ["linear"]
    with pytest.raises(BadInput, match="unknown phase 'last': choose from alignment, acceptance, end-to-end"):
        names.check_phases(["last"])
    assert names.check_phases(["end-to-end", "alignment"]) == ("alignment", "end-to-end")
    assert names.check_phases(["calibration"]) == ("calibration",)
    with pytest.raises(BadInput, match="phase calibration leaves adapters as they are: give it alone"):
        names.check_phases(["calibration", "alignment"])
    assert names.check_phases([]) == names.PHASES
    assert names.check_phases([], free_running=True) == ("alignment",)
    with pytest.raises(BadInput, match="have phase alignment only"):
        names.check_phases(["acceptance"], free_running=True)
    assert names.check_phases(["joint", "alignment"]) == ("alignment", "joint")
    assert names.check_adapting(["contrast", "squared"], "last", "rows", names.PHASES) == ("squared", "contrast")
    assert names.check_adapting(["cosine"], "levels", "features", ["alignment"]) == ("cosine",)
    for losses, reads, output, phases, why in (
        (["l3"], "last", "rows", names.PHASES, "unknown loss 'l3': choose from squared, cosine, contrast, information"),
        (["cosine"], "last", "rows", ["acceptance"], "--loss is for phases alignment and joint"),
        ([], "first", "features", names.PHASES, "unknown reads 'first': choose from last, penultimate, levels"),
        ([], "levels", "tower", names.PHASES, "--reads chooses among layers of a language model"),
        (["information"], "last", "rows", names.PHASES, "knows neither sign nor scale"),
        ([], "last", "features", ["joint"], "phase joint judges what stands in a prompt"),
    ):
        with pytest.raises(BadInput, match=why):
            names.check_adapting(losses, reads, output, phases)


@pytest.mark.long
def test_a_small_run_gives_a_pair_with_an_adapter(tmp_path: Path) -> None:
    folder = recipe.train("nano", "smoke", recipe.Wanted(["linear", "attention"]), tmp_path, lambda *words: None)
    assert (folder / "adapters/linear/model.safetensors").stat().st_size < 1_000_000
    assert "aligned" in load_pair(folder, "one", fit=False).methods
