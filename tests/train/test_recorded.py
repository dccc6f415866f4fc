"""Heads learn the same from any target's session as from the packed pass over the street."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Trace
from eventspec.drafters.heads import RECIPES, TargetSizes, family_of
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings.qa import Ends, Question, held_out
from eventspec.recordings.recording import files_of
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording
from eventspec.train.data import Branch, Clips, Questions, shuffled
from eventspec.train.distillation import head_losses, layers_read
from eventspec.train.frozen import FrozenTarget, StreetBatches
from eventspec.train.heads import new_heads
from eventspec.train.own import RecordedBatches
from eventspec.train.recorded import Recorded
from eventspec.train.workspace import Answers, Example, apart, target_answers

QUESTION, ANSWER = "What is ahead?", (40, 50, 60, 70, 2)
LAYERS = (2, 4)


def about(recording: Path, question: str) -> Question:
    return Question("1", recording, question, "-")


class OneClip(Clips):
    """The frames of one clip."""

    def __init__(self, frames: np.ndarray) -> None:  # type: ignore[type-arg]
        self.all = frames

    def column(self, name: str, index: object) -> torch.Tensor:
        return torch.from_numpy(self.all)[None]


@torch.no_grad()
def test_a_session_gives_what_the_packed_pass_gives() -> None:
    clip = make_clip(split_seed("test", 3, 0))
    recording, pair = as_recording(clip, "clip"), load_pair("nano", "one")
    target = pair.parts.language_target
    asked = about(Path("clip"), QUESTION)
    recorded = RecordedBatches(target, target.language, [Example(asked, ANSWER)], pair.parts.text_ids)
    recorded._context = asked.seen, target.encode(media_of(recording), Trace())
    model = load_video_llava(DATA / "pairs/nano/target")
    questions = Questions(Tokenizer.from_file(str(DATA / "pairs/nano/tokenizer.json")))
    answers = {0: [Branch(questions.question(QUESTION), list(ANSWER))]}
    street = StreetBatches(FrozenTarget(model, questions.prefix()), OneClip(clip.frames), answers, packed=1)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    (one,), (other,) = (list(source.batches(np.array([0]), LAYERS, rng)) for source in (recorded, street))
    assert (one.visual, one.prefix) == (other.visual, other.prefix)
    for name in ("ids", "positions", "mask", "offsets", "labels", "loss_mask"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for name in ("rows", "following"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-3)
    for tap in (*LAYERS, -1):
        torch.testing.assert_close(one.taps[tap], other.taps[tap], rtol=2e-3, atol=2e-3)
    known = one.labels[0] >= 0
    assert int(known.sum()) == len(ANSWER)
    torch.testing.assert_close(one.logits[0][known], other.logits[0][known], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_examples_side_by_side_are_each_alone(name: str) -> None:
    """Answers and questions of different lengths in one batch: what is predicted on the rows that are learned from, and the
    losses, are those of the examples one by one."""
    pair, path = load_pair("nano", "one"), DATA / "clips/street_scene"
    target = pair.parts.language_target
    rng = np.random.default_rng(3)
    lengths = {"What is ahead?": 5, "Is anybody crossing the road at the moment?": 9, "Why?": 17}
    examples = [Example(about(path, text), tuple(rng.integers(6, 200, length).tolist())) for text, length in lengths.items()]
    source = RecordedBatches(target, target.language, examples, pair.parts.text_ids)
    used = tuple(sorted({token for example in examples for token in example.answer}))
    head = new_heads([name], TargetSizes(target.language.config, used, 65))[name].eval()
    recipe, layers = RECIPES[name], layers_read([head], target.language.config.num_hidden_layers)
    rollout = partial(family_of(head).rollout, head)
    (together,) = source.batches(np.arange(3), layers, rng)
    alone = [next(source.batches(np.array([number]), layers, rng)) for number in range(3)]
    assert len(together.rows) == 3
    assert int(together.loss_mask.sum()) == sum(int(batch.loss_mask.sum()) for batch in alone)
    outs = list(rollout(target.language, together, 3).outs)
    for number, batch in enumerate(alone):
        own = rollout(target.language, batch, 3)
        for many, one in zip(outs, own.outs, strict=True):
            learned = own.loss_mask[0]
            assert learned.any()
            torch.testing.assert_close(many[number, : one.shape[1]][learned], one[0][learned], rtol=1e-3, atol=1e-3)
    shares = torch.tensor([float(batch.loss_mask.sum()) for batch in alone])
    losses = [head_losses(head, replace(recipe, extra={}), target.language, batch)["words"] for batch in alone]
    joined = head_losses(head, replace(recipe, extra={}, unroll=1), target.language, together)["words"]
    apart = [head_losses(head, replace(recipe, extra={}, unroll=1), target.language, batch)["words"] for batch in alone]
    assert all(torch.isfinite(loss) for loss in losses)
    if head.vocab_ids is None:  # else rows that it cannot name are left out
        torch.testing.assert_close(joined, (torch.stack(apart) * shares).sum() / shares.sum(), rtol=1e-3, atol=1e-3)


def test_what_is_measured_on_was_not_learned_from() -> None:
    examples = [Example(about(Path(f"{number % 5}"), "?"), (1, 2, 3)) for number in range(20)]
    learned, judged = apart(examples, [example.question for example in examples])
    assert learned
    assert judged
    assert not {example.question.recording for example in learned} & {example.question.recording for example in judged}
    same = [Example(about(Path("one"), "?"), (1, 2, 3))] * 3
    assert apart(same, [example.question for example in same]) == (same, same)


@pytest.mark.parametrize("limit", [3, 8, 20, 40])
def test_what_is_kept_back_does_not_depend_on_how_many_are_asked_nor_on_what_is_too_short(limit: int) -> None:
    asked = [about(Path(f"{number}/../{number}"), "?") for number in range(40)]
    kept = held_out(asked)
    assert len(kept) == 5
    assert held_out(asked[:limit]) == kept & {question.recording.resolve() for question in asked[:limit]}
    usable = [Example(question, (1, 2, 3)) for question in asked[1:limit]]  # the first one's answer is too short
    learned, judged = apart(usable, asked[:limit])
    assert not kept & {example.question.recording.resolve() for example in learned} or judged == learned


def test_answers_are_about_windows(tmp_path: Path) -> None:
    """Each window is answered about by itself, once, and another run finds what was answered."""
    pair, path, reports = load_pair("nano", "one", fit=False), DATA / "clips/street_scene", list[str]()
    windows: list[Ends | None] = [(0, 300_000), (600_000, None), None, (0, 300_000)]
    asked = [replace(about(path, "Describe the scene."), window=window) for window in windows]
    for run in range(2):
        known = Answers(tmp_path, "nano", 12)
        found = target_answers(pair, tmp_path / "qa.jsonl", asked, known, lambda stage, share, row: reports.append(stage))
        assert [example.question for example in found] == asked
        assert len(known.known) == 3
        assert len(reports) == 4 and run in (0, 1)
    assert len({example.answer for example in found}) > 1, "another part of the recording is another scene"
    alone = pair.open(asked[1].open()).ask("Describe the scene.", "autoregressive", max_new_tokens=12)
    assert list(found[1].answer) == alone.token_ids
    with pytest.raises(BadInput, match=r"qa\.jsonl, line 7: .*outside the recording"):
        far = replace(asked[0], window=(10**9, None), line=7)
        target_answers(pair, tmp_path / "qa.jsonl", [far], known, lambda stage, share, row: None)


def test_a_recordings_files_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows of one recording, read twice each, from the disk the second time."""
    encoder, looked = load_pair("nano", "one", fit=False).parts.frame_encoder, list[Path]()

    def watched(place: Path) -> list[tuple[str, int, int]]:
        looked.append(place)
        return files_of(place)

    monkeypatch.setattr("eventspec.train.recorded.files_of", watched)
    path, windows = DATA / "clips/street_scene", ((0, 300_000), (600_000, None))
    asked = [replace(about(path, "?"), window=window) for window in windows]
    source = Recorded(tmp_path, asked, encoder, None)
    first, again = (source.frames(np.array([0, 1])) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(*first.chunk(2))
    assert looked == [path.resolve()]
    assert len(list(tmp_path.iterdir())) == 2


def test_every_example_comes_once_before_one_comes_again() -> None:
    batches = shuffled(range(7), 3, 400)
    first = np.concatenate([next(batches), next(batches)])
    assert len(set(first.tolist())) == 6
