"""`--learn`: heads of a pair that learn while they answer. The answers stay the target's; what was learned can be kept."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eventspec.ask import generate
from eventspec.cli import run
from eventspec.cli.options import Chosen
from eventspec.core import BadInput
from eventspec.drafters.heads.learning import LearningDraft, LearningDrafter
from eventspec.experiments.measures.setup import scene
from eventspec.nn import KVCache
from eventspec.nn.cpu.native import NativeHead
from eventspec.nn.weights import TreeGrowth
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.learning import learning, learning_heads
from eventspec.pairs.pair_file import DATA

QUESTIONS = ("Describe the scene.", "What is ahead?", "Explain what you see.")
CLIP = str(DATA / "clips/street_scene")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one", fit=False)


class Kept(LearningDrafter):
    """Keeps the session that it learned from last."""

    def learn(self, session: LearningDraft) -> None:
        self.latest = session
        super().learn(session)


def learner(pair: Pair, method: str) -> LearningDrafter:
    return learning_heads([pair.method(method)])[0]


@pytest.fixture(scope="module")
def taught(pair: Pair) -> Pair:
    """Head eagle1, which was trained one step ahead, after some answers; each was the target's own."""
    recording, made = scene(978, 0)[0], pair.with_head("eagle1")
    made = replace(made, methods=learning(made.methods, ["eagle"], Kept))
    for number, question in enumerate(QUESTIONS):
        drawn = {"temperature": float(number % 2), "seed": 3, "max_new_tokens": 64}
        plain = generate(pair, recording, question, "autoregressive", None, None, **drawn)
        found = generate(made, recording, question, "eagle", None, None, **drawn)
        made.workers.drain()
        assert found.token_ids == plain.token_ids
        assert found.as_json()["learned"] == number and plain.as_json()["learned"] is None
        assert sum("head eagle1 learns from verdicts" in note for note in found.trace.notes) == 1
        assert any(f"had learned from {number} answer" in note for note in found.trace.notes)
    assert learner(made, "eagle").updates == len(QUESTIONS)
    return made


def test_it_is_less_surprised_at_what_it_saw_and_wrong_verdicts_do_not_do_that(taught: Pair) -> None:
    by = learner(taught, "eagle")
    assert isinstance(by, Kept)
    right, wrong = LearningDrafter(by), LearningDrafter(by)
    with torch.no_grad():
        told = by.rows_of(by.latest)
    wrong.rows_of = lambda session: (*told[:2], *(part.flip(0) for part in told[2:]))  # type: ignore[method-assign]
    before = float(by.loss(told, *right.state[:2]))
    for _ in range(20):
        right.learn(by.latest)
        wrong.learn(by.latest)
    behind = [float(by.loss(told, *one.state[:2])) for one in (right, wrong)]
    assert behind[0] < 0.97 * before < 0.98 * behind[1]
    assert right.gain > 0 and right.kernel is not right.first


