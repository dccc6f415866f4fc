"""What a method's name means: one builder, however the models were loaded, and names that are open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventspec.ask import generate
from eventspec.core import BadCheckpoint, BadInput, Drafter, Proposal, Target
from eventspec.drafters import Mixture
from eventspec.pairs import METHODS, Pair, PairFile, load_folders, load_pair
from eventspec.pairs.names import USUAL_MAPPING, USUAL_TREE, CompressionSpec, HeadSpec, name_and_choice
from eventspec.pairs.pair_file import DATA, folder_of
from eventspec.recordings import Recording

QUESTION = "What is ahead?"


class Mine:
    """Drafts what it is given, and remembers where it was."""

    name, taps, needs_target, concurrent = "mine", (), False, False

    def __init__(self, truth: list[int]) -> None:
        self.truth = truth

    def open(self, *parts: Any) -> Any:
        self.said = 0
        return self

    def propose(self, budget: Any) -> Proposal:
        chain = self.truth[self.said : self.said + min(budget.max_nodes, budget.max_depth)]
        return Proposal.chain(np.array(chain, np.int64), self.name)

    def observe(self, verdict: Any, scores: Any) -> None:
        self.said += len(verdict.tokens)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(DATA / "clips/street_scene")


def test_a_bundled_pair_offers_every_method(pair: Pair) -> None:
    assert set(METHODS) == set(pair.methods)
    lossy = {name for name, method in pair.methods.items() if not method.target.lossless}
    assert lossy == {"compressed-target", "skip-encode"}
    assert pair.method("cross-modal").drafter_needs == "events"
    assert pair.drafter("autoregressive") is None


def test_mixes_share_a_head_and_its_weights(pair: Pair) -> None:
    """One that looks at no visual row, unless another is asked for."""

    def heads(which: Pair) -> list[Drafter]:
        return [one for name in ("hybrid", "hybrid-blind") for one in which.method(name).drafts.after if one.needs_target]

    two, again = heads(pair), heads(pair.with_event_drafter("fine"))
    assert [one.name for one in two] == ["hivis", "hivis"]
    assert two[0] is two[1] is again[0] is again[1], "a prompt is read once for all of them"
    fitted = pair.parts.mixture
    refitted = replace(fitted, weights={("hivis" if name == "specvlm" else name): w for name, w in fitted.weights.items()})
    for mixture in (fitted, refitted):
        other = replace(pair, parts=replace(pair.parts, mixture=mixture)).with_head("eagle3")
        for name in ("hybrid", "hybrid-blind"):
            drafts = other.method(name).drafts
            assert isinstance(drafts.merge, Mixture)
            assert {one.name for one in drafts.of_all} <= drafts.merge.weights.keys(), "known by what is like it"


def test_a_head_may_draft_as_much_however_its_target_was_loaded(pair: Pair) -> None:
    folder = folder_of("nano")
    loaded = load_folders(folder / "target", method="eagle", device_plan="one").with_head(str(folder / "heads/eagle"))
    mine, bundled = loaded.method("eagle").policy, pair.method("eagle").policy
    assert (mine.max_nodes, mine.level_cost, mine.worth) == (bundled.max_nodes, bundled.level_cost, bundled.worth)
    assert mine.max_nodes == 59
    assert loaded.method("autoregressive").policy.max_nodes == pair.method("autoregressive").policy.max_nodes


def test_a_checkpoint_folder_with_a_head_answers_as_the_pair_does(pair: Pair, recording: Recording) -> None:
    """A small model behind the target's vision reads the target's own prompt, whoever made it."""
    folder = folder_of("nano")
    for head in ("eagle3", "massv"):
        loaded = load_folders(folder / "target", method="eagle", device_plan="one").with_head(str(folder / f"heads/{head}"))
        found = generate(loaded, recording, QUESTION, "eagle", max_new_tokens=16)
        assert found.trace.accepted > 0
        assert found.token_ids == generate(loaded, recording, QUESTION, "autoregressive", max_new_tokens=16).token_ids
        loaded.close()


def test_names_are_open(pair: Pair, recording: Recording) -> None:
    truth = generate(pair, recording, QUESTION, "autoregressive")
    mine = pair.with_drafter("mine", Mine(truth.token_ids), head_nodes=4, max_nodes=5)
    found = generate(mine, recording, QUESTION, "mine")
    assert (found.token_ids, found.method) == (truth.token_ids, "mine")
    assert found.trace.accepted > 0
    assert max(r.proposed for r in found.trace.rounds[1:]) <= 5
    with pytest.raises(BadInput, match="unknown method 'mine': choose one of autoregressive, cross-modal"):
        generate(pair, recording, QUESTION, "mine")
    with pytest.raises(BadInput, match="has no drafter for method prior: it offers autoregressive"):
        replace(pair, methods={"autoregressive": pair.method("autoregressive")}).method("prior")


def test_a_target_of_ones_own_answers_in_every_lossless_method(pair: Pair, recording: Recording) -> None:
    inner, encoded = pair.target, list[object]()

    class Watching(Target):
        lossless, limits = True, inner.limits

        def encode(self, media: Any, trace: Any) -> Any:
            encoded.append(media)
            return inner.encode(media, trace)

    watched = pair.with_target(Watching())
    for method in ("autoregressive", "eagle", "prior"):
        truth = generate(pair, recording, QUESTION, method, max_new_tokens=8).token_ids
        assert generate(watched, recording, QUESTION, method, max_new_tokens=8).token_ids == truth
    assert len(encoded) == 3


def test_another_placement_keeps_the_devices() -> None:
    pair = load_pair("nano", "two")
    pair.workers._devices["drafter"] = "cpu:0"
    assert pair.on("one").workers._devices == pair.workers._devices
    assert (pair.workers.placement, pair.on("one").workers.placement) == ("two", "one")


def test_a_pair_file_is_written_as_it_is_read(tmp_path: Path) -> None:
    bundled = PairFile.read(folder_of("nano"))
    replace(bundled, folder=tmp_path).write()
    assert (tmp_path / "pair.toml").read_bytes() == (folder_of("nano") / "pair.toml").read_bytes()
    odd = replace(bundled, folder=tmp_path, files={**bundled.files, "prior": "elsewhere/prior.json"})
    odd.listing("heads", "mine: v2", "heads/mine").write()
    again = PairFile.read(tmp_path)
    assert again.place("prior") == tmp_path / "elsewhere/prior.json"
    assert again.places("heads")["mine: v2"] == tmp_path / "heads/mine"
    assert list(again.tables["heads"]) == [*bundled.tables["heads"], "mine: v2"]


@pytest.mark.parametrize(
    "text", ["[", 'format = "eventspec-pair"\nversion = 2', 'format = "eventspec-pair"\nversion = 1\nheads = 3']
)
def test_a_pair_file_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "pair.toml").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"pair\.toml"):
        PairFile.read(tmp_path)


def test_choices_beside_a_method_are_read_once() -> None:
    assert name_and_choice("eagle:chain", USUAL_TREE) == ("eagle", "chain")
    assert name_and_choice("eagle", USUAL_TREE) == ("eagle", "dynamic")
    assert name_and_choice("fine:intersect", USUAL_MAPPING) == ("fine", "intersect")
    both = HeadSpec("specvlm", "static", "pool")
    assert HeadSpec.parse("specvlm:static:pool") == HeadSpec.parse("specvlm:pool:static") == both
    assert HeadSpec.parse("specvlm:pool") == HeadSpec("specvlm", "dynamic", "pool")
    assert HeadSpec.parse("specvlm:oak:static") == HeadSpec("specvlm:oak", "static"), "what is no branch is a part of the name"
    assert CompressionSpec.parse("pool:3") == CompressionSpec("pool", 3)
    for wrong in ("pool", "pool:", "pool:x", "pool:99999999999999999999"):
        with pytest.raises(BadInput, match="give KIND:SIZE"):
            CompressionSpec.parse(wrong)


@pytest.mark.parametrize("name", ["", " ", 3, None, "auto"])
def test_a_drafter_has_a_name_of_its_own(pair: Pair, name: Any) -> None:
    with pytest.raises(BadInput, match="give it a name of its own"):
        pair.with_drafter(name, Mine([]))


def test_what_is_no_drafter_target_or_setting_is_refused_where_it_is_given(pair: Pair) -> None:
    nothing: Any = object()
    with pytest.raises(BadInput, match="the drafter is a object without name, needs_target, taps, concurrent, open"):
        pair.with_drafter("mine", nothing)
    drafter: Any = Mine([])
    with pytest.raises(BadInput, match="the target is a Mine without lossless, limits, encode, score: inherit from"):
        pair.with_target(drafter)
    with pytest.raises(BadInput, match="unknown policy field 'max_node'"):
        pair.with_drafter("mine", Mine([]), max_node=3)
    with pytest.raises(BadInput, match="unknown policy field"):
        pair.with_policy(nothing=1)
    with pytest.raises(BadInput, match="unknown method 'eagel': did you mean eagle"):
        pair.with_policy(("eagel",), patience=1.0)


def test_a_pair_and_a_target_are_not_both_given(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="both say who answers"):
        load_pair("no-such-pair", target=tmp_path)
