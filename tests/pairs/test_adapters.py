"""Folders of adapters, and method aligned: the target's own answers whatever an adapter makes of events."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eventspec.align.adapters import ROLLED, Adapter, AdapterConfig, Output, Reads, width_to
from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import BadCheckpoint, BadInput, Media, Trace
from eventspec.drafters import LanguageDrafter, RespelledDrafter
from eventspec.models.prompt import EventEncoder, Look
from eventspec.models.session import LanguageContext
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA, PairFile
from eventspec.pairs.trained import Adapters, load_adapter, save_adapter
from eventspec.recordings import Recording
from eventspec.train.models import initialise

NANO = DATA / "pairs/nano"
QUESTIONS = ("How many road users are visible?", "Describe the scene.")


@pytest.fixture(scope="module")
def adapters() -> Adapters:
    found = load_pair("nano", "one", fit=False).parts.adapters
    assert found is not None
    return found


def saved(adapters: Adapters, kind: str, output: Output, place: Path, reads: Reads = "last") -> Path:
    """An adapter of random weights for the bundled pair."""
    torch.manual_seed(3)
    drafter, target = adapters.drafter, adapters.target
    made = Adapter(AdapterConfig.of(kind, drafter.config, width_to(target.config, output), output, reads))
    save_adapter(initialise(made), place, drafter, target)
    return place


@pytest.fixture(scope="module")
def folder(adapters: Adapters, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(adapters, "attention", "rows", tmp_path_factory.mktemp("adapters") / "mine")


@pytest.fixture(scope="module")
def folders(folder: Path, adapters: Adapters, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An adapter for each method."""
    return {
        "aligned": folder,
        "event-eagle": saved(adapters, "fused", "features", tmp_path_factory.mktemp("adapters") / "fusion"),
    }


@pytest.fixture(scope="module")
def pair(folders: dict[str, Path]) -> Pair:
    made = load_pair("nano", "one", fit=False)
    for place in folders.values():
        made = made.with_adapter(str(place))
    return made.with_policy(("aligned", "event-eagle"), node_cost=1e-4)  # or nothing is sure enough to be drafted


SHIPPED = ["attention", "features-linear", "cached", "tower", "autoregressive"]


@pytest.mark.parametrize(("method", "adapter"), [("aligned", "attention"), ("event-eagle", "features-linear")])
def test_the_bundled_adapters_draft_what_the_target_says(method: str, adapter: str) -> None:
    with load_pair("nano", "one", fit=False) as pair:
        assert list(pair.parts.adapters.folders if pair.parts.adapters else ()) == SHIPPED
        recording = Recording.open("example:street")
        plain = generate(pair, recording, QUESTIONS[0], "autoregressive")
        drafted = generate(pair.with_policy((method,), node_cost=1e-4), recording, QUESTIONS[0], method)
        named = generate(pair.with_adapter(adapter).with_policy((method,), node_cost=1e-4), recording, QUESTIONS[0], method)
    assert drafted.token_ids == plain.token_ids == named.token_ids
    accepted = [sum(r.accepted for r in result.trace.rounds) for result in (drafted, named)]
    assert accepted[0] == accepted[1] >= 4, "it learned from this target"


@pytest.mark.parametrize(
    ("method", "adapter", "least"), [("aligned", "cached", 4), ("aligned", "tower", 4), ("event-eagle", "autoregressive", 1)]
)
def test_those_of_the_early_notes_ship_and_draft(method: str, adapter: str, least: int) -> None:
    recording = Recording.open("example:street")
    with load_pair("nano", "one", fit=False) as pair:
        plain = generate(pair, recording, QUESTIONS[0], "autoregressive")
        named = generate(pair.with_adapter(adapter).with_policy((method,), node_cost=1e-4), recording, QUESTIONS[0], method)
    assert named.token_ids == plain.token_ids
    assert sum(r.accepted for r in named.trace.rounds) >= least


