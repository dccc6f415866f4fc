"""Method skip-encode by every rule: what stands and what does not, what it cost, and that it is always said to be lossy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eventspec.align.acceptance import Calibrated, Groups, Predictor
from eventspec.align.adapters import Adapter, AdapterConfig
from eventspec.align.deciding import FITTED, Decision
from eventspec.align.substitute import Known, Substitute, SubstitutedTarget
from eventspec.ask import generate
from eventspec.core import BadInput
from eventspec.experiments.compare import others_of
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.trained import digest_of, save_adapter
from eventspec.recordings import Recording

QUESTION = "Describe the scene."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of random weights for the bundled pair, which nobody calibrated."""
    adapters = load_pair("nano", "one", fit=False).parts.adapters
    assert adapters is not None
    torch.manual_seed(3)
    made = Adapter(AdapterConfig.of("linear", adapters.drafter.config, adapters.target.config.language.hidden_size))
    place = tmp_path_factory.mktemp("deciding") / "mine"
    save_adapter(made, place, adapters.drafter, adapters.target)
    return place


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open("example:street")


@pytest.fixture(scope="module")
def bare(folder: Path) -> Pair:
    return load_pair("nano", "one", fit=False).with_adapter(str(folder))


def calibrate(folder: Path, rule: str, bias: float) -> None:
    """A predictor that says the same of every answer."""
    names, said = FITTED[rule].names(192), np.linspace(0.001, 0.999, 400)
    none = (0.0,) * len(names)
    predictor = Predictor(names, none, (1.0,) * len(names), none, bias)
    groups = Groups.of({QUESTION: "caption"}, [QUESTION] * 400, [1.0] * 400)
    found = Calibrated(predictor, said, said < 0.5, np.arange(400), 9.0, {"adapter": digest_of(folder)}, groups)
    found.save(folder / FITTED[rule].file)


@pytest.mark.parametrize(
    ("rule", "stands"),
    [("cosine:-1", True), ("cosine:1", False), ("kl:1e9", True), ("kl:1e-9", False)],
)
def test_an_oracle_encodes_the_frames_and_needs_no_calibration(
    rule: str, stands: bool, bare: Pair, folder: Path, recording: Recording
) -> None:
    pair = bare.with_decision(rule, str(folder))
    found = generate(pair, recording, QUESTION, "skip-encode", max_new_tokens=12)
    told = found.as_json()
    assert (told["lossless"], told["skipped"], told["decide"]) == (False, stands, str(Decision.parse(rule)))
    assert [span.stage for span in found.trace.spans if span.lane == "target"].count("vision") == 1, "once, whoever needs it"
    wanted = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=12)
    assert (found.token_ids == wanted.token_ids) != stands, "an adapter of random weights says something else"
    assert wanted.as_json()["decide"] is None
    assert any("its frames are encoded, and no time is saved" in note for note in found.trace.notes)
    assert any("encoded to decide" in note for note in found.trace.notes) == stands


def test_the_rows_that_are_compared_are_those_that_training_compares(recording: Recording) -> None:
    """The bundled adapter learned to be near them; those of places in another order are farther away."""
    pair = load_pair("nano", "one", fit=False).with_decision("cosine:0")
    target = pair.method("skip-encode").target
    assert isinstance(target, SubstitutedTarget)
    context = pair.open(recording)
    found = context.ask(QUESTION, "skip-encode", max_new_tokens=2)
    assert found.as_json()["skipped"]
    said = next(note for note in found.trace.notes if "cosine 0." in note)
    assert 0.4 < float(said.rpartition("cosine ")[2].split()[0]) < 1


@pytest.mark.parametrize("rule", ["entropy", "events"])
def test_a_rule_that_says_no_before_saves_the_draft(
    rule: str, bare: Pair, folder: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = Substitute.answer, list[str]()

    def counted(self: Substitute, *given: object) -> object:
        asked.append(rule)
        return answer(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Substitute, "answer", counted)
    for bias, stands in ((-20.0, False), (20.0, True)):
        calibrate(folder, rule, bias)
        pair = bare.with_decision(rule, str(folder))
        found = generate(pair, recording, QUESTION, "skip-encode", max_new_tokens=12)
        assert found.as_json()["skipped"] == stands
        assert len(asked) == stands
        assert [span.stage for span in found.trace.spans if span.lane == "target"].count("vision") == (not stands)
        if not stands:
            wanted = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=12)
            assert found.token_ids == wanted.token_ids
    (folder / FITTED[rule].file).unlink()


