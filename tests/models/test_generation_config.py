"""A checkpoint's generation_config.json counts where a question says nothing else, as in transformers' own `generate`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eventspec.ask import generate
from eventspec.cli import run
from eventspec.core import BadCheckpoint, Sampling
from eventspec.models.folder import load_folder
from eventspec.models.generation_config import with_settings
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, load_folders
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.video.clip import uniform_indices

QUESTION, MOST = "What is ahead?", 14
CLIP = DATA / "clips/davis346_traffic_1s"


@pytest.fixture(scope="module")
def pair(checkpoint: Callable[[str], Path]) -> Pair:
    torch.set_num_threads(1)
    return load_folders(checkpoint("qwen"), method="ngram", how=LoadOptions(frames=2))


@pytest.fixture(scope="module")
def theirs(pair: Pair) -> Callable[..., list[int]]:
    """transformers' own answer over the frames that the target sees."""
    frames = Recording.open(CLIP).video.frames  # type: ignore[union-attr]
    target: Any = pair.target
    inputs = target.prompts.inputs(QUESTION, frames[uniform_indices(len(frames), 2)])

    def told(**settings: Any) -> list[int]:
        found = target.language.model.generate(**inputs, max_new_tokens=MOST, do_sample=False, **settings)
        answer: list[int] = found[0, inputs["input_ids"].shape[1] :].tolist()
        return answer

    return told


def answered(pair: Pair, asked: dict[str, Any], **settings: Any) -> list[int]:
    tokens, _ = with_settings(pair.tokens, asked, Path("folder"))
    own = replace(pair, parts=replace(pair.parts, tokens=tokens))
    return generate(own, CLIP, QUESTION, "ngram", **{"max_new_tokens": MOST, **settings}).token_ids


def test_what_the_file_asks_for_is_what_transformers_answers(pair: Pair, theirs: Callable[..., list[int]]) -> None:
    plain = theirs()
    assert answered(pair, {}) == plain
    asked: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 0.6},
        {"suppress_tokens": [plain[0], 269]},
        {"bad_words_ids": [[plain[0]], [269], [7, 9]]},
        {"min_new_tokens": 12},
        {"min_new_tokens": 99, "repetition_penalty": 1.2},
    )
    for settings in asked:
        assert answered(pair, settings) == theirs(**settings), settings
    longer = answered(pair, {"min_new_tokens": 12})
    assert plain != longer != answered(pair, {"min_new_tokens": 12, "repetition_penalty": 1.5})


def test_what_a_question_says_counts_more(pair: Pair, theirs: Callable[..., list[int]]) -> None:
    assert answered(pair, {"repetition_penalty": 1.5}, repetition_penalty=1.0) == theirs()
    assert answered(pair, {"repetition_penalty": 1.5}, sampling=Sampling()) == theirs()
    assert len(answered(pair, {"max_new_tokens": 3, "min_new_tokens": 2}, max_new_tokens=1)) == 1
    assert with_settings(pair.tokens, {"max_new_tokens": 3}, Path())[0].settings(None, {}).max_new_tokens == 3


def test_what_is_not_used_is_noted_and_what_cannot_be_is_refused(pair: Pair) -> None:
    _, notes = with_settings(
        pair.tokens, {"num_beams": 4, "min_length": 0, "forced_eos_token_id": 0, "do_sample": True}, Path()
    )
    assert [note.split(":")[1].split(" not used")[0] for note in notes[:1]] == [" num_beams, forced_eos_token_id"]
    assert "answers are greedy unless a temperature is given" in notes[1]
    for wrong in ({"repetition_penalty": "high"}, {"bad_words_ids": [[-1]]}, {"suppress_tokens": 5}, {"min_new_tokens": -2}):
        with pytest.raises(BadCheckpoint, match=rf"generation_config\.json: {next(iter(wrong))} .*--ignore-generation-config"):
            with_settings(pair.tokens, wrong, Path("folder"))


def test_a_folder_is_asked_unless_it_is_to_be_ignored(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], theirs: Callable[..., list[int]]
) -> None:
    folder = Path(shutil.copytree(checkpoint("qwen"), tmp_path / "copy"))
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.5, "num_beams": 2}))
    ask = ("generate", "--recording", str(CLIP), "--prompt", QUESTION, "--target", str(folder), "--frames", "2")
    ask = (*ask, "--method", "autoregressive", "--max-new-tokens", str(MOST), "--json")
    penalised, plain = theirs(repetition_penalty=1.5), theirs()
    for more, wanted in (((), penalised), (("--repetition-penalty", "1"), plain), (("--ignore-generation-config",), plain)):
        assert run([*ask, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["token_ids"] == wanted
        assert any("num_beams" in note for note in found["notes"]) == (more[-1:] != ("--ignore-generation-config",))
    path.write_text("{")
    assert run([*ask]) == 2
    assert "generation_config.json" in capsys.readouterr().err


def test_own_folders_are_asked_too(folders: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders.video_llava, tmp_path / "copy"))
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.5}))
    assert load_folder(folder).tokens.usual == Sampling(repetition_penalty=1.5)
    assert load_folder(folder, LoadOptions(ignore_generation_config=True)).tokens.usual == Sampling()


def test_special_tokens_are_said_and_shown_when_asked_for(pair: Pair) -> None:
    mark = pair.vocabulary.id_of("<|begin|>")
    assert mark is not None
    for skip, text in ((True, ""), (False, "<|begin|>" * 3)):
        asked: dict[str, Any] = {"max_new_tokens": 3, "logit_bias": {mark: 100.0}, "skip_special_tokens": skip}
        found = generate(pair, CLIP, QUESTION, "ngram", **asked)
        assert (found.token_ids, found.text) == ([mark] * 3, text)