def test_a_further_adapter_changes_no_other_method_s_weights(folder: Path, tmp_path: Path) -> None:
    before = PairFile.read(NANO)
    shutil.copytree(NANO, tmp_path / "nano")
    shutil.copytree(folder, tmp_path / "nano/adapters/mine")
    after = before.listing("adapters", "mine", "adapters/mine")
    after = replace(after, folder=tmp_path / "nano")
    after.write()
    assert after.fingerprint(adapters=False) == before.fingerprint(adapters=False)
    assert after.fingerprint(adapters=True) != before.fingerprint(adapters=True)
    (tmp_path / "nano/prior.json").write_text("{}")
    assert after.fingerprint(adapters=False) != before.fingerprint(adapters=False)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open("example:street")


def test_what_was_saved_is_what_is_loaded(folder: Path, adapters: Adapters) -> None:
    adapter = load_adapter(folder, adapters.drafter, adapters.target)
    assert adapter.config.kind == "attention"
    assert not any(parameter.requires_grad for parameter in adapter.parameters())
    assert json.loads((folder / "config.json").read_text())["model_type"] == "adapter"


@pytest.mark.parametrize("method", ["aligned", "event-eagle"])
@pytest.mark.parametrize(
    ("question", "settings"), [(QUESTIONS[0], {}), (QUESTIONS[1], {}), (QUESTIONS[1], {"temperature": 1.0, "seed": 5})]
)
def test_an_adapter_of_noise_changes_no_answer(
    method: str, question: str, settings: dict[str, Any], pair: Pair, recording: Recording
) -> None:
    wanted = generate(pair, recording, question, "autoregressive", max_new_tokens=24, **settings)
    found = generate(pair, recording, question, method, max_new_tokens=24, **settings)
    assert found.token_ids == wanted.token_ids
    assert found.lossless
    assert any(" adapter " in note for note in found.trace.notes)
    assert found.trace.drafted > 0
    assert not found.trace.given_up
    assert {span.stage for span in found.trace.spans if span.lane == "drafter"} >= {"vision", "prefill", "draft"}


@pytest.mark.parametrize("method", ["aligned", "event-eagle"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 6}])
def test_hybrid_with_an_adapter_in_the_event_drafters_place(
    method: str, settings: dict[str, Any], pair: Pair, recording: Recording, folders: dict[str, Path]
) -> None:
    mixed = pair.with_adapter(str(folders[method]), "hybrid")
    names = [drafter.name for drafter in mixed.method("hybrid").drafts.ahead]
    assert method in names
    assert "cross-modal" not in names
    assert method in [drafter.name for drafter in mixed.with_head("specvlm").method("hybrid").drafts.ahead], "it is kept"
    assert "cross-modal" in [drafter.name for drafter in pair.method("hybrid").drafts.ahead], "the others stay as they are"
    wanted = generate(pair, recording, QUESTIONS[1], "autoregressive", max_new_tokens=24, **settings)
    found = generate(mixed, recording, QUESTIONS[1], "hybrid", max_new_tokens=24, **settings)
    assert found.token_ids == wanted.token_ids
    assert found.lossless


OF_THE_NOTES: dict[str, tuple[str, str, Output, Reads]] = {
    "autoregressive": ("event-eagle", "autoregressive", "features", "penultimate"),
    "levels": ("event-eagle", "fused", "features", "levels"),
    "cached features": ("event-eagle", "cached", "features", "last"),
    "cached": ("aligned", "cached", "rows", "last"),
    "tower": ("aligned", "bottleneck", "tower", "last"),
}
"""Method, kind, output and what is read, by name."""