def test_what_was_not_calibrated_for_a_rule_names_the_command(bare: Pair, folder: Path) -> None:
    for rule in ("predictor", "entropy", "events", "score:predictor"):
        with pytest.raises(BadInput, match=r"was not calibrated.*`eventspec train adapter --kind KIND --phase calibration`"):
            bare.with_decision(rule, str(folder))
    calibrate(folder, "entropy", 0.0)
    assert bare.with_decision("entropy:kind", str(folder)).with_risk(0.2).method("skip-encode").notes[0].count("0.2 at most")
    known = Calibrated.load(folder / FITTED["entropy"].file)
    replace(known, groups=Groups()).save(folder / FITTED["entropy"].file)
    assert "skip-encode" in bare.with_decision("entropy", str(folder)).methods
    with pytest.raises(BadInput, match="by rule entropy:kind"):
        bare.with_decision("entropy:kind", str(folder))
    (folder / FITTED["entropy"].file).unlink()


def test_a_rule_and_a_risk_do_not_forget_each_other(folder: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    for rule in FITTED:
        calibrate(own, rule, 0.0)
    pair = load_pair("nano", "one", fit=False).with_adapter(str(own)).with_risk(0.2)
    for changed in (pair.with_decision("events"), pair.with_decision("events").with_risk(0.2)):
        target = changed.method("skip-encode").target
        assert isinstance(target, SubstitutedTarget)
        assert (str(target.decision), target.risk, target.adapter) == ("events", 0.2, str(own))
    same = pair.with_decision("events").with_adapter(str(own)).method("skip-encode").target
    assert isinstance(same, SubstitutedTarget)
    assert str(same.decision) == "events", "an adapter that is named again does not change the rule"
    kept = pair.with_decision("cosine:0.5").with_risk(0.1).method("skip-encode").target
    assert isinstance(kept, SubstitutedTarget)
    assert str(kept.decision) == "predictor", "a cosine keeps no risk"


def test_auto_takes_none_and_a_comparison_has_a_row_for_each(bare: Pair, folder: Path) -> None:
    choice = bare.with_decision("cosine:-1", str(folder)).method("auto").choice
    assert choice is not None
    assert "skip-encode" not in choice.methods
    arms = others_of(load_pair("nano", "one", fit=False), {"decide": ["cosine:0.8", "score:predictor"]}, fit=False)
    assert [arm.name for arm in arms] == ["skip-encode, cosine:0.8", "skip-encode, score:predictor"]
    assert {arm.method for arm in arms} == {"skip-encode"}


def test_a_drawn_decision_is_the_seeds(recording: Recording) -> None:
    pair = load_pair("nano", "one", fit=False).with_decision("score")
    taken = [
        generate(pair, recording, QUESTION, "skip-encode", max_new_tokens=2, seed=seed).as_json()["skipped"]
        for seed in range(5)
    ]
    again = pair.open(recording)
    assert taken == [again.ask(QUESTION, "skip-encode", max_new_tokens=2, seed=s).as_json()["skipped"] for s in range(5)]
    assert len(set(taken)) == 2, "by some seeds it stands, by others it does not"


def test_nothing_is_known_of_a_recording_without_events(bare: Pair, folder: Path, recording: Recording) -> None:
    pair = bare.with_decision("cosine:0", str(folder))
    target = pair.method("skip-encode").target
    assert isinstance(target, SubstitutedTarget)
    from eventspec.ask.generation import media_of
    from eventspec.events.stream import EventStream

    media = media_of(replace(recording, events=EventStream.empty(112, 112)))
    known = Known(target.substitute, media, QUESTION, lambda: None, lambda: pytest.fail("nothing is encoded"))
    assert (known.rate, known.entropy, known.pooled, known.features) == (0.0, None, None, None)