def test_what_was_learned_is_kept_as_a_head_that_drafts_the_same(pair: Pair, taught: Pair, tmp_path: Path) -> None:
    by = learner(taught, "eagle")
    by.kernel = by.first.with_down(by.matrix + by.state[0] @ by.state[1])  # whether or not it was better so far
    taught.save_learned(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
    again, recording = pair.with_head(str(tmp_path / "new")), scene(978, 0)[0]
    kept = learner(again.with_learning(), "eagle").matrix
    assert torch.equal(kept, by.kernel.weights.layers[0].down) and not torch.equal(kept, by.matrix)
    assert learner(again.with_learning(), "eagle").rates == by.rates != ()
    for question in QUESTIONS:
        rounds = [
            [made.tokens for made in generate(one, recording, question, "eagle").trace.rounds]
            for one in (again, pair.with_method("eagle", taught.method("eagle")))
        ]
        assert rounds[0] == rounds[1]
        by.kernel = by.first.with_down(kept)  # it learned meanwhile
    with pytest.raises(BadInput, match="is not an empty folder"):
        taught.save_learned(tmp_path / "new")
    assert "was not written: no answer has taught a head anything" in again.with_learning().save_learned(tmp_path / "other")
    with pytest.raises(BadInput, match="no head of this pair learns"):
        pair.save_learned(tmp_path / "other")


def test_a_matrix_that_is_replaced_in_machine_code_drafts_as_one_that_was_there_from_the_start(taught: Pair) -> None:
    by = learner(taught, "eagle")
    down = by.matrix + 0.05
    replaced, made = by.first.with_down(down), by.first.with_down(down)
    if by.first.native is None:
        pytest.skip("no machine code here")
    made.native = NativeHead.of(made.weights)
    hidden, cache = torch.randn(1, len(down), generator=torch.Generator().manual_seed(0)), KVCache(1, 4, 48, 99, torch.float32)
    growth = TreeGrowth(4, 5, 0.0, 0.0, -1, 0, [])
    grown = [one.grow(hidden, growth, [by.embed.weight, *by.tables], cache) for one in (replaced, made, by.first)]
    assert all(torch.equal(one, two) for one, two in zip(grown[0], grown[1], strict=True))
    assert not torch.equal(grown[0][2], grown[2][2])


def test_an_answer_is_there_whatever_fails_in_learning_from_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(session: LearningDraft) -> None:
        raise MemoryError("none left for a copy")

    made, recording = pair.with_learning(["eagle"]), scene(978, 0)[0]
    wanted = generate(pair, recording, QUESTIONS[0], "autoregressive", max_new_tokens=24).token_ids
    monkeypatch.setattr(LearningDraft, "leave_cache", full)
    assert generate(made, recording, QUESTIONS[0], "eagle", max_new_tokens=24).token_ids == wanted
    monkeypatch.undo()
    found = generate(made, recording, QUESTIONS[0], "eagle", max_new_tokens=24)
    made.workers.drain()
    assert found.token_ids == wanted and any("MemoryError: none left for a copy" in note for note in found.trace.notes)
    assert (learner(made, "eagle").refused, learner(made, "eagle").updates) == (1, 1)


def test_methods_that_share_a_head_learn_once_and_copies_begin_anew(pair: Pair) -> None:
    made = pair.with_learning(["eagle", "specvlm", "hybrid", "auto"])
    heads = {name: learner(made, name) for name in ("eagle", "specvlm", "hybrid", "hybrid-blind")}
    assert heads["hybrid"] is heads["hybrid-blind"]
    assert len(set(map(id, heads.values()))) == 3
    assert not learning_heads(pair.methods.values())  # the pair that it was made of learns nothing
    heads["eagle"].kernel = heads["eagle"].first.with_down(heads["eagle"].matrix * 2)
    anew = learner(made.forgetful(), "eagle")
    assert anew is not heads["eagle"] and anew.kernel is anew.first is heads["eagle"].first
    recording = scene(978, 0)[0]
    plain = generate(pair, recording, QUESTIONS[0], "autoregressive").token_ids
    for method in ("hybrid", "auto"):
        assert generate(made, recording, QUESTIONS[0], method).token_ids == plain
    made.workers.drain()
    assert heads["hybrid"].updates >= 1
    for head in ("dream", "massv"):
        with pytest.raises(BadInput, match="method eagle has no head that learns"):
            pair.with_head(head).with_learning(["eagle"])


def test_compare_says_that_a_head_learned_and_generate_keeps_it(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eventspec.pairs.load_pair", lambda *given, **how: pair)  # loaded once
    monkeypatch.setattr("eventspec.pairs.warm_up", lambda pair, only=(): pair)
    monkeypatch.setattr("eventspec.experiments.compare.warm_up", lambda pair, only=(): pair)
    asked = [json.dumps({"recording": CLIP, "question": question, "answer": "?"}) for question in QUESTIONS[:2]]
    (tmp_path / "qa.jsonl").write_text("\n".join(asked))
    words = ["--method", "autoregressive", "--method", "eagle", "--head", "eagle1", "--max-new-tokens", "20"]
    words += ["--questions", str(tmp_path / "qa.jsonl"), "--out", str(tmp_path / "rows.jsonl"), "--device-plan", "one"]
    assert run(["bench", "compare", *words, "--learn", "--json"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    table = {name: [row for row in rows if row["method"] == name] for name in ("autoregressive", "eagle", "eagle, eagle1")}
    assert json.loads(capsys.readouterr().out)["environment"]["learn"] is True
    assert [row["learned"] for row in table["autoregressive"]] == [None] * 2
    for name in ("eagle", "eagle, eagle1"):  # each begins anew, and has learned nothing from the question that warms it up
        assert [row["learned"] for row in table[name]] == [0, 1]
        assert [row["token_ids"] for row in table[name]] == [row["token_ids"] for row in table["autoregressive"]]
    assert run(["bench", "compare", *words, "--learn", "--resume"]) == 2
    line = ["generate", "--recording", CLIP, "--prompt", QUESTIONS[0], "--method", "eagle", "--max-new-tokens", "20"]
    assert run([*line, "--learn", "--learned", str(tmp_path / "kept"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["learned"] == 0 and found["token_ids"] == table["eagle"][0]["token_ids"]
    assert run([*line, "--head", str(tmp_path / "kept"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == found["token_ids"]


def test_what_a_mix_learned_is_waited_for_and_kept(pair: Pair, tmp_path: Path) -> None:
    """Heads of several methods learn; the mix drafts with one of them, whose job runs when the answer is there."""
    made, recording = pair.with_learning(["hybrid"]), scene(978, 0)[0]
    for question in QUESTIONS:
        if generate(made, recording, question, "hybrid").as_json()["learned"]:
            break
        made.workers.drain()
    updates = [head.updates for head in learning_heads(made.methods.values())]
    assert len(updates) > 1 and sorted(updates)[-2] == 0, "one of several learned"
    own = learner(made, "hybrid")
    said = made.save_learned(tmp_path / "kept")
    assert said.startswith(f"{tmp_path / 'kept'} holds head {own.called}, which learned from {own.updates} answer")
    assert own.job is None or own.job.done()


def test_a_save_that_fails_leaves_nothing(taught: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(made: object, folder: Path, *more: object) -> None:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise BadInput(f"{folder}/model.safetensors cannot be written: the disk is full")

    monkeypatch.setattr("eventspec.drafters.heads.learning.save_head", fails)
    with pytest.raises(BadInput, match=f"^{tmp_path}/new/model.safetensors cannot be written"):
        taught.save_learned(tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_what_was_learned_is_kept_where_a_chat_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(interactive: bool) -> Iterator[str]:
        yield "Describe the scene."
        raise KeyboardInterrupt

    monkeypatch.setattr("eventspec.cli.generate._questions", asked)
    monkeypatch.setattr("sys.stdin", io.StringIO("Describe the scene.\n"))
    kept = tmp_path / "kept"
    words = ["--method", "eagle", "--head", "eagle1", "--learn", "--learned", str(kept)]
    assert run(["chat", "example:street", *words]) == 130
    said = capsys.readouterr().err
    assert f"note: {kept} holds head eagle1, which learned from 1 answer, and drafts as it did at first" in said
    assert (kept / "model.safetensors").is_file() and [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_cannot_be_kept_is_said_beside_what_went_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full:
        def save_learned(self, folder: Path) -> str:
            raise BadInput("the disk is full")

    chosen = Chosen(learn=True, learned=tmp_path / "kept")
    full: Any = Full()  # of a pair, this is all that it asks for
    with pytest.raises(BrokenPipeError), chosen.keeping(full):
        raise BrokenPipeError
    assert capsys.readouterr().err == "note: what was learned is not kept: the disk is full\n"