@pytest.mark.parametrize("name", OF_THE_NOTES)
def test_adapters_of_the_early_notes_change_no_answer(
    name: str, adapters: Adapters, recording: Recording, tmp_path: Path
) -> None:
    method, kind, output, reads = OF_THE_NOTES[name]
    place = saved(adapters, kind, output, tmp_path / "mine", reads)
    with load_pair("nano", "one", fit=False) as made:
        made = made.with_adapter(str(place)).with_policy((method,), node_cost=1e-4).drafting("always")
        drafter = made.method(method).drafts.of_all[0]
        assert isinstance(drafter, RespelledDrafter) == (name == "autoregressive")
        asked = made.open(recording)
        for settings in ({}, {"temperature": 1.0, "seed": 5}):
            wanted = generate(made, recording, QUESTIONS[1], "autoregressive", max_new_tokens=24, **settings)
            for _ in range(2):  # the second question finds the target's rows there
                found = asked.ask(QUESTIONS[1], method, max_new_tokens=24, **settings)
                assert found.token_ids == wanted.token_ids and found.lossless and not found.trace.given_up
                assert found.trace.drafted > 0


@torch.inference_mode()
def test_what_the_target_has_seen_is_looked_at_from_the_second_question_on(
    adapters: Adapters, recording: Recording, tmp_path: Path
) -> None:
    place = saved(adapters, "cached", "rows", tmp_path / "mine")
    with load_pair("nano", "one", fit=False) as made:
        made = made.with_adapter(str(place))
        target, drafter = made.parts.language_target, made.method("aligned").drafts.ahead[0]
        assert isinstance(drafter, LanguageDrafter) and isinstance(drafter.encoder, EventEncoder)
        media = media_of(recording)
        before = drafter.encoder.encode(media, Trace(), "drafter")
        assert target.seen(media) is None
        context = target.encode(media, Trace())
        seen, trace = target.seen(media), Trace()
        assert seen is context.visual
        after = drafter.encoder.encode(media, trace, "drafter")
        assert not torch.allclose(before, after) and trace.crossed == [seen.nbytes, after.nbytes]
        assert torch.equal(before, drafter.encoder.encode(media_of(recording), Trace(), "drafter")), "of another recording"
        kept = weakref.ref(seen)
        del context, seen, media, trace, drafter, made
        gc.collect()
        assert len(target._rows) == 0, "with the recording go its rows"
        assert kept() is None


