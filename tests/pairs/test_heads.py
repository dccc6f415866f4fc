"""The bundled heads: lossless on held-out scenes in every tree, much is accepted, and what does not fit is refused."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventspec.ask import generate
from eventspec.core import BadCheckpoint, BadInput
from eventspec.drafters import FeatureDrafter
from eventspec.pairs import Pair, load_pair, warm_up
from eventspec.pairs.names import name_and_choice
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording

QUESTION = "Describe the scene."


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@functools.cache
def scene(seed: int, index: int) -> tuple[Recording, list[str]]:
    """A held-out scene and questions about it."""
    clip = make_clip(split_seed("test", seed, index))
    return as_recording(clip, f"scene {index}"), [QUESTION, *(qa.question for qa in questions(clip.facts, index))]


PLAIN: dict[tuple[Any, ...], list[int]] = {}


def plain(pair: Pair, *asked: Any, temperature: float = 0.0) -> list[int]:
    """The target's own answer to (seed, index, question), asked for once."""
    seed, index, question = asked
    if (*asked, temperature) not in PLAIN:
        sampled = {"max_new_tokens": 48, "temperature": temperature, "seed": 1}
        found = generate(pair, scene(seed, index)[0], question, "autoregressive", **sampled)  # type: ignore[arg-type]
        PLAIN[*asked, temperature] = found.token_ids
    return PLAIN[*asked, temperature]


@pytest.mark.parametrize("head", ["eagle", "eagle1", "eagle3", "specvlm"])
@pytest.mark.parametrize("tree", ["dynamic", "static", "published", "chain", "eagle2"])
@pytest.mark.parametrize(("scenes", "most"), [(1, 2), pytest.param(2, 5, marks=pytest.mark.long)])
def test_every_head_in_every_tree_gives_the_targets_answer(pair: Pair, head: str, tree: str, scenes: int, most: int) -> None:
    with_it, rounds, said = pair.with_head(f"{head}:{tree}"), 0, 0
    for index in range(scenes):
        recording, asked = scene(977, index)
        for question in asked[:most]:
            for temperature in (0.0, 1.0):
                sampled = {"max_new_tokens": 48, "temperature": temperature, "seed": 1}
                found = generate(with_it, recording, question, "eagle", **sampled)  # type: ignore[arg-type]
                assert found.token_ids == plain(pair, 977, index, question, temperature=temperature), (question, temperature)
                assert found.trace.notes == [f"drafter: head {head}, {tree}"]
                if not temperature:
                    rounds, said = rounds + len(found.trace.rounds), said + len(found.token_ids)
    assert said / rounds > 2.5, "a trained head is accepted most of the time"


@pytest.mark.parametrize("spec", ["weighted", "concat", "hivis", "msd", "vispec", "dream", "massv", "massv:pruned"])
def test_the_neighbours_give_the_targets_answer_too(pair: Pair, spec: str) -> None:
    with_it, (recording, asked), drafted = pair.with_head(spec), scene(978, 0), 0
    for question in asked[:3]:
        found = generate(with_it, recording, question, "eagle", max_new_tokens=48)
        assert found.token_ids == plain(pair, 978, 0, question), question
        assert not any("failed" in note for note in found.trace.notes)
        drafted += found.trace.drafted
    assert drafted > 0


def test_what_is_no_head_is_refused(pair: Pair) -> None:
    with pytest.raises(BadInput, match="no head 'eagle4'"):
        pair.with_head("eagle4")
    with pytest.raises(BadInput, match="tree policy 'oak' is unknown"):
        pair.with_head("eagle:oak")
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        pair.with_head(str(DATA))
    with pytest.raises(BadCheckpoint, match="num_hidden_layers is 3, wanted 1"):
        pair.with_head(str(DATA / "pairs/nano/drafter"))


def test_a_folder_may_have_a_colon_in_its_name(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DATA / "pairs/nano/heads/eagle", tmp_path / "a:chain")
    monkeypatch.chdir(tmp_path)
    for spec, which, way in (("a:chain", "a:chain", "dynamic"), ("a:chain:static", "a:chain", "static")):
        assert pair.with_head(spec).method("eagle").notes[-1] == f"drafter: head {which}, {way}"
    assert name_and_choice("a:b:chain", "dynamic", {"a:b": 1}) == ("a:b", "chain")
    assert name_and_choice("a:b", "dynamic", {"a:b": 1}) == ("a:b", "dynamic")
    assert name_and_choice("/x:y/z", "dynamic") == ("/x:y/z", "dynamic")


def test_heads_of_one_shape_get_the_same_plan(pair: Pair) -> None:
    warm = warm_up(pair, ("eagle", "specvlm"))
    assert warm.method("eagle").policy == warm.method("specvlm").policy
    drafters = [pair.with_head(name).drafter("eagle") for name in ("eagle", "hivis", "eagle1", "eagle3", "dream")]
    shapes = [drafter.kernel.shape for drafter in drafters if isinstance(drafter, FeatureDrafter)]
    assert shapes[0] == shapes[1]
    assert len(set(shapes)) == 4


LOADS = """
import sys
from eventspec.pairs import load_pair
pair = load_pair("nano", "one", fit=False)
for head in pair.parts.heads:
    pair.with_head(head)
pair.with_compression("packer:2")
assert "torch" in sys.modules
assert "torch._dynamo" not in sys.modules, "something was computed on the meta device"
"""


def test_loading_imports_no_compiler() -> None:
    """It takes as long as everything else that is loaded."""
    done = subprocess.run([sys.executable, "-c", LOADS], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]