@torch.inference_mode()
def test_in_rounds_after_the_prefill_the_targets_rows_are_there(
    adapters: Adapters, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a first question too; the control is its first draft, which is made before."""
    looks, real = list[bool](), Look.rows

    def rows(look: Look, media: Media, trace: Trace) -> torch.Tensor | None:
        found = real(look, media, trace)
        looks.append(found is not None)
        return found

    monkeypatch.setattr(Look, "rows", rows)
    with load_pair("nano", "one", fit=False) as made:
        made = made.with_adapter(str(saved(adapters, "cached", "features", tmp_path / "mine"))).drafting("always")
        generate(made, recording, QUESTIONS[1], "event-eagle", max_new_tokens=24)
    assert not looks[0] and looks[-1]


@torch.inference_mode()
def test_a_tower_adapter_goes_through_the_targets_own_projector(
    adapters: Adapters, recording: Recording, tmp_path: Path
) -> None:
    adapter = adapters.loaded(str(saved(adapters, "bottleneck", "tower", tmp_path / "mine")), "tower")
    media, target = media_of(recording), adapters.target
    encoder = adapters.writing(adapter)
    rows = encoder.encode(media, Trace(), "drafter")
    other = encoder.encode(media_of(Recording.open("example:davis")), Trace(), "drafter")
    assert rows.shape == (target.config.visual_tokens, target.config.language.hidden_size), "all its rows"
    contexts = (
        LanguageContext(encoder, rows),
        LanguageContext(adapters.frames, adapters.frames.encode(media, Trace(), "target")),
    )
    written, own = adapters.compared(media, *contexts)
    theirs, _ = adapters.compared(media, LanguageContext(encoder, other), contexts[1])
    assert not torch.allclose(written, theirs), "the control: what another clip's events gave"
    assert written.shape == own.shape == (target.config.visual_tokens, target.config.vision.hidden_size)
    assert torch.allclose(target.projector(written), rows, atol=1e-5)
    assert torch.allclose(target.projector(own), contexts[1].visual, atol=1e-4)


@torch.inference_mode()
def test_an_autoregressive_adapter_names_several_tokens_after_one_row(
    adapters: Adapters, recording: Recording, tmp_path: Path
) -> None:
    """By the target's own head, through the fusion; the event model reads no token between."""
    name = str(saved(adapters, "autoregressive", "features", tmp_path / "mine", "penultimate"))
    adapter, scored = adapters.loaded(name, "features"), adapters.scored(name)
    width, language = adapters.drafter.config.language.hidden_size, adapters.drafter.language
    assert scored.taps == (adapters.drafter.config.language.num_hidden_layers - 1,)
    last, before_last, row = (torch.randn(1, width) for _ in range(3))
    found = scored.logits(torch.cat((last, before_last), -1), row, media_of(recording), Trace())
    assert found.shape == (ROLLED, adapters.target.config.language.vocab_size)
    steps = adapter.rolled([before_last], ROLLED)
    assert torch.allclose(found, adapters.target.language.head(torch.cat(steps)), atol=1e-5)
    assert not torch.allclose(steps[0], adapter([language.normed(last)])), "the control: of the last layer they are others"


def test_it_drafts_ahead_only_and_needs_events(pair: Pair, recording: Recording) -> None:
    method = pair.method("aligned")
    assert (len(method.drafts.ahead), len(method.drafts.after)) == (1, 0)
    with pytest.raises(BadInput, match="has no events: method aligned"):
        generate(pair, replace(recording, events=None), QUESTIONS[0], "aligned")


def test_a_pair_lists_its_adapters_and_uses_the_first(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(NANO, tmp_path / "pair")
    for name in ("b", "a"):
        shutil.copytree(folder, tmp_path / f"pair/adapters/{name}")
    PairFile.read(tmp_path / "pair").with_table("adapters", {"b": "adapters/b", "a": "adapters/a"}).write()
    made = load_pair(tmp_path / "pair", "one", fit=False)
    assert made.parts.adapters is not None
    assert made.parts.adapters.usual("rows") == "b"
    assert made.parts.adapters.usual("features") is None
    assert "aligned" in made.methods
    assert made.with_adapter("a").method("aligned").notes[-1] == "drafter: adapter a"
    with pytest.raises(BadInput, match="no adapter 'c': give the folder of an adapter, or one of b, a"):
        made.with_adapter("c")


def broken(folder: Path, out: Path, change: dict[str, Any]) -> Path:
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, **change}))
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "packer"}, "model_type"),
        ({"kind": "linear"}, "are unknown: this is another architecture"),
        ({"width": 64}, "config.json asks for"),
        ({"eventspec": {"target": "0" * 16, "drafter": "0" * 16}}, "was trained for drafter 0000000000000000, this one is"),
        ({"eventspec": 3}, "eventspec"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, folder: Path, adapters: Adapters, tmp_path: Path
) -> None:
    with pytest.raises(BadCheckpoint, match=message) as raised:
        load_adapter(broken(folder, tmp_path / "mine", change), adapters.drafter, adapters.target)
    assert "\n" not in str(raised.value)


def test_nan_and_missing_weights_are_refused(folder: Path, adapters: Adapters, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "mine")
    (tmp_path / "mine/model.safetensors").write_bytes(b"not a file of tensors")
    with pytest.raises(BadCheckpoint):
        load_adapter(tmp_path / "mine", adapters.drafter, adapters.target)
    with pytest.raises(BadInput, match="no adapter ''"):
        adapters.encoder("")
    with pytest.raises(BadInput, match="this adapter writes rows, and the method reads features: name another one"):
        adapters.scored(str(folder))
